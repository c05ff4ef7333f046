"""`--kopt-base PATH`: which files of the project a folder, or one file, is another version of."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt.errors import BadInput
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
