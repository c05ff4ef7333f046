"""One measurement at a time on one device of this host, for all sessions."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

#: The same for every user, campaign and repository of the host, whatever their TMPDIR says.
DIRECTORY = Path("/tmp/pytest-kopt")  # noqa: S108 - sticky, and nothing is read from the files
#: What is entered while a lock is waited for.
Waiting = Callable[[], AbstractContextManager[None]]


def timing_lock(device: str, waiting: Waiting = nullcontext) -> AbstractContextManager[None]:
    """Hold the host-wide lock of a device (its UUID, or "cpu") while timing on it."""
    return _held(device, fcntl.LOCK_EX, waiting)


def checking_lock(device: str, waiting: Waiting = nullcontext) -> AbstractContextManager[None]:
    """Share a GPU with other checks while nobody times on it; the CPU has room during a timing."""
    return nullcontext() if device == "cpu" else _held(device, fcntl.LOCK_SH, waiting)


@contextmanager
def _held(name: str, how: int, waiting: Waiting) -> Iterator[None]:
    # Timings that wait keep checks out: those share, and could keep a timing out for good. All that
    # wait come before the next check: what a process loads at first, it then loads beside others.
    turn, descriptor = open_lock(f"{name}.turn"), open_lock(name)
    times = how == fcntl.LOCK_EX
    try:
        with waiting():
            fcntl.flock(turn, fcntl.LOCK_SH if times else fcntl.LOCK_EX)
            try:
                fcntl.flock(descriptor, how)
            finally:
                fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # A process forked meanwhile has the descriptor too: closing ours would not be enough.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(turn)
        os.close(descriptor)


def open_lock(name: str, *, create: bool = True) -> int:
    """Return a descriptor of a lock file for every user of the host; OSError where it is absent."""
    path, flags = DIRECTORY / f"{name}.lock", os.O_RDONLY | os.O_NOFOLLOW
    # O_CREAT on a file of another user is refused in a sticky directory.
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        DIRECTORY.mkdir()
        DIRECTORY.chmod(0o1777)
    return os.open(path, flags | os.O_CREAT, 0o644)
