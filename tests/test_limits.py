"""Limits on a session and what it starts; each is tried where there is no other child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_kopt.standalone.submissions import private_folder, remove

WATCHER = """
import subprocess, sys, time
from pathlib import Path
from pytest_kopt.process_tree import adopt_orphans, children
from pytest_kopt.standalone.submissions import ProcessLimits, shared_files

adopt_orphans()
limits = ProcessLimits(seconds=float(sys.argv[2]), memory=600 << 20, disk=8 << 20, processes=6)
words = [sys.executable, "-c", sys.argv[3]]
before = {*shared_files()}
process = subprocess.Popen(words, cwd=sys.argv[1], preexec_fn=limits.apply)
# On a busy machine a process has written files before it is looked at.
time.sleep(0.3)
print(limits.wait(process, Path(sys.argv[1]), before) or process.returncode, sorted(children()))
"""
FOREVER = "import threading; threading.Event().wait()"
#: Ends at once and leaves a process of a group of its own.
LEAVES = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "{FOREVER}"], start_new_session=True)
"""
FORKS = """
import os, threading
for _ in range(20):
    if not os.fork():
        os.setsid()
        threading.Event().wait()
threading.Event().wait()
"""
FILLS = """
for number in range(100):
    open(f"part-{number}", "wb").write(b"x" * (1 << 20))
"""
HOLDS = """
import tempfile
files = [tempfile.TemporaryFile(dir=".") for _ in range(100)]
for file in files:
    file.write(b"x" * (1 << 20))
    file.flush()
"""
SHARES = """
for number in range(100):
    open(f"/dev/shm/kopt-tests-limits-{number}", "wb").write(b"x" * (1 << 20))
"""
WAITS = "\nimport threading; threading.Event().wait()"
LARGE = """
try:
    open("large", "wb").write(b"x" * (3 << 20))
except OSError as error:
    raise SystemExit(7)
"""


def watched(folder: Path, code: str, seconds: float = 600.0) -> str:
    """Return which limit Python code went beyond, else its exit status, and the children left."""
    words = [sys.executable, "-c", WATCHER, str(folder), str(seconds), code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("keep = bytearray(800 << 20)" + WAITS, "memory: it takes more than 600 MiB"),
        (FORKS, "processes: there are more than 6"),
        (FILLS + WAITS, "disk: its files take more than 8 MiB"),
        (HOLDS + WAITS, "disk: its files take more than 8 MiB"),
        (SHARES + WAITS, "disk: its files take more than 8 MiB"),
    ],
    ids=["memory", "processes", "files", "nameless files", "shared memory"],
)
def test_what_goes_beyond_a_limit_is_ended(code: str, limit: str, tmp_path: Path) -> None:
    assert watched(tmp_path, code) == f"{limit} []"
    assert not [*Path("/dev/shm").glob("kopt-tests-limits-*")]


def test_time_is_limited_too(tmp_path: Path) -> None:
    assert watched(tmp_path, FOREVER, 0.2) == "time: it takes more than 0.2 s []"


def test_what_stays_within_them_ends_by_itself_and_leaves_no_process(tmp_path: Path) -> None:
    assert watched(tmp_path, LEAVES) == "0 []"
    assert watched(tmp_path, LARGE) == "7 []", "a file has at most a quarter of the disk"


def test_a_private_folder_goes_whatever_rights_its_folders_have(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    variables = private_folder(folder)
    locked = Path(variables["TMPDIR"], "locked")
    (locked / "inner").mkdir(parents=True)
    locked.chmod(0)
    remove(folder)
    assert not folder.exists()
