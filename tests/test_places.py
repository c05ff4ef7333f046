"""Which file of the project two files are versions of: what the tests import."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.imports import names_in
from pytest_kopt.standalone.cases import Cases
from pytest_kopt.standalone.child_session import last_words, place_of
from pytest_kopt.versions.tree import Tree

from .test_elsewhere import write


def test_every_way_to_import_is_read(tmp_path: Path) -> None:
    source = tmp_path / "test_x.py"
    source.write_text("import a.b, c\nfrom d.e import f\nfrom . import g\ndef late(): import h\n")
    assert names_in(source.read_bytes()) == {"a.b", "c", "d.e", "d.e.f", "g", "h"}
    assert not names_in(b"def (")


@pytest.mark.parametrize(
    ("line", "versions", "place"),
    [
        ("from kernels.gemm import gemm", ("kernels/gemm.py", "../new.py"), "kernels/gemm.py"),
        ("from kernels import gemm", ("../old.py", "kernels/gemm.py"), "kernels/gemm.py"),
        ("import gemm", ("../a/gemm.py", "../b/other.py"), "kernels/gemm.py"),
        ("from old import gemm", ("old.py", "new.py"), "old.py"),
        ("import kernels", ("kernels/__init__.py", "../new.py"), "kernels/__init__.py"),
        ("import package", ("package/norm.py", "../new.py"), "package/norm.py"),
        ("import package", ("package/helper.py", "../new.py"), "package/helper.py"),
        ("import package", ("../a/helper.py", "../b/other.py"), "package/helper.py"),
        ("from package.norm import f", ("package/norm.py", "package/helper.py"), "package/norm.py"),
    ],
)
def test_the_place_is_what_the_tests_import(
    line: str, versions: tuple[str, str], place: str, tmp_path: Path
) -> None:
    root = write(tmp_path / "project", kernels__gemm="", kernels____init__="", old="", new="")
    write(root, package__norm="from . import helper", package__helper="")
    (root / "package/__init__.py").write_text("from .norm import f")
    test = write(root, test_x=line) / "test_x.py"
    paths = [(root / version).resolve() for version in versions]
    assert place_of(paths, root, [test]) == place


def test_a_file_of_another_name_takes_the_place_of_the_file_with_its_content(
    tmp_path: Path,
) -> None:
    root = write(tmp_path / "project", kernels__gemm="x = 1", kernels__norm="x = 2")
    test = write(root, test_x="from kernels import gemm") / "test_x.py"
    outside = write(tmp_path / "other", old="x = 1", new="x = 3", norm_of_old="x = 2")
    assert place_of([outside / "old.py", outside / "new.py"], root, [test]) == "kernels/gemm.py"
    with pytest.raises(BadInput, match="nor a file of the same name or content"):
        place_of([outside / "norm_of_old.py", outside / "new.py"], root, [test])


def test_versions_that_a_campaign_keeps_are_no_files_of_the_project(tmp_path: Path) -> None:
    root = write(tmp_path / "project", a__x="", work__campaign__rounds__a__x="", test_x="import x")
    (root / "work/campaign/ledger.jsonl").write_text("")
    other = write(tmp_path / "other", x="") / "x.py"
    assert place_of([other], root, [root / "test_x.py"]) == "a/x.py"


def test_a_place_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    root = write(tmp_path, a="", b="", test_x="import c", test_y="import a, b")
    versions = [root / "a.py", root / "b.py"]
    with pytest.raises(BadInput, match=r"import neither .*a\.py and .*--at"):
        place_of(versions, root, [root / "test_x.py"])
    with pytest.raises(BadInput, match=r"may be versions of a\.py, b\.py\. Fix: --at"):
        place_of(versions, root, [root / "test_y.py"])


def test_words_name_the_same_cases_in_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "project", tests__test_x="", tests__sub__test_y="")
    (root / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    monkeypatch.chdir(root / "tests")
    tree = Tree(root, tmp_path / "tree", {})
    assert tree.folder == tmp_path / "tree/tests"
    folder = [root]
    cases = Cases.named(["test_x.py::test_x[1]", str(root / "tests/sub")], folder, None)
    assert cases.within(tree) == [
        f"{tmp_path}/tree/tests/test_x.py::test_x[1]",
        f"{tmp_path}/tree/tests/sub",
    ]
    assert Cases.named([], folder, None).within(tree) == [f"{tmp_path}/tree/tests"]
    by_settings = Cases.named([], folder, None).files
    assert sorted(by_settings) == ["tests/sub/test_y.py", "tests/test_x.py"] == sorted(cases.files)
    with pytest.raises(BadInput, match="no such file"):
        Cases.named(["nowhere.py"], folder, None)


@pytest.mark.parametrize(
    ("end", "words"),
    [("ERROR: no tests\n\n", "no tests"), ("=== 1 failed ===\n", "1 failed"), ("", "y" * 20)],
)
def test_the_last_words_are_those_at_the_end(end: str, words: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(("y" * 20 + "\n") * 100_000 + end)
    assert last_words(log) == words
