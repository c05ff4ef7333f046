"""The lock on a campaign: one process at a time, which can be named."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_kopt.campaign.layout import Layout
from pytest_kopt.clock import now
from pytest_kopt.errors import BadInput


@contextmanager
def hold(layout: Layout) -> Iterator[None]:
    """Hold a campaign for this process; BadInput names the one that holds it.

    The lock is the operating system's: it goes with the process, however that ends.
    """
    owner = layout.directory / ".lock-owner"
    lock = FileLock(layout.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadInput(
            f"campaign {layout.name!r} is in use by {_name_in(owner)}",
            legal="one session at a time",
        ) from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()} since {now()}")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _name_in(owner: Path) -> str:
    try:
        return owner.read_text()
    except OSError:  # it is about to write it, or has just gone
        return "another process"
