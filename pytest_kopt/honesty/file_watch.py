"""Files that anybody opens: Linux's inotify hears what no audit event of Python's tells.

A library in another language maps a file, or a process that a kernel started reads it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from contextlib import suppress

#: Of inotify(7).
_IN_OPEN, _IN_NONBLOCK, _IN_CLOEXEC = 0x20, os.O_NONBLOCK, os.O_CLOEXEC
#: An event: watch, mask, cookie and length of a name, which files do not have.
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16


class FileWatch:
    """Watches single files from its making on; none where the system has no inotify."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._names: dict[int, str] = {}
        self._opened: set[str] = set()
        self._descriptor = -1
        with suppress(AttributeError, OSError):
            libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
            for path in paths if self._descriptor >= 0 else ():
                watch = libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_OPEN)
                if watch >= 0:
                    self._names[watch] = path

    def opened(self) -> frozenset[str]:
        """Return the files that were opened since, by whatever process."""
        with suppress(OSError):
            while self._names and (events := os.read(self._descriptor, _READ_BYTES)):
                for watch, *_ in _EVENT.iter_unpack(events):
                    self._opened.add(self._names.get(watch, ""))
        return frozenset(self._opened - {""})
