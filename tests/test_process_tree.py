"""Whoever adopts orphans finds them among its children, and can end them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_kopt import process_tree

from .waiting import HANG, until

#: Starts a process in a session of its own from one that ends at once, and prints its id.
LEAVES = """\
import os, time
import pytest_kopt.process_tree as process_tree

def leave():
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            time.sleep(3600)
        os._exit(0)
    os.waitpid(middle, 0)
    return int(os.read(reader, 20))

"""


def play(text: str) -> str:
    words = [sys.executable, "-c", LEAVES + textwrap.dedent(text)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_gone(pid: int) -> bool:
    """Say whether a process has ended; one that nobody waited for has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("adopts", [True, False])
def test_an_orphan_is_found_by_who_adopts_it(adopts: bool) -> None:
    told = play(f"""
        if {adopts}:
            process_tree.adopt_orphans()
        orphan = leave()
        print(orphan, orphan in process_tree.children())
        if not {adopts}:
            os.kill(orphan, 9)
        process_tree.end_descendants()
    """).split()
    assert told[1] == str(adopts)
    until(lambda: is_gone(int(told[0])))


def test_what_is_spared_goes_on_and_what_it_started_too() -> None:
    told = play("""
        process_tree.adopt_orphans()
        first, second = leave(), leave()
        process_tree.end_descendants(but=[first])
        os.waitpid(second, 0)
        print(process_tree.children() == {first})
        process_tree.end_descendants()
    """)
    assert told.strip() == "True"


def test_another_processs_descendants_are_found_without_being_its_parent() -> None:
    text = LEAVES + "process_tree.adopt_orphans(); print(leave(), flush=True); time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        assert process_tree.children(process.pid) == {orphan}
        process_tree.end_descendants(process.pid)
        until(lambda: is_gone(orphan))
        assert process.poll() is None
        process.kill()


def test_who_is_below_whom_is_known_of_whoever_lives() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process_tree.is_below(process.pid, os.getpid())
        assert process_tree.is_below(os.getpid(), os.getpid())
        assert not process_tree.is_below(os.getpid(), process.pid)
        assert not process_tree.is_below(1, process.pid)
    assert not process_tree.is_below(process.pid, os.getpid())
    assert not process_tree.is_below(2**22 + 1, os.getpid())


def test_without_prctl_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    process_tree.end_with_parent()
    process_tree.adopt_orphans()


def test_where_proc_tells_nothing_there_are_no_children() -> None:
    assert process_tree.children(2**22 + 1) == frozenset()
    process_tree.end_descendants(2**22 + 1)
    assert os.getpid() not in process_tree.children()
