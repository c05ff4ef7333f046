"""Processes by descent: whose end is this one's, and what it, or one that it started, has started.

Processes that a kernel starts may leave its process group and lose their parent. Linux gives
orphans to the nearest ancestor that adopts them: it finds them among its children, and ends them.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NoReturn

#: Of Linux's prctl(2).
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def end_with_parent() -> None:
    """Have the system end this process with its parent, however that ends.

    A case that hangs would otherwise keep the device for as long as it may take. Strictly it is the
    thread that started this process whose end counts: each of ours outlives what it has started.
    """
    # Linux's alone; elsewhere its pipes end it, when it looks at them next.
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Have processes whose parent ends become children of this one, if they descend from it."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def is_alive(process: int) -> bool:
    """Say whether a process is there, whichever user owns it."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def is_left_behind(name: str, prefix: str) -> bool:
    """Say whether what is called by a prefix and a process's number has outlived that process."""
    owner = name.removeprefix(prefix).partition("-")[0]
    return name.startswith(prefix) and owner.isdecimal() and not is_alive(int(owner))


def children(pid: int | None = None) -> frozenset[int]:
    """Return the children of a process (default: this one); none where /proc does not tell."""
    pids: set[int] = set()
    # Asked twice for every timed block, so without paths as objects.
    tasks = f"/proc/{pid or 'self'}/task"
    with suppress(OSError):
        for task in os.listdir(tasks):
            with suppress(OSError), open(f"{tasks}/{task}/children", encoding="utf-8") as listing:
                pids.update(map(int, listing.read().split()))
    return frozenset(pids)


def down(pid: int) -> Iterator[int]:
    """Yield a process and what descends from it: each before its children are looked for."""
    waiting = [pid]
    for process in waiting:
        yield process
        waiting += children(process)


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; OSError where there is none."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The name in parentheses before them may hold anything.
        return file.read().rpartition(")")[2].split()


def above(pid: int) -> Iterator[int]:
    """Yield a process and its ancestors, as far as /proc tells."""
    while pid > 0:
        yield pid
        try:
            pid = int(stat_of(pid)[1])
        except OSError:
            return


def is_below(pid: int, root: int) -> bool:
    """Say whether a process is `root` or descends from it; not so where /proc does not tell."""
    return root in above(pid)


def end_descendants(pid: int | None = None, but: Collection[int] = ()) -> None:
    """Kill what a process has started, `but` some, and what those have started."""
    for child in children(pid) - frozenset(but):
        # Stopped, it cannot start more while its own are looked for.
        with suppress(OSError):
            os.kill(child, signal.SIGSTOP)
        end_descendants(child)
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)


def leave(code: int) -> NoReturn:
    """End this process as it is, and what it has started."""
    end_descendants()
    os._exit(code)
