from __future__ import annotations

import contextlib
import hashlib
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.errors import BadInput, CannotFinish
from tests.builders import few_examples
from tests.crash import Killed, Steps, watched

SOURCES = ["kernels", "extra/tiles.json"]
CRLF = b"import torch\r\n\r\ndef f(x):\r\n    return x\r\n"
BINARY = bytes(range(256)) * 3


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a project with kernel files of several kinds and one file of somebody else's."""
    root = tmp_path / "project"
    write(root / "kernels" / "a.py", b"A = 1\n")
    write(root / "kernels" / "windows.py", CRLF)
    write(root / "kernels" / "sub" / "table.bin", BINARY)
    write(root / "extra" / "tiles.json", b"{}")
    write(root / "extra" / "other.py", b"OTHER = 1\n")
    return root


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def tree(root: Path) -> dict[str, bytes]:
    """Return every file below `root` with its content."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_version_holds_the_named_files_and_those_below_named_directories(root: Path) -> None:
    version = KernelVersion.take(root, SOURCES)
    assert {path: file.content for path, file in version.files.items()} == {
        "kernels/a.py": b"A = 1\n",
        "kernels/windows.py": CRLF,
        "kernels/sub/table.bin": BINARY,
        "extra/tiles.json": b"{}",
    }
    assert version.hashes["kernels/a.py"] == hashlib.sha256(b"A = 1\n").hexdigest()


def test_compiled_python_is_no_part_of_a_version(root: Path) -> None:
    before = KernelVersion.take(root, SOURCES)
    write(root / "kernels" / "__pycache__" / "a.cpython-311.pyc", b"x")
    write(root / "kernels" / "a.pyc", b"x")
    assert KernelVersion.take(root, SOURCES).same_content(before)


def test_a_kernel_that_is_gone_is_named(root: Path) -> None:
    (root / "extra" / "tiles.json").unlink()
    with pytest.raises(BadInput, match=r"extra/tiles\.json: cannot be read"):
        KernelVersion.take(root, SOURCES)


@pytest.mark.parametrize("name", ["n" * 300, "n/" * 3000], ids=["a name", "a path"])
def test_a_kernel_that_no_file_system_could_hold_is_named(root: Path, name: str) -> None:
    """Such as a ledger may ask for that somebody edited."""
    with pytest.raises(BadInput, match="cannot be read"):
        KernelVersion.take(root, [name])


def test_versions_with_the_same_bytes_are_the_same(root: Path) -> None:
    version = KernelVersion.take(root, SOURCES)
    assert version.same_content(KernelVersion.take(root, reversed(SOURCES)))
    write(root / "kernels" / "a.py", b"A = 1\r\n")
    assert not version.same_content(KernelVersion.take(root, SOURCES))


def test_what_is_written_loads_as_the_same_version(root: Path, tmp_path: Path) -> None:
    (root / "kernels" / "a.py").chmod(0o755)
    version = KernelVersion.take(root, SOURCES)
    snapshot = tmp_path / "rounds" / "round-1" / "kernel_snapshot"
    version.write(snapshot)
    assert tree(snapshot) == {path: file.content for path, file in version.files.items()}
    assert KernelVersion.load(snapshot, version.hashes) == version
    assert [path.name for path in snapshot.parent.iterdir()] == ["kernel_snapshot"]


def test_writing_again_replaces_what_was_there(root: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    KernelVersion.take(root, SOURCES).write(snapshot)
    (root / "kernels" / "a.py").unlink()
    later = KernelVersion.take(root, SOURCES)
    later.write(snapshot)
    assert "kernels/a.py" not in tree(snapshot)
    assert KernelVersion.load(snapshot, later.hashes) == later


@pytest.mark.parametrize("tampering", ["changed", "removed"])
def test_a_snapshot_that_is_not_what_the_ledger_names_is_refused(
    root: Path, tmp_path: Path, tampering: str
) -> None:
    version = KernelVersion.take(root, SOURCES)
    snapshot = tmp_path / "snapshot"
    version.write(snapshot)
    victim = snapshot / "kernels" / "a.py"
    if tampering == "changed":
        victim.write_bytes(b"A = 2\n")
    else:
        victim.unlink()
    with pytest.raises(BadInput, match=r"kernels/a\.py"):
        KernelVersion.load(snapshot, version.hashes)


def test_restoring_puts_back_contents_byte_for_byte_and_names_what_changed(root: Path) -> None:
    incumbent, before = KernelVersion.take(root, SOURCES), tree(root)
    write(root / "kernels" / "windows.py", CRLF.replace(b"\r\n", b"\n"))
    write(root / "kernels" / "sub" / "table.bin", BINARY[::-1])
    candidate = KernelVersion.take(root, SOURCES)
    changed = incumbent.restore(root, over=candidate)
    assert sorted(changed) == ["kernels/sub/table.bin", "kernels/windows.py"]
    assert tree(root) == before


def test_restoring_removes_files_that_only_the_candidate_has(root: Path) -> None:
    incumbent, before = KernelVersion.take(root, SOURCES), tree(root)
    write(root / "kernels" / "new.py", b"NEW = 1\n")
    candidate = KernelVersion.take(root, SOURCES)
    assert incumbent.restore(root, over=candidate) == ["kernels/new.py"]
    assert tree(root) == before


def test_restoring_brings_back_files_that_the_candidate_removed(root: Path) -> None:
    incumbent, before = KernelVersion.take(root, SOURCES), tree(root)
    (root / "kernels" / "sub" / "table.bin").unlink()
    (root / "kernels" / "sub").rmdir()
    candidate = KernelVersion.take(root, SOURCES)
    assert incumbent.restore(root, over=candidate) == ["kernels/sub/table.bin"]
    assert tree(root) == before


def test_restoring_brings_back_a_file_where_the_candidate_has_a_directory(root: Path) -> None:
    incumbent, before = KernelVersion.take(root, SOURCES), tree(root)
    (root / "kernels" / "a.py").unlink()
    write(root / "kernels" / "a.py" / "inner.py", b"INNER = 1\n")
    candidate = KernelVersion.take(root, SOURCES)
    incumbent.restore(root, over=candidate)
    assert tree(root) == before


def test_restoring_touches_no_other_file(root: Path) -> None:
    incumbent = KernelVersion.take(root, SOURCES)
    write(root / "extra" / "other.py", b"OTHER = 2\n")
    write(root / "kernels" / "a.py", b"A = 2\n")
    candidate = KernelVersion.take(root, SOURCES)
    write(root / "notes.txt", b"mine")
    incumbent.restore(root, over=candidate)
    assert (root / "extra" / "other.py").read_bytes() == b"OTHER = 2\n"
    assert (root / "notes.txt").read_bytes() == b"mine"


def test_restoring_what_is_there_already_changes_nothing(root: Path) -> None:
    incumbent = KernelVersion.take(root, SOURCES)
    stamps = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert incumbent.restore(root, over=incumbent) == []
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == stamps


def test_restoring_may_be_repeated_after_it_was_cut_off(root: Path) -> None:
    incumbent, before = KernelVersion.take(root, SOURCES), tree(root)
    write(root / "kernels" / "a.py", b"A = 2\n")
    write(root / "kernels" / "new.py", b"NEW = 1\n")
    candidate = KernelVersion.take(root, SOURCES)
    write(root / "kernels" / "a.py", b"A = 1\n")
    assert incumbent.restore(root, over=candidate) == ["kernels/new.py"]
    assert incumbent.restore(root, over=candidate) == []
    assert tree(root) == before


def test_modes_come_back_with_the_contents(root: Path) -> None:
    path = root / "kernels" / "a.py"
    path.chmod(0o750)
    incumbent = KernelVersion.take(root, SOURCES)
    write(path, b"A = 2\n")
    path.chmod(0o644)
    incumbent.restore(root, over=KernelVersion.take(root, SOURCES))
    assert mode(path) == 0o750


def test_a_mode_that_changed_alone_comes_back_too(root: Path) -> None:
    path = root / "kernels" / "a.py"
    path.chmod(0o644)
    incumbent = KernelVersion.take(root, SOURCES)
    path.chmod(0o755)
    incumbent.restore(root, over=KernelVersion.take(root, SOURCES))
    assert mode(path) == 0o644


def test_a_symlinked_kernel_stays_a_symlink(root: Path) -> None:
    write(root / "shared" / "impl.py", b"IMPL = 1\n")
    link = root / "kernels" / "link.py"
    link.symlink_to("../shared/impl.py")
    incumbent = KernelVersion.take(root, SOURCES)
    assert incumbent.files["kernels/link.py"].content == b"IMPL = 1\n"
    link.write_bytes(b"IMPL = 2\n")
    candidate = KernelVersion.take(root, SOURCES)
    assert incumbent.restore(root, over=candidate) == ["kernels/link.py"]
    assert link.is_symlink()
    assert (root / "shared" / "impl.py").read_bytes() == b"IMPL = 1\n"


def test_a_symlink_that_only_the_candidate_has_goes_without_its_target(root: Path) -> None:
    write(root / "shared" / "impl.py", b"IMPL = 1\n")
    incumbent = KernelVersion.take(root, SOURCES)
    (root / "kernels" / "link.py").symlink_to("../shared/impl.py")
    incumbent.restore(root, over=KernelVersion.take(root, SOURCES))
    assert not (root / "kernels" / "link.py").is_symlink()
    assert (root / "shared" / "impl.py").read_bytes() == b"IMPL = 1\n"


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=40), min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=40), min_size=1),
)
@few_examples
def test_restoring_gives_the_old_version_whatever_the_new_one_was(
    old: dict[str, bytes], new: dict[str, bytes]
) -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory)
        for name, content in old.items():
            write(root / "kernels" / name, content)
        incumbent = KernelVersion.take(root, ["kernels"])
        for name in old:
            (root / "kernels" / name).unlink()
        for name, content in new.items():
            write(root / "kernels" / name, content)
        candidate = KernelVersion.take(root, ["kernels"])
        changed = incumbent.restore(root, over=candidate)
        assert KernelVersion.take(root, ["kernels"]) == incumbent
    differing = {name for name in old | new if old.get(name) != new.get(name)}
    assert {Path(path).name for path in changed} == differing


def test_a_file_that_was_edited_since_is_not_restored(root: Path) -> None:
    incumbent = KernelVersion.take(root, SOURCES)
    write(root / "kernels" / "a.py", b"A = 2\n")
    write(root / "kernels" / "new.py", b"NEW = 1\n")
    write(root / "kernels" / "windows.py", b"x = 1\n")
    candidate = KernelVersion.take(root, SOURCES)
    write(root / "kernels" / "a.py", b"A = 'mine'\n")
    write(root / "kernels" / "new.py", b"NEW = 'mine'\n")
    assert incumbent.restore(root, over=candidate) == ["kernels/windows.py"]
    found = tree(root)
    assert found["kernels/a.py"] == b"A = 'mine'\n"
    assert found["kernels/new.py"] == b"NEW = 'mine'\n"
    assert found["kernels/windows.py"] == CRLF


@pytest.mark.parametrize("torn", [None, 0.5])
def test_what_a_kill_leaves_half_written_is_no_kernel_and_goes(
    root: Path, torn: float | None
) -> None:
    incumbent, before = KernelVersion.take(root, SOURCES), tree(root)
    litter = 0
    for at in range(1, 100):
        write(root / "kernels" / "a.py", b"A = 2\n")
        candidate = KernelVersion.take(root, SOURCES)
        steps = Steps(root, at, torn)
        with contextlib.suppress(Killed), watched(steps):
            incumbent.restore(root, over=candidate)
        litter += len(tree(root)) > len(before)
        left = KernelVersion.take(root, SOURCES)
        assert left.same_content(candidate) or left.same_content(incumbent)
        incumbent.restore(root, over=candidate)
        assert tree(root) == before
        if not steps.dead:
            break
    assert litter >= 2 and not steps.dead


def test_nothing_is_restored_through_a_link_that_was_swapped_in(root: Path, tmp_path: Path) -> None:
    incumbent = KernelVersion.take(root, SOURCES)
    (root / "kernels/a.py").write_text("A = 2\n")
    candidate = KernelVersion.take(root, SOURCES)
    outside = tmp_path / "outside.py"
    outside.write_text("A = 2\n")
    (root / "kernels/a.py").unlink()
    (root / "kernels/a.py").symlink_to(outside)
    with pytest.raises(CannotFinish, match=r"kernels/a\.py leads outside"):
        incumbent.restore(root, over=candidate)
    assert outside.read_text() == "A = 2\n"


def test_nothing_is_restored_below_a_directory_that_became_a_link(
    root: Path, tmp_path: Path
) -> None:
    incumbent = KernelVersion.take(root, SOURCES)
    elsewhere = tmp_path / "elsewhere"
    (root / "kernels").rename(elsewhere)
    (root / "kernels").symlink_to(elsewhere)
    (elsewhere / "a.py").write_text("A = 2\n")
    with pytest.raises(CannotFinish, match="leads outside"):
        incumbent.restore(root, over=KernelVersion.take(root, SOURCES))
    assert (elsewhere / "a.py").read_text() == "A = 2\n"
