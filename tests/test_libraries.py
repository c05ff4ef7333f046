"""Libraries that a process sets aside before it forks, so that its forks do not look at them."""

import importlib
import pickle
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from pytest_kopt import libraries
from pytest_kopt.errors import BadInput
from pytest_kopt.versions.affected_modules import project_modules
from pytest_kopt.versions.executed_files import check_imported_here, files_run


@pytest.fixture(autouse=True)
def _aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_ASIDE", {})
    monkeypatch.setattr(libraries, "_HEADS", set())
    libraries.set_libraries_aside()


def test_the_order_in_which_modules_were_loaded_stays() -> None:
    """Pickle asks module after module for a name, and torch.classes fails for what it lacks."""
    names = list(sys.modules)
    libraries.set_libraries_aside()
    assert list(sys.modules) == names
    assert pickle.loads(pickle.dumps(torch.contiguous_format)) is torch.contiguous_format


def test_libraries_alone_are_set_aside() -> None:
    assert sys.modules["pytest"] is pytest and sys.modules["pathlib"].Path is Path
    files = libraries.loaded_files()
    assert not {"pytest", "torch", "pathlib"} & files.keys()
    assert files[__name__] == __file__


def test_another_module_under_the_name_of_a_library_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hidden_kernel.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "pluggy", importlib.import_module("hidden_kernel"))
    del sys.modules["hidden_kernel"]
    assert project_modules(tmp_path) == {"pluggy": tmp_path / "hidden_kernel.py"}


def test_a_module_that_is_loaded_later_is_found_and_so_is_what_it_imports_a_copy_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "later_kernel.py").write_text("import pluggy\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("later_kernel")
    assert project_modules(tmp_path) == {"later_kernel": tmp_path / "later_kernel.py"}
    check_imported_here(tmp_path, "later_kernel", "case")
    copied = tmp_path / "src"
    (copied / "pluggy").mkdir(parents=True)
    (copied / "pluggy/__init__.py").touch()
    (copied / "another_kernel.py").write_text("import pluggy\n")
    monkeypatch.syspath_prepend(copied)
    importlib.import_module("another_kernel")
    with pytest.raises(BadInput, match="imports module 'pluggy' from a copy"):
        check_imported_here(copied, "another_kernel", "case")


def test_a_process_that_left_the_project_imports_no_file_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    for folder in ("src", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "wheel_of_a_kernel.py").write_text("raise AssertionError('it ran')")
    before = ["src", "", str(tmp_path), *sys.path]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*before])
    libraries.leave_project(libraries.project_around(tmp_path / "src"))
    try:
        assert not {"src", "", str(tmp_path)} & {*sys.path}
        assert libraries.session_path() == before, "workers import from there"
        with pytest.raises(ImportError):
            importlib.import_module("wheel_of_a_kernel")
    finally:
        libraries.return_to_project()
    assert libraries.session_path() == sys.path == before


class Mapped(MetaPathFinder):
    """What an editable install of a package whose folder has another name leaves behind."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        folder = self.root.joinpath("python", *name.split(".")[1:])
        if name.partition(".")[0] == "acme_spaces":
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
            return spec
        if name.partition(".")[0] != "acme_kernels":
            return None
        if folder.is_dir():
            return spec_from_file_location(name, folder / "__init__.py")
        file = folder.with_suffix(".py")
        return spec_from_file_location(name, file) if file.exists() else None


def test_a_process_in_a_copy_imports_it_whatever_an_editable_install_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    for tree in (root, copy):
        (tree / "python").mkdir(parents=True)
        (tree / "python" / "__init__.py").touch()
        (tree / "python" / "scale.py").write_text(f"TREE = {tree.name!r}\n")
    (root / "python" / "newer.py").touch()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Mapped(root)])
    libraries.import_from_copy(root, copy)
    try:
        assert importlib.import_module("acme_kernels.scale").TREE == "copy"
        assert importlib.import_module("acme_spaces.scale").TREE == "copy"
        with pytest.raises(ModuleNotFoundError, match=r"acme_kernels\.newer' in this version"):
            importlib.import_module("acme_kernels.newer")
        assert project_modules(root) == {}
        assert importlib.import_module("json.tool").__file__
    finally:
        for name in [name for name in sys.modules if name.startswith("acme_")]:
            del sys.modules[name]


def test_whose_fault_an_error_is_is_told_by_the_innermost_frame_of_kopt_or_project(
    tmp_path: Path,
) -> None:
    def fails(call: Callable[[], object]) -> BaseException:
        with pytest.raises((TypeError, ArithmeticError, RuntimeError)) as caught:
            call()
        return caught.value

    def own() -> object:
        return libraries.is_projects(tmp_path, cast("Any", None))

    assert libraries.own_fault(fails(own)).startswith("pytest-kopt itself failed (libraries.py:")
    assert not libraries.own_fault(fails(own), but=("libraries.py",))
    # A file of the project's, called by this package, and a library that this file calls.
    assert not libraries.own_fault(fails(lambda: files_run(lambda: 1 // 0)))
    assert not libraries.own_fault(fails(lambda: files_run(lambda: torch.ones(2) @ torch.ones(3))))
