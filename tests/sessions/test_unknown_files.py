"""Files that are no plain content of git's: links, ignored files, pointers of git-lfs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import contents_at
from pytest_kopt.errors import BadInput

from .paired import FASTER, OLD, PLAIN, PLAIN_CASES, SLOWER, Gate, kernel
from .project import Project

NEW = kernel(SLOWER, "new")


def link(project: Project, path: str, target: str) -> None:
    """Have a path of the project be a link."""
    place = project.root / path
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def kernel_behind_link(project: Project) -> None:
    project.write("real/plain.py", kernel())
    link(project, PLAIN, "../real/plain.py")


def folder_behind_link(project: Project) -> None:
    project.git("mv", "kernels", "real")
    link(project, "kernels", "real")


def nothing(project: Project) -> None:
    """Leave the project as it is."""


def edit_target(project: Project) -> None:
    project.write("real/plain.py", NEW)


def lead_elsewhere(project: Project) -> None:
    project.write("real/other.py", NEW)
    link(project, PLAIN, "../real/other.py")


def put_file(project: Project) -> None:
    (project.root / PLAIN).unlink()
    project.write(PLAIN, NEW)


def put_link(project: Project) -> None:
    project.write("real/plain.py", NEW)
    link(project, PLAIN, "../real/plain.py")


def lead_to_another_folder(project: Project) -> None:
    project.write("real2/__init__.py", "")
    project.write("real2/plain.py", NEW)
    link(project, "kernels", "real2")


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (kernel_behind_link, edit_target),
        pytest.param(kernel_behind_link, lead_elsewhere, marks=pytest.mark.long),
        pytest.param(kernel_behind_link, put_file, marks=pytest.mark.long),
        pytest.param(nothing, put_link, marks=pytest.mark.long),
        pytest.param(folder_behind_link, edit_target, marks=pytest.mark.long),
        pytest.param(folder_behind_link, lead_to_another_folder, marks=pytest.mark.long),
    ],
)
def test_a_kernel_behind_a_link_is_compared(
    gate: Gate, before: Callable[[Project], None], change: Callable[[Project], None]
) -> None:
    before(gate.project)
    gate.project.git("add", ".")
    gate.project.git("commit", "--quiet", "--allow-empty", "-m", "The base")
    change(gate.project)
    done = gate()
    assert done.run.code == 8, done.run.text
    assert done.shapes[1]["change_pct"] == pytest.approx(100 * (OLD / SLOWER - 1))


def outside(project: Project, name: str, text: str) -> str:
    """Write a file beside the project and return how a kernel's link leads there."""
    (project.root.parent / name).write_text(text)
    return f"../../{name}"


@pytest.mark.parametrize("was", ["a file", "the same link", "another link"])
def test_a_kernel_that_a_link_leads_out_for_is_refused(gate: Gate, was: str) -> None:
    project = gate.project
    if was != "a file":
        link(project, PLAIN, outside(project, "plain.py", kernel()))
        project.commit_all("Outside")
    name = "other.py" if was == "another link" else "plain.py"
    link(project, PLAIN, outside(project, name, NEW))
    project.write("README.md", "Another text.\n")
    done = gate()
    assert done.run.code == 4 and done.verdict is None, done.run.text
    way = "or out of the repository" if was == "another link" else "a link to "
    assert PLAIN in done.run.refusal and way in done.run.refusal


def test_what_links_of_a_commit_led_to(gate: Gate) -> None:
    """Links to links, folders in folders, and links to nothing."""
    project = gate.project
    project.write("real/inner/one.txt", "one")
    project.write("real/two.txt", "two")
    for path, target in (("first", "second"), ("second", "real"), ("lost", "nowhere")):
        link(project, path, target)
    link(project, "real/inner/back", "../two.txt")
    link(project, "circle", "circle")
    project.commit_all("Links")
    repository = Repository.around(project.root)
    assert repository is not None
    for path in ("first", "lost"):
        (project.root / path).unlink()
    project.write("first/three.txt", "three")
    assert contents_at(repository, "HEAD") == {
        "first/inner/one.txt": b"one",
        "first/inner/back": b"two",
        "first/two.txt": b"two",
        "first/three.txt": None,
        "lost": None,
    }
    (project.root / "circle").unlink()
    with pytest.raises(BadInput, match="circle links to itself, or out of the repository"):
        contents_at(repository, "HEAD")


IGNORED = "__pycache__/\nkernels/plain.py\n"


@pytest.mark.parametrize(
    "also",
    ["", pytest.param("kernels/more.py", marks=pytest.mark.long)],
    ids=["nothing else", "a source"],
)
def test_a_kernel_that_git_ignores_is_not_taken_for_the_same(gate: Gate, also: str) -> None:
    project = gate.project
    project.write(".gitignore", IGNORED)
    project.git("rm", "--quiet", "--cached", PLAIN)
    project.commit_all("Ignored")
    project.write(PLAIN, NEW)
    if also:
        project.write(also, "MORE = 1\n")
    done = gate()
    assert done.run.code == 4 and done.verdict is None, done.run.text
    assert f"a case uses {PLAIN}, which git ignores" in done.run.refusal


