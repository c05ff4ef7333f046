"""One measurement at a time on one device of this host, whoever runs it."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def timing_lock(device: str) -> Iterator[None]:
    """Hold the host-wide lock of a device (its UUID, or "cpu") while timing on it.

    The lock is the operating system's, so it goes with the process that holds it.
    """
    with FileLock(lock_directory() / f"{device}.lock"):
        yield


def lock_directory() -> Path:
    """Return this user's directory of device locks, created when absent."""
    directory = Path(tempfile.gettempdir()) / f"pytest-kopt-{getpass.getuser()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if os.lstat(directory).st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to somebody else")
    return directory
