"""Extensions that torch compiles: once for each version, kept for later comparisons with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_kopt.processes.isolation import lacking
from pytest_kopt.trials.trees import built_meanwhile, overlays

INLINE = b"from torch.utils.cpp_extension import load_inline\nM = load_inline('m', 'int f();')\n"
FILES = b"from torch.utils import cpp_extension\nM = cpp_extension.load('m', ['load_inline.cu'])\n"


def built_in(root: Path, source: bytes, builds: Path | None) -> Path | None:
    (root / "kernel.py").write_bytes(b"# the candidate\n")
    with overlays(root, {"kernel.py": source}, builds=builds) as versions:
        assert versions.trees[0] != versions.trees[1]
        return versions.extensions


def test_versions_are_built_at_one_place_where_torch_finds_what_did_not_change(
    tmp_path: Path,
) -> None:
    """Also where an earlier builder was killed: torch would wait for its lock."""
    root, builds = tmp_path / "project", tmp_path / "builds"
    root.mkdir()
    first = built_in(root, INLINE, builds)
    assert first is not None and first.parent == builds
    lock = first / "m" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert built_in(root, INLINE + b"\n", builds) == first and not lock.exists()


def test_a_baseline_is_built_for_the_comparisons_to_come(tmp_path: Path) -> None:
    """In a process that may write there alone, and whose failure is for the cases to meet."""
    package = tmp_path / "project" / "kernels"
    package.mkdir(parents=True)
    (package / "m.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path(os.environ['TORCH_EXTENSIONS_DIR'], 'm.so').touch()\n"
        "pathlib.Path(__file__).with_name('strange').touch()\n"
    )
    builds = tmp_path / "builds"
    with built_meanwhile({"kernels.m": package.parent}, builds, confined=True):
        pass
    (kept,) = builds.iterdir()
    assert [path.name for path in kept.iterdir()] == ["m.so"]
    assert bool(lacking()) or not (package / "strange").exists()


def test_without_a_campaign_the_place_goes_with_the_trees(tmp_path: Path) -> None:
    held = built_in(tmp_path, INLINE, None)
    assert held is not None and not held.parent.exists()


def test_files_are_built_in_each_tree(tmp_path: Path) -> None:
    """They lie elsewhere in each: at one place each tree would build anew what the other built."""
    assert built_in(tmp_path, FILES, tmp_path / "builds") is None
    assert built_in(tmp_path, b"def f(x):\n    return x\n", tmp_path / "builds") is None


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("what", ["exchanged", "set back", "gone", "new"])
def test_what_is_written_in_a_tree_of_the_current_best_is_seen(
    what: str, number: int, tmp_path: Path
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "kernel.py").write_bytes(b"new")
    (root / "helper.py").write_bytes(b"helper")
    with overlays(root, {"kernel.py": b"old"}) as versions:
        tree = versions.trees[number]
        (tree / "__pycache__").mkdir()
        assert versions.written == ""
        before = (tree / "kernel.py").stat()
        if what == "new":
            (tree / "more.py").write_bytes(b"more")
            assert versions.written == "more.py"
            return
        (tree / "kernel.py").rename(tree / "__pycache__" / "kernel.py")
        if what in ("exchanged", "set back"):
            (tree / "kernel.py").write_bytes(b"bad")
        if what == "set back":
            os.utime(tree / "kernel.py", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert versions.written == "kernel.py"