def test_what_git_ignores_beside_the_kernel_is_nobodys_business(gate: Gate) -> None:
    """Sources without functions or of no case, an environment, a build, a kept version."""
    project = gate.project
    project.write(".gitignore", "__pycache__/\n_version.py\nscratch.py\nenv/\nbuild/\nagent/\n")
    project.write(PLAIN, kernel(imports="from kernels._version import VERSION"))
    project.commit_all("With a version")
    project.write("kernels/_version.py", "VERSION = 1\n")
    project.write("env/pyvenv.cfg", "")
    kept = "agent/workspace/c/rounds/round-2/kernel_snapshot/kernels/plain.py"
    for path in ("env/lib/code.py", "build/lib/kernels/plain.py", kept):
        project.write(path, "def code():\n    pass\n")
    done = gate()
    assert done.run.code == 0 and done.processes == {}, done.run.text
    assert "the same code" in done.judged["reason"]
    project.write("scratch.py", "def try_out():\n    pass\n")
    project.write(PLAIN, kernel(FASTER, "new", imports="from kernels._version import VERSION"))
    assert gate("--kopt-gate", "improve").run.code == 0


@pytest.mark.parametrize("reader", ["kernel", "test"])
def test_data_that_git_ignores_is_not_taken_for_the_bases(gate: Gate, reader: str) -> None:
    """What a test reads and hands to the kernel is one for both versions."""
    project = gate.project
    project.write(".gitignore", "__pycache__/\n*.dat\n")
    if reader == "kernel":
        project.write(PLAIN, AT_IMPORT)
    else:
        reads = f"from pathlib import Path\n\nfloat({READS})\n"
        project.write("tests/test_plain.py", f"{reads}{PLAIN_CASES}")
    project.commit_all("With data")
    project.write(f"{'kernels' if reader == 'kernel' else 'tests'}/table.dat", str(OLD))
    text = project.read(PLAIN).replace(f"COST_MS = {OLD}", f"COST_MS = {SLOWER}")
    project.write(PLAIN, text.replace('"old"', '"new"'))
    done = gate()
    if reader == "test":
        assert done.run.code == 8, done.run.text
        return
    assert done.run.code == 4 and done.verdict is None, done.run.text
    refusal = done.run.text[done.run.text.index("ERROR: --kopt-base") :]
    for part in (f"a case uses {TABLE}, which git ignores", "git add --force", "rebuild_command"):
        assert part in refusal


def test_what_a_command_makes_need_not_be_there_before(gate: Gate) -> None:
    """A fresh check-out has nothing of it, and the base's cases import it."""
    project = gate.project
    project.write(".gitignore", "__pycache__/\nkernels/made.py\n")
    project.write("kernels/made.in", f"COST = {OLD}\n")
    project.write(PLAIN, kernel("COST", imports="from kernels.made import COST"))
    project.commit_all("Generated")
    project.write("kernels/made.in", f"COST = {SLOWER}\n")
    words = "--kopt-base=main", "-o", "kopt_rebuild_command=cp kernels/made.in kernels/made.py"
    done = project.pytest(*words, **gate.variables())
    assert done.code == 8, done.text


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n"
TABLE = "kernels/table.dat"
READS = '(Path(__file__).parent / "table.dat").read_text()'
AT_IMPORT = kernel(f"float({READS})", imports="from pathlib import Path")
WHEN_CALLED = kernel(0.0, imports="from pathlib import Path").replace(
    "spend(COST_MS,", f"spend(float({READS}),"
)


@pytest.mark.parametrize(
    ("path", "source", "before", "after", "where"),
    [
        (TABLE, WHEN_CALLED, POINTER.format(1), str(SLOWER), "at the base"),
        pytest.param(
            *(TABLE, WHEN_CALLED, POINTER.format(1), POINTER.format(2), "here"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *(TABLE, AT_IMPORT, str(OLD), POINTER.format(2), "here"), marks=pytest.mark.long
        ),
        pytest.param(
            *(PLAIN, kernel(), POINTER.format(1), NEW, "at the base"), marks=pytest.mark.long
        ),
        (PLAIN, kernel(), kernel(), POINTER.format(2), "here"),
    ],
    ids=["data then", "data then and now", "data at import", "kernel then", "kernel now"],
)
def test_a_pointer_of_git_lfs_is_no_version(
    gate: Gate, path: str, source: str, before: str, after: str, where: str
) -> None:
    """Git has no filter for it here, and shows what it keeps."""
    gate.project.write("README.md", "With large files.\n")
    gate.project.write(PLAIN, source)
    gate.project.write(path, before)
    gate.project.commit_all("Large files")
    gate.project.write(path, after)
    done = gate()
    assert done.run.code == 4 and done.verdict is None, done.run.text
    # Above it stands what the case did.
    refusal = done.run.text[done.run.text.index("ERROR: --kopt-base") :]
    assert f"a case uses {path}, and {where} it is only a pointer" in refusal
    assert "git lfs pull" in refusal


def test_a_pointer_that_no_case_reads_is_nobodys_business(gate: Gate) -> None:
    gate.project.write("docs/picture.png", POINTER.format(1))
    gate.project.commit_all("A picture")
    gate.project.write("docs/picture.png", POINTER.format(2))
    done = gate()
    assert done.run.code == 0 and "reaches no case" in done.judged["reason"], done.run.text
    assert len(done.processes) == 1, "the case is checked, and nothing is compared"


def test_git_lfs_that_is_missing_is_named(gate: Gate, tmp_path: Path) -> None:
    project = gate.project
    project.write(".gitattributes", "*.dat filter=lfs\n")
    project.write(TABLE, POINTER.format(1))
    project.commit_all("Large files")
    project.git("config", "filter.lfs.required", "true")
    for name in ("clean", "smudge"):
        project.git("config", f"filter.lfs.{name}", f"{tmp_path}/no-git-lfs {name} %f")
    os.utime(project.write(TABLE, str(SLOWER)), (1, 1))
    message = gate.refused()
    assert TABLE in message and "no-git-lfs" in message
