"""Where what is compiled at import is kept, for a Python that may not write bytecode."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_kopt.processes.bytecode import kept_bytecode


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that nobody has compiled, and a Python that may not write bytecode."""
    (tmp_path / "site").mkdir()
    file = tmp_path / "site" / "never_compiled.py"
    file.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield file
    sys.modules.pop("never_compiled", None)


def compiled(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.pyc"))


def test_bytecode_is_kept_once_and_apart(package: Path, tmp_path: Path) -> None:
    before = sys.pycache_prefix
    with kept_bytecode():
        importlib.import_module("never_compiled")
    tag = f"never_compiled.{sys.implementation.cache_tag}.pyc"
    assert compiled(tmp_path / "state") == [tag]
    assert compiled(package.parent) == []
    assert (sys.pycache_prefix, sys.dont_write_bytecode) == (before, True)
    assert not (tmp_path / "state").is_relative_to(Path.home() / ".cache")


def test_what_was_kept_is_what_is_imported(package: Path, tmp_path: Path) -> None:
    with kept_bytecode():
        importlib.import_module("never_compiled")
    kept = next((tmp_path / "state").rglob("*.pyc"))
    del sys.modules["never_compiled"]
    # Nothing but the time stamp and the size tell that the source is still the same.
    when = package.stat().st_mtime
    package.write_text("VALUE = 2\n")
    os.utime(package, (when, when))
    with kept_bytecode():
        assert importlib.import_module("never_compiled").VALUE == 1
    kept.unlink()
    del sys.modules["never_compiled"]
    assert importlib.import_module("never_compiled").VALUE == 2
    assert compiled(tmp_path / "state") == []


def test_where_python_writes_bytecode_it_is_left_to_it(package: Path, tmp_path: Path) -> None:
    sys.dont_write_bytecode = False
    with kept_bytecode():
        importlib.import_module("never_compiled")
    assert compiled(tmp_path / "state") == []


def test_what_was_cut_off_is_dropped(package: Path, tmp_path: Path) -> None:
    with kept_bytecode():
        importlib.import_module("never_compiled")
    (kept,) = (tmp_path / "state").rglob("*.pyc")
    kept.write_bytes(kept.read_bytes()[:40])
    for expected in (pytest.raises(EOFError), nullcontext()):
        sys.modules.pop("never_compiled", None)
        with expected, kept_bytecode():
            importlib.import_module("never_compiled")


def test_where_files_may_be_cut_off_none_is_written(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1 << 20))
    with kept_bytecode():
        importlib.import_module("never_compiled")
    assert compiled(tmp_path / "state") == []
