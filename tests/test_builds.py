"""Extensions that torch compiles: once for each version, kept for later comparisons with it."""

from __future__ import annotations

from pathlib import Path

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
