"""`--kopt-base`: what a folder, or one file, is another version of, and what changes reach."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.errors import BadInput
from pytest_kopt.trials.pull_request.against_base import PullRequestGate
from pytest_kopt.trials.pull_request.base import Base
from pytest_kopt.versions.tree import contents_of


def write(root: Path, **files: str) -> Path:
    """Write files below a root; two underscores stand for a slash, the suffix is .py."""
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "project", kernels__gemm="new", kernels__tiles="same", tests__t="t")


def test_a_folder_holds_files_at_their_places(root: Path, tmp_path: Path) -> None:
    old = write(tmp_path / "old", kernels__gemm="old", kernels__tiles="same", kernels__gone="gone")
    for folder in (".git", "__pycache__"):
        write(old / folder, left_out="")
    assert contents_of(old, root) == {
        "kernels/gemm.py": b"old",
        "kernels/gone.py": b"gone",
    }


def test_a_file_is_a_version_of_the_only_one_of_its_name(root: Path, tmp_path: Path) -> None:
    """Whether it lies in the project or not, and whatever an environment there holds."""
    write(root, venv__lib__gemm="installed").joinpath("venv/pyvenv.cfg").touch()
    for place in (tmp_path, root / "old"):
        file = write(place, gemm="old") / "gemm.py"
        assert contents_of(file, root) == {"kernels/gemm.py": b"old"}
        file.unlink()


@pytest.mark.parametrize(
    ("files", "path", "said"),
    [
        ({"old__other": ""}, "old", "contains no file at its path below"),
        ({"other": ""}, "other.py", "no other file below"),
        ({"a__gemm": "", "b__gemm": ""}, "b/gemm.py", "may be a version of a/gemm.py, kernels"),
    ],
)
def test_what_has_no_place_in_the_project_is_refused(
    root: Path, files: dict[str, str], path: str, said: str
) -> None:
    write(root, **files)
    with pytest.raises(BadInput, match=said):
        contents_of(root / path, root)


def test_a_base_is_a_path_where_git_knows_no_such_ref(root: Path, tmp_path: Path) -> None:
    write(tmp_path, gemm="old")
    base = Base.of("../gemm.py", root, root)
    assert (base.commit, dict(base.old)) == ("", {"kernels/gemm.py": b"old"})
    assert str(base) == "../gemm.py"
    with pytest.raises(BadInput, match="no path, and this is no git repository"):
        Base.of("../other.py", root, root)


def case(**evidence: Any) -> CaseResult:
    found = CaseEvidence(**evidence)
    return CaseResult("tests/t.py::t", "t", ("label",), {}, check="PASS", evidence=found)


def test_a_change_reaches_the_cases_whose_process_used_the_file(root: Path) -> None:
    (root / "sizes.json").write_text("8")
    (root / "notes.md").write_text("none")
    base = Base("main", "", root, {}, root)
    used = case(loaded=("kernels/gemm.py",), opened={"sizes.json": ("kernels/gemm.py",)})
    for path in ("kernels/gemm.py", "sizes.json"):
        assert base.any_used([path], [used]), path
    for path in ("kernels/tiles.py", "notes.md"):
        assert not base.any_used([path], [used]), path
    # A file that is gone may have been looked for.
    assert base.any_used(["kernels/gone.py"], [used])


def test_a_change_reaches_a_function_by_what_that_itself_used(root: Path) -> None:
    """The process ran other cases before, and the tests read files of their own."""
    (root / "sizes.json").write_text("8")
    (root / "table.json").write_text("8")
    base = Base("main", "", root, {}, root)
    opened = {"sizes.json": ("kernels/gemm.py",), "table.json": ("kernels/tiles.py",)}
    loaded = ("kernels/gemm.py", "kernels/tiles.py")
    called = case(loaded=loaded, opened=opened, used=("kernels/gemm.py",))
    for path in ("kernels/gemm.py", "sizes.json"):
        assert base.any_called([path], called), path
    for path in ("kernels/tiles.py", "table.json"):
        assert not base.any_called([path], called), path


def test_cases_that_do_not_import_at_the_base_are_no_new_ones() -> None:
    error = "E   ModuleNotFoundError: No module named 'kernels.gemm'"
    gate: Any = SimpleNamespace(
        _then=Collector(collect_errors={"tests/t.py": error}),
        _check_same_ids=lambda ids: None,
        other=Base("main", "", Path("/p"), {}, Path("/p")),
    )
    gate._check_base_imports = partial(PullRequestGate._check_base_imports, gate)

    def collect(nodeid: str) -> None:
        PullRequestGate.check_collection(gate, [nodeid], Collector(order=[nodeid]), False)

    collect("tests/other.py::t")
    with pytest.raises(BadInput, match=r"tests/t\.py does not import there: .*kernels") as refused:
        collect("tests/t.py::t")
    assert str(refused.value).startswith("main: ")
