"""Which files a process opens, as the audit hook hears it; what is a library."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytest_kopt import libraries


def test_project_code_is_no_library() -> None:
    assert libraries.is_library(statistics.__file__)
    assert libraries.is_library(torch.__file__)
    assert not libraries.is_library(__file__)
    assert not libraries.is_library("<string>")


@pytest.mark.parametrize("package", ["xdist", "execnet"])
def test_a_package_beside_the_installed_ones_is_a_library_once_it_is_loaded(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch over writes asks before torch is imported; in a worker below execnet's own code."""
    assert not libraries.is_library(str(tmp_path / "kernel.py"))
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(__file__=f"{tmp_path}/x/__init__.py"))
    assert libraries.is_library(str(tmp_path / "x" / "remote.py"))


READS = """
import sys, sysconfig
from pathlib import Path
from pytest_kopt.honesty.audit_hook import AuditHook
root = Path(sys.argv[1])
hook = AuditHook(root, caches=[root.parent, root, root / "built", root / "link"])
hook.install()
packages = Path(sysconfig.get_path("purelib"))
for file, name in (("_pytest/cacheprovider.py", "pytests"), ("other/files.py", "others")):
    code = compile("open(root / name).read()", str(packages / file), "exec")
    exec(code, {"root": root, "name": name})
for name in ("built/m/m.so", "kept/m.so", "built.txt"):
    exec(compile("open(root / name)", str(packages / "other/files.py"), "exec"))
print([Path(name).name for name in hook.opened])
"""


def test_what_pytest_reads_is_no_file_of_the_kernels(tmp_path: Path) -> None:
    """Its cache, read by xdist's workers, made every later round one of other files.

    Nor is what compilers keep in a folder inside of the project.
    """
    for name in ("pytests", "others", "built/m/m.so", "kept/m.so", "built.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to("kept")
    words = [sys.executable, "-c", READS, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "['others', 'built.txt']\n", done.stdout + done.stderr


RETURNS = """
import os, sys
from pytest_kopt.honesty.audit_hook import AuditHook
from pathlib import Path
root = Path(sys.argv[1])
hook = AuditHook(root)
hook.install()
open(root / "known", "a+").read()
open(root / "edited", "r+").read()
open(root / "cut", "w+").read()
open(root / "made", "w").close()
open(root / "made").read()
open(root / "added", "a").close()
(root / "kept").chmod(0o400)
for event in ("open", "os.rename"):
    path = str(root / "kept")
    arguments = (path, "w", os.O_WRONLY | os.O_TRUNC) if event == "open" else ("no", path, -1, -1)
    sys.audit(event, *arguments)
open(root / "kept").read()
print(sorted(Path(name).name for name in hook.opened))
"""


def test_a_file_that_was_there_is_read_even_if_it_may_be_written(tmp_path: Path) -> None:
    for name in ("known", "edited", "cut", "added", "kept"):
        (tmp_path / name).write_text("text")
    words = [sys.executable, "-c", RETURNS, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "['edited', 'kept', 'known']\n", done.stdout + done.stderr
