"""Where what is compiled at import is kept, for a torch that comes without bytecode."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_kopt.processes import bytecode
from pytest_kopt.processes.bytecode import kept_bytecode


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that stands in for torch's place, and one file of it that nobody has compiled."""
    (tmp_path / "site").mkdir()
    file = tmp_path / "site" / "stranger_of_torch.py"
    file.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = find_spec("stranger_of_torch")
    monkeypatch.setattr(bytecode, "find_spec", lambda name: spec)
    bytecode._lacks_bytecode.cache_clear()
    yield file
    sys.modules.pop("stranger_of_torch", None)
    bytecode._lacks_bytecode.cache_clear()


def compiled(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.pyc"))


def test_bytecode_is_kept_once_and_apart(package: Path, tmp_path: Path) -> None:
    before = sys.pycache_prefix
    with kept_bytecode():
        importlib.import_module("stranger_of_torch")
    tag = f"stranger_of_torch.{sys.implementation.cache_tag}.pyc"
    assert compiled(tmp_path / "state") == [tag]
    assert compiled(package.parent) == []
    assert (sys.pycache_prefix, sys.dont_write_bytecode) == (before, True)
    assert not (tmp_path / "state").is_relative_to(Path.home() / ".cache")


def test_what_was_kept_is_what_is_imported(package: Path, tmp_path: Path) -> None:
    with kept_bytecode():
        importlib.import_module("stranger_of_torch")
    kept = next((tmp_path / "state").rglob("*.pyc"))
    del sys.modules["stranger_of_torch"]
    # Nothing but the time stamp and the size tell that the source is still the same.
    when = package.stat().st_mtime
    package.write_text("VALUE = 2\n")
    os.utime(package, (when, when))
    with kept_bytecode():
        assert importlib.import_module("stranger_of_torch").VALUE == 1
    kept.unlink()
    del sys.modules["stranger_of_torch"]
    assert importlib.import_module("stranger_of_torch").VALUE == 2
    assert compiled(tmp_path / "state") == []


def test_a_torch_with_bytecode_beside_it_needs_no_other(package: Path, tmp_path: Path) -> None:
    sys.dont_write_bytecode = False
    importlib.import_module("stranger_of_torch")
    del sys.modules["stranger_of_torch"]
    assert compiled(package.parent)
    bytecode._lacks_bytecode.cache_clear()
    before = sys.pycache_prefix
    with kept_bytecode():
        assert sys.pycache_prefix == before
        importlib.import_module("stranger_of_torch")
    assert not (tmp_path / "state").exists()
    shutil.rmtree(package.parent / "__pycache__")
