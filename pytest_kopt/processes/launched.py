"""A process that was started to run kernel code: its channel, its output, and its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from pytest_kopt.cases.protocol import Order
from pytest_kopt.cases.replies import Reply
from pytest_kopt.process_tree import end_descendants, is_left_behind
from pytest_kopt.processes.channel import Channel, read_reply

#: How the folders for what a process writes are called, before the id of who started it.
_SCRATCH = "kopt-scratch-"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that goes with this context, or with the next one after a process's end."""
    for path in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(FileNotFoundError):  # Another session has removed its own.
            is_ours = path.lstat().st_uid == os.getuid()
            if is_ours and is_left_behind(path.name, _SCRATCH):
                shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f"{_SCRATCH}{os.getpid()}-", ignore_cleanup_errors=True
    ) as directory:
        yield Path(directory).resolve()


class Process:
    """A process that another one started and tells the end of, as `subprocess.Popen` has it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        #: The exit status, negative for a signal; None before the end was waited for.
        self.returncode: int | None = None
        self._waiting = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; `subprocess.TimeoutExpired`."""
        with self._waiting:
            if self.returncode is None:
                self.returncode = self._status(timeout)
            return self.returncode

    def kill(self) -> None:
        raise NotImplementedError

    def _status(self, timeout: float | None) -> int:
        raise NotImplementedError


def sweep_group(pid: int) -> None:
    """End what is left of a process's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Launched:
    """A started process, the channel to it, the file that takes its output, and its scratch.

    It leads a process group of its own and adopts orphans, so that what kernel code starts or forks
    ends with it. The scratch folder goes with the process; None where that is another host's, whose
    agent sweeps that group.
    """

    process: subprocess.Popen[bytes] | Process
    channel: Channel[Order, Reply]
    log: IO[bytes]
    scratch: Path | None = None

    def kill(self) -> None:
        if self.scratch is not None:
            if self.process.returncode is None:
                end_descendants(self.process.pid)
            sweep_group(self.process.pid)
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Let go of a process that has ended: its channel, its output, and what it left running."""
        if self.scratch is not None:
            sweep_group(self.process.pid)
            shutil.rmtree(self.scratch, ignore_errors=True)
        self.channel.close()
        self.log.close()


def launch(
    start: Callable[[int, int, IO[bytes], Path], subprocess.Popen[bytes] | Process],
) -> Launched:
    """Open two pipes and a log, make a scratch folder, and have a process started with them.

    `start` gets the ends that the process reads from and writes to. If it raises, all is closed.
    """
    to_us, to_them = os.pipe(), os.pipe()
    channel: Channel[Order, Reply] = Channel(
        Connection(to_us[0], writable=False), Connection(to_them[1], readable=False), read_reply
    )
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
    scratch = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-")).resolve()
    try:
        return Launched(start(to_them[0], to_us[1], log, scratch), channel, log, scratch)
    except BaseException:
        channel.close()
        log.close()
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    finally:
        os.close(to_them[0])
        os.close(to_us[1])


def boot(entry: str) -> list[str]:
    """Return the command that runs `package.module:function` of this very plugin.

    The package's own parent comes first on the path, whatever else is installed.
    """
    module, _, function = entry.partition(":")
    # Python puts the current folder first, whose files may have the names of libraries.
    path = f"import sys; sys.path[:1] = [{str(Path(__file__).parents[2])!r}]"
    return [sys.executable, "-c", f"{path}; from {module} import {function}; {function}()"]


def interpreter(env: Mapping[str, str], directory: str) -> Launched:
    """Start a fresh interpreter that waits for orders."""

    def start(reader: int, writer: int, log: IO[bytes], scratch: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*boot("pytest_kopt.processes.served:main"), str(reader), str(writer), str(scratch)],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(reader, writer),
            start_new_session=True,
        )

    return launch(start)
