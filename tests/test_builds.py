"""What is built of a version: where nothing was built, once, kept for later comparisons with it."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.processes.isolation import lacking
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.trials.trees import Builds, Trees, built_meanwhile
from tests.sessions.project import Project

INLINE = b"from torch.utils.cpp_extension import load_inline\nM = load_inline('m', 'int f();')\n"
FILES = b"from torch.utils import cpp_extension\nM = cpp_extension.load('m', ['load_inline.cu'])\n"


def built_in(root: Path, source: bytes, builds: Path | None) -> Path | None:
    (root / "kernel.py").write_bytes(b"# the candidate\n")
    with ExitStack() as held:
        versions = Trees(held, root, inline=builds).having({"kernel.py": source})
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


def test_a_tree_is_made_once(tmp_path: Path) -> None:
    root, old = tmp_path / "project", {"kernel.py": b"old"}
    root.mkdir()
    (root / "kernel.py").write_bytes(b"new")
    with ExitStack() as held:
        trees = Trees(held, root)
        versions = trees.having(old)
        assert trees.having(old).trees == versions.trees
        others = [trees.tree({"kernel.py": None}), trees.tree(old, copies_sources=True)]
        made = [*versions.trees, *others]
        assert len({tree.place for tree in made}) == len(made)
        assert [(tree.place / "kernel.py").exists() for tree in made] == [True, True, False, True]
    assert not any(tree.place.exists() for tree in made)


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
    with ExitStack() as held:
        versions = Trees(held, root).having({"kernel.py": b"old"})
        tree = versions.trees[number].place
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


#: Looks at the source alone, as setup.py does, and notes that it ran.
MAKE = """\
import os, pathlib, sys

made, source = pathlib.Path("kernels/made.so"), pathlib.Path("csrc/scale.c")
print(pathlib.Path("csrc/needed.txt").read_text() if "needed" in sys.argv else "")
if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
    pathlib.Path("build").mkdir(exist_ok=True)
    pathlib.Path("build/log").write_text("built")
    header = pathlib.Path("csrc/step.h").read_text()
    made.write_bytes(b"\\x7fELF" + header.encode())
    if "TIMES" in os.environ:
        with open(os.environ["TIMES"], "a") as file:
            file.write(header)
"""
MADE, HEADER = "kernels/made.so", "csrc/step.h"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with a header that its build does not know of, and a build of another version."""
    project = Project(tmp_path / "project")
    project.write("make.py", MAKE)
    project.write("csrc/scale.c", "scale")
    project.write(HEADER, "old")
    project.write("kernels/__init__.py", "")
    project.write(".gitignore", "*.so\nneeded.txt\n")
    project.commit_all()
    project.write("csrc/needed.txt", "needed")
    (project.root / MADE).write_bytes(b"\x7fELF of another version")
    return project


def builds_of(project: Project, *words: str) -> Builds:
    """Return builds as a session makes them: what earlier ones kept is there."""
    times = {"TIMES": str(project.root.parent / "times")}
    command = ProjectCommand(" ".join([sys.executable, "make.py", *words]), times, False)
    return Builds(project.root, command, project.root.parent / "builds")


def made(tree: Path) -> bytes:
    return (tree / MADE).read_bytes().removeprefix(b"\x7fELF")


@pytest.mark.parametrize("has_git", [True, False])
def test_a_version_is_built_where_nothing_was_built_and_once(
    project: Project, has_git: bool
) -> None:
    if not has_git:
        shutil.rmtree(project.root / ".git")
    for header in ("old", "new", "new"):
        project.write(HEADER, header)
        builds = builds_of(project)
        assert builds.into_project() == "" and made(project.root) == header.encode()
        builds.keep(KernelVersion.take(project.root, ["csrc"]), [])
        project.write("notes.yaml", header)
    with ExitStack() as held:
        versions = Trees(held, project.root, builds).having({HEADER: b"old"})
        assert [made(tree.place) for tree in versions.trees] == [b"old", b"old"]
    assert made(project.root) == b"new"
    # What was built of the first version went when only the second was to be kept.
    assert (project.root.parent / "times").read_text() == "oldnewold"


def test_a_build_gets_what_git_ignores_if_it_needs_it(project: Project) -> None:
    project.write(HEADER, "new")
    assert builds_of(project, "needed").into_project() == ""
    assert made(project.root) == b"new"


def test_a_product_that_a_version_lacks_goes(project: Project) -> None:
    project.write("make.py", MAKE + "pathlib.Path('more.so').write_bytes(b'more')\n")
    assert builds_of(project).into_project() == "" and (project.root / "more.so").exists()
    project.write("make.py", MAKE)
    assert builds_of(project).into_project() == "" and not (project.root / "more.so").exists()


def test_versions_that_were_built_to_the_same_are_not_compared(project: Project) -> None:
    """The header has another comment, or some cache outside of the tree missed it."""
    project.write("make.py", MAKE.replace("header.encode()", "b'cached'"))
    project.write(HEADER, "new")
    builds = builds_of(project)
    assert builds.into_project() == ""
    words = f"the same {MADE} of both versions, although {HEADER} differs"
    with ExitStack() as held:
        trees = Trees(held, project.root, builds)
        with pytest.raises(NotComparable, match=words) as refused:
            trees.having({HEADER: b"old"})
        undo, _, other = refused.value.fix.partition("; else ")
        assert undo == f"undo the edit of {HEADER} if it changes only comments or layout"
        assert other.startswith("have rebuild_command build")
        trees.having({"README.md": b"old"})


KERNEL = """\
import pathlib

FACTOR = float(pathlib.Path(__file__).with_name("made.so").read_bytes()[4:])


def scale(x):
    return x * FACTOR
"""
CASE = """\
import pytest, torch
from kernels.scale import scale


@pytest.mark.kopt(schema="memory")
def test_scale(kopt):
    inputs = lambda: (torch.randn(8, 4),)
    kopt(scale, inputs=inputs, reference=lambda x: x.double() * 2, dims={"n": 8}, nbytes=256)
"""


def test_what_is_put_back_is_built_as_well(project: Project) -> None:
    """A build that is not kept is named with its command."""
    project.write("pyproject.toml", "[tool.pytest.ini_options]\npythonpath = ['.']\n")
    project.write("kernels/scale.py", KERNEL)
    project.write("tests/test_scale.py", CASE)
    project.write(HEADER, "2")
    project.commit_all()
    (project.root / MADE).unlink()
    words = "--op c --kernel csrc --kernel kernels/scale.py --backend CPP --lang CPP --gpu cpu"
    run = project.kopt("init", "c", *words.split(), "--rebuild", "python make.py")
    assert run.code == 0, run.text
    run = project.pytest("--kopt-round", "1")
    assert run.code == 0 and made(project.root) == b"2", run.text
    project.write(HEADER, "3")
    run = project.pytest("--kopt-round", "next")
    assert run.code == 1 and made(project.root) == b"3", run.text
    run = project.kopt("discard", "c")
    assert run.code == 0 and "python make.py" not in run.out, run.text
    assert project.read(HEADER) == "2" and made(project.root) == b"2"
    shutil.rmtree(project.root / "agent/workspace/c/builds")
    assert "run: python make.py" in project.kopt("restore", "c", "2").out
