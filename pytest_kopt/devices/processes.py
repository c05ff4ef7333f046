"""Processes seen from outside: the owners of those on a GPU, and CPU time and memory of another.

Kernel code shares its process with whatever measures there, and can change all that runs in it. The
other process cannot forge what is seen here: Linux counts the CPU time, and a process that is
stopped writes no more to its memory. On other systems, and of processes of other hosts, nothing is
seen.
"""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path

from pytest_kopt.devices import lock
from pytest_kopt.devices.lock import open_lock
from pytest_kopt.process_tree import above, down, is_below, stat_of

_PROC = Path("/proc")
_TRIES = 20
#: Where /proc/PID/stat has the time of ended children, in user code and in the system, from the
#: state on, and the unit there.
_OF_CHILDREN, _TICK_MS = slice(13, 15), 1e3 / os.sysconf("SC_CLK_TCK")
#: Seconds until a process that was told to stop has stopped.
_STOPPING_SECONDS = 1.0
#: So long a process may take to wait for an order when it has answered one.
_RESTING_SECONDS = 1e-3
#: The state of a thread that runs, or could.
_RUNS = b"R"


def announce(device: str) -> None:
    """Let other sessions of kopt know that this process takes turns on a GPU; may be repeated."""
    pid = os.getpid()
    _hold(f"process-{pid}", fcntl.LOCK_EX, pid)
    _hold(f"{device}.users", fcntl.LOCK_SH, pid)


@functools.cache
def _hold(name: str, how: int, pid: int) -> int:
    """Return the descriptor of a lock that is held as long as this process, `pid`, lives."""
    descriptor = open_lock(name)
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Somebody looks whether we are here; only ever for a moment.
            time.sleep(0.01)
    return descriptor


def is_announced(pid: int) -> bool:
    """Say whether a process announced itself and is alive."""
    return _is_held(f"process-{pid}", fcntl.LOCK_SH)


def take_turns_on(device: str) -> bool:
    """Say whether any process announced itself on a device and is alive."""
    return _is_held(f"{device}.users", fcntl.LOCK_EX)


def _is_held(name: str, how: int) -> bool:
    try:
        descriptor = open_lock(name, create=False)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def foreign(pids: Iterable[int], root: int | None = None) -> list[int]:
    """Return those pids that are neither below `root` (this process) nor a kopt session's."""
    root = os.getpid() if root is None else root
    return sorted(pid for pid in set(pids) if not is_below(pid, root) and not is_announced(pid))


def is_here(pid: int) -> bool:
    """Say whether a pid is one of this pid namespace: a container may be told its host's."""
    return (_PROC / str(pid)).exists()


