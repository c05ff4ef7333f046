"""Project files are compiled at each import; what is installed is compiled once and kept."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_kopt.processes.bytecode import kept_bytecode
from tests.sessions.project import Project


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


CASE = """\
import pytest, torch
from scaling.scale import scale


@pytest.mark.kopt(schema="memory")
def test_scale(kopt):
    inputs = lambda: (torch.randn(8, 4),)
    kopt(scale, inputs=inputs, reference=lambda x: x.double() * 2, dims={"n": 8}, nbytes=256)
"""
KERNEL = "scaling/scale.py"
#: The file that is edited, by what is cached of it.
EDITS = {"kernel": KERNEL, "kernel in a gate": KERNEL, "test": "tests/test_scale.py"}
EDITS["unchecked"] = KERNEL


@pytest.mark.parametrize("what", EDITS)
def test_a_file_of_the_same_size_and_time_is_compiled_anew(what: str, tmp_path: Path) -> None:
    """Two versions that a script wrote within a second; the first has been run."""
    project = Project(tmp_path)
    project.write("pyproject.toml", "[tool.pytest.ini_options]\npythonpath = ['.']\n")
    project.write("scaling/__init__.py", "")
    project.write(KERNEL, "def scale(x):\n    return x * 2\n")
    project.write("tests/test_scale.py", CASE)
    project.write(".gitignore", "__pycache__/\n")
    project.commit_all()
    checked = project.pytest("--kopt-check-only", PYTHONDONTWRITEBYTECODE="")
    assert checked.code == 0, checked.text
    if what == "unchecked":
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(tmp_path / KERNEL), invalidation_mode=mode)
    elif what != "test":
        py_compile.compile(str(tmp_path / KERNEL))
    when = (tmp_path / EDITS[what]).stat().st_mtime
    project.replace(EDITS[what], "* 2", "* 3")
    os.utime(tmp_path / EDITS[what], (when, when))
    if what == "test":
        (cached,) = (tmp_path / "tests").rglob("*.pyc")
        head, rest = cached.read_bytes()[:8], cached.read_bytes()[16:]
        if head[4] == 3:  # Since 9.2 pytest goes by the source's hash.
            now = importlib.util.source_hash((tmp_path / EDITS[what]).read_bytes())
            cached.write_bytes(head + now + rest)
    words = ("--kopt-base", "HEAD") if what == "kernel in a gate" else ("--kopt-check-only",)
    done = project.pytest(*words, PYTHONDONTWRITEBYTECODE="")
    assert done.code == 1, done.text
