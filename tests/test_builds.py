"""Extensions that torch compiles: once for each version, kept for later comparisons with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_kopt.trials.trees import overlays

INLINE = b"from torch.utils.cpp_extension import load_inline\nM = load_inline('m', 'int f();')\n"
FILES = b"from torch.utils import cpp_extension\nM = cpp_extension.load('m', ['load_inline.cu'])\n"


def built_in(root: Path, source: bytes, builds: Path | None) -> Path | None:
    (root / "kernel.py").write_bytes(b"# the candidate\n")
    with overlays(root, {"kernel.py": source}, builds=builds) as versions:
        assert versions.trees[0] != versions.trees[1]
        return versions.extensions


def test_a_version_is_built_at_one_place_by_its_content(tmp_path: Path) -> None:
    """Incumbent and its copy share it, and a later round of the same version finds it again."""
    root, builds = tmp_path / "project", tmp_path / "builds"
    root.mkdir()
    first = built_in(root, INLINE, builds)
    assert first is not None and first.parent == builds
    assert built_in(root, INLINE, builds) == first
    assert built_in(root, INLINE + b"\n", builds) not in (None, first)


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