def name_of(pid: int) -> str:
    """Return a process's name as people know it, "" when it is not to be seen from here."""
    try:
        return (_PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def in_the_way() -> str:
    """Say which other session holds a device that a process of this one waits for, "" for none.

    The system lists who waits for a lock below who holds it, both with the lock's number.
    """
    holders: dict[str, int] = {}
    waiting: set[str] = set()
    with suppress(OSError, ValueError):
        ours = {str(path.stat().st_ino) for path in lock.DIRECTORY.glob("*.lock")}
        for line in (_PROC / "locks").read_text(encoding="utf-8").splitlines():
            number, *words = line.replace("->", "").split()
            if words[0] == "FLOCK" and words[4].rpartition(":")[2] in ours:
                if "->" not in line:
                    holders[number] = int(words[3])
                elif is_below(int(words[3]), os.getpid()):
                    waiting.add(number)
    pids = [holders[number] for number in waiting if number in holders]
    strangers = [pid for pid in pids if is_here(pid) and not is_below(pid, os.getpid())]
    if not strangers:
        return ""
    sessions = [pid for pid in above(strangers[0]) if b"pytest" in _command(pid)]
    first = [pid for pid in sessions if name_of(pid).startswith(("python", "pytest"))]
    pid = first[-1] if first else strangers[0]
    since = datetime.fromtimestamp((_PROC / str(pid)).stat().st_ctime)
    return f"process {pid} ({name_of(pid)}, since {since:%H:%M}) measures on this device"


def _command(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def _clock_ms(pid: int) -> float:
    """Return the time of a process on processors; OSError where the system does not tell it."""
    # clock_getcpuclockid(3) as Linux computes it.
    return time.clock_gettime((~pid << 3) | 2) * 1e3


def _has_clock(pid: int) -> bool:
    with suppress(OSError, AttributeError):
        return _clock_ms(pid) >= 0
    return False


class Inspected:
    """A process of this host, by its id, which has just been started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        #: Whether the system tells its time, which no code of a kernel has a say in yet.
        self._has_clock = _has_clock(pid)
        #: By process, the time that it had used when this was asked last, and that of ended ones.
        self._used: dict[int, float] = {}
        self._of_ended = 0.0
        self._total = 0.0
        #: The processes that were told to stop, and for how many contexts.
        self._stopped: set[int] = set()
        self._holders = 0

    def cpu_ms(self) -> float | None:
        """Return the processor time of all its threads, and of what it started, in ms.

        They stand still meanwhile, or wait: the system tells of one that runs what it had used when
        it was interrupted last. The clock only grows: what has ended since this was asked last
        stays counted. None where the system did not tell it when the process was started; OSError
        where it is gone or does not stop.
        """
        if not self._has_clock:
            return None
        # To stop a process that waits would have its next block begin with a cold cache.
        until = time.monotonic() + _RESTING_SECONDS
        while not (is_at_rest := self._waits()) and time.monotonic() < until:
            time.sleep(_RESTING_SECONDS / 20)
        with nullcontext() if is_at_rest else self.stopped():
            return self._read_clocks()

    def _waits(self) -> bool:
        """Say whether no thread of it, and of what it started, runs or could run."""
        for pid in down(self.pid):
            tasks = _PROC / str(pid) / "task"
            # One that ends meanwhile runs no more.
            with suppress(OSError):
                for task in os.listdir(tasks):
                    with suppress(OSError):
                        stat = (tasks / task / "stat").read_bytes()
                        if _RUNS in stat.rpartition(b")")[2][:3]:
                            return False
        return True

    def _read_clocks(self) -> float:
        used, of_ended = dict[int, float](), 0.0
        for pid in down(self.pid):
            with suppress(OSError, AttributeError):
                # Of ended children the system keeps ticks, and of those alone that were waited for.
                of_ended += sum(map(int, stat_of(pid)[_OF_CHILDREN])) * _TICK_MS
                used[pid] = _clock_ms(pid)
        if self.pid not in used:
            raise ProcessLookupError(f"the processor time of process {self.pid} is not told")
        by_each = sum(max(0.0, ms - self._used.get(pid, 0.0)) for pid, ms in used.items())
        in_all = sum(used.values()) + of_ended - sum(self._used.values()) - self._of_ended
        self._total += max(by_each, in_all)
        self._used, self._of_ended = used, of_ended
        return self._total

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Have it and what it started stand still; OSError where it does not.

        In another such context it goes on when that is left.
        """
        self._holders += 1
        try:
            for pid in down(self.pid):
                self._stopped.add(pid)
                # A child that has ended meanwhile stands still.
                with nullcontext() if pid == self.pid else suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            until = time.monotonic() + _STOPPING_SECONDS
            while stat_of(self.pid)[0] not in "Tt":
                if time.monotonic() > until:
                    raise TimeoutError("it does not stop")
                # It may need the core that this one has.
                time.sleep(_RESTING_SECONDS / 20)
            yield
        finally:
            self._holders -= 1
            while self._stopped and not self._holders:
                with suppress(OSError):
                    os.kill(self._stopped.pop(), signal.SIGCONT)

    def read(self, address: int, size: int) -> bytes:
        """Return what is in its memory; OSError where nothing is mapped, or it must not be read."""
        try:
            with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
                content = os.pread(memory.fileno(), size, address)
        except (OverflowError, MemoryError) as error:
            raise OSError(f"{size} bytes at {address}: {type(error).__name__}") from None
        if len(content) < size:
            raise OSError(f"{len(content)} of {size} bytes can be read")
        return content

    def write(self, address: int, content: bytes) -> None:
        """Write into its memory; OSError where nothing is mapped, or it must not be written."""
        try:
            with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
                written = os.pwrite(memory.fileno(), content, address)
        except OverflowError:
            raise OSError(f"there is no address {address}") from None
        if written < len(content):
            raise OSError(f"{len(content)} bytes cannot be written")

    def is_readable(self) -> bool:
        """Say whether this process may read the memory of that one."""
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8").splitlines():
                addresses, permissions, *_ = line.split()
                if permissions.startswith("r"):
                    return bool(self.read(int(addresses.partition("-")[0], 16), 1))
        return False
