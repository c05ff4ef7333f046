"""Killing a session at every step at which it changes something on disk.

The steps are found by instrumentation: Python's audit events tell of every file that is opened for
writing, renamed or removed and of every process that is started, and `os.fsync` is wrapped. A first
run lists them; each further run ends itself with SIGKILL right before one of them. At a sync the
bytes that were just written are cut short too, as a kill in the middle of the write leaves them.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from .project import SCRIPT, Project, Run
from .sources import SCRIPTED

#: Counts a process's steps on disk, and ends it before the one that KILL_AT names.
SOURCE = """

import os
import signal
import sys
import threading

_ROOT = os.path.dirname(os.path.realpath(__file__)) + os.sep
# Where in an event's arguments the paths are, and the directories that they may be relative to.
_CHANGES = {
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.truncate": ((0, None),),
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Children have the variables too, and are left alone.
_mine = os.environ.setdefault("KILL_PID", str(os.getpid())) == str(os.getpid())
_at = int(os.environ.get("KILL_AT", "0"))
_torn = "KILL_TORN" in os.environ
_count = 0


def _step(what, descriptor=None):
    global _count
    # How often this thread writes is a matter of time: a step's number would be another each time.
    if threading.current_thread().name == "kopt-progress":
        return
    _count += 1
    os.write(_log, f"{_count} {what}\\n".encode())
    if _count == _at:
        if _torn and descriptor is not None:
            os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - 7))
        os.kill(os.getpid(), signal.SIGKILL)


def _inside(path, directory=-1):
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    text = os.fsdecode(path)
    if directory != -1:
        text = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), text)
    text = os.path.abspath(text)
    return text.startswith(_ROOT) and "__pycache__" not in text and not text.endswith(".log")


def _hook(event, given):
    if event == "open":
        if isinstance(given[2], int) and given[2] & _WRITES and _inside(given[0]):
            _step(f"open {os.fsdecode(given[0])}")
    elif event in _CHANGES:
        again = event == "os.mkdir" and os.path.isdir(given[0])
        places = [(given[i], -1 if j is None else given[j]) for i, j in _CHANGES[event]]
        if not again and any(_inside(*place) for place in places):
            _step(f"{event} {given[0]}")
    elif event == "subprocess.Popen" and "git" in os.path.basename(str(given[0])):
        _step(f"git {given[1][1:4]}")


def _fsync(descriptor, sync=os.fsync):
    _step("fsync", descriptor)
    sync(descriptor)


if "KILL_LOG" in os.environ and _mine:
    _log = os.open(os.environ["KILL_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.addaudithook(_hook)
    os.fsync = _fsync
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a session: its number, what it is, and whether a sync's bytes are cut short."""

    number: int
    what: str
    torn: bool = False


def equip(project: Project) -> None:
    """Have the plugin of the scripted clock count steps too, in every run that asks for it.

    It is one plugin in all runs, so that the harness stays what the baseline knew.
    """
    project.write(SCRIPT, SCRIPTED + SOURCE)


def _run(project: Project, words: tuple[str, ...], log: Path, **variables: str) -> Run:
    return project.pytest(*words, KILL_LOG=str(log), **variables)


def points(project: Project, words: tuple[str, ...], log: Path) -> list[Point]:
    """Run a session undisturbed and return its steps, a sync twice: whole and torn."""
    _run(project, words, log)
    found = []
    for line in log.read_text().splitlines():
        number, _, what = line.partition(" ")
        found.append(Point(int(number), what))
        if what == "fsync":
            found.append(Point(int(number), what, torn=True))
    return found


def kill(project: Project, words: tuple[str, ...], point: Point, log: Path) -> None:
    """Run the session and end it at a point."""
    torn = {"KILL_TORN": "1"} if point.torn else {}
    run = _run(project, words, log, KILL_AT=str(point.number), **torn)
    assert run.code == -signal.SIGKILL, (point, run.code, run.text)
