"""Facts that one process sees of another without its help: its CPU time, and its memory.

Kernel code shares its process with whatever measures there, and can change all that runs in it. The
other process cannot forge them: Linux counts the CPU time, and a process that is stopped writes no
more to its memory. On other systems, and of processes of other hosts, nothing is seen.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_kopt.process_tree import down

#: Seconds until a process that was told to stop has stopped.
_STOPPING_SECONDS = 1.0


class Unseen(Exception):
    """The memory of a process cannot be read there; the message says why."""


class Inspected:
    """A process of this host, by its id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cpu_ms(self) -> float | None:
        """Return the processor time of all its threads, and of what it started, in ms.

        None where the system does not tell it.
        """
        total, is_there = 0.0, False
        for pid in down(self.pid):
            with suppress(OSError, AttributeError):
                # clock_getcpuclockid(3) as Linux computes it: the clock that counts time on
                # processors.
                total += time.clock_gettime((~pid << 3) | 2) * 1e3
                is_there |= pid == self.pid
        return total if is_there else None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Have it and what it started stand still; Unseen where it does not."""
        stopped: list[int] = []
        try:
            self._stop(stopped)
            yield
        finally:
            for pid in stopped:
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)

    def _stop(self, stopped: list[int]) -> None:
        try:
            for pid in down(self.pid):
                stopped.append(pid)
                os.kill(pid, signal.SIGSTOP)
            until = time.monotonic() + _STOPPING_SECONDS
            while not self._stands_still():
                if time.monotonic() > until:
                    raise Unseen("it does not stop")
        except OSError as error:
            raise Unseen(str(error)) from None

    def _stands_still(self) -> bool:
        with open(f"/proc/{self.pid}/stat") as file:
            stat = file.read()
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def read(self, address: int, size: int) -> bytes:
        """Return what is in its memory; Unseen where nothing is mapped, or it must not be read."""
        try:
            with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
                content = os.pread(memory.fileno(), size, address)
        except (OSError, OverflowError, MemoryError) as error:
            raise Unseen(str(error)) from None
        if len(content) < size:
            raise Unseen(f"{len(content)} of {size} bytes can be read")
        return content

    def is_readable(self) -> bool:
        """Say whether this process may read the memory of that one."""
        with suppress(OSError, ValueError, Unseen):
            for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
                addresses, permissions, *_ = line.split()
                if permissions.startswith("r"):
                    return bool(self.read(int(addresses.partition("-")[0], 16), 1))
        return False
