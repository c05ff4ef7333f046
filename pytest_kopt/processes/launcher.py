"""The start of processes that run kernel code: forks of a warm parent, or interpreters.

The parent (`forking`) has imported what takes long, torch first of all. A fork of it begins where
an interpreter of its own would be after seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import pytest

from pytest_kopt.devices.vendor import MASKS
from pytest_kopt.libraries import session_path
from pytest_kopt.processes.forking import STATUS
from pytest_kopt.processes.launched import Launched, boot, interpreter, launch, sweep_group

#: What a fork may have otherwise than its parent: variables that are read where they are used. What
#: a library reads while it is loaded has to be there when the parent starts.
_OWN = frozenset({*MASKS, "PYTHONPATH", "TORCH_EXTENSIONS_DIR"})
#: Where Linux shows a process's threads and open files.
_TASKS = Path("/proc/self/task")
#: numpy's matrix library and pyarrow's allocator start threads at import, and what is forked must
#: have just one. Idle threads of waiting siblings would take the CPU from what is timed.
_AT_IMPORT = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_WAIT_POLICY": "PASSIVE",
}
#: So long the parent may take to end its forks: one that imports does not listen.
_ENDING_SECONDS = 1.0


class Starter(Protocol):
    """The starter of processes on a host: this one's launcher, or another host's."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of processes there, before a session adds to it."""

    @property
    def sys_path(self) -> Sequence[str]:
        """The folders that processes there import from."""

    @property
    def why_fresh(self) -> str:
        """Why processes were not forked, "" as long as they were."""

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        """Return a process with this environment, all of it, that waits for orders."""


class Launcher:
    """Starts processes.

    Until `warm` was called, and where a fork is not possible, each is a fresh interpreter: slower,
    and otherwise the same.
    """

    def __init__(self) -> None:
        self.environ: Mapping[str, str] = os.environ
        self._first_environ = dict(os.environ)
        self._why_fresh = ""
        self._parent: WarmParent | None = None

    @property
    def sys_path(self) -> Sequence[str]:
        """The session's folders, which this process may give up after this was made."""
        return session_path()

    @property
    def why_fresh(self) -> str:
        """The reason why the parent cannot be used, "" as long as it can."""
        if self._parent is not None and not self._why_fresh:
            self._why_fresh = self._parent.why_ended()
        return self._why_fresh

    def forget_variables(self) -> None:
        """Start processes with the environment of this one as it was when this was made."""
        self.environ = self._first_environ

    def warm(self, env: Mapping[str, str], directory: str, modules: Sequence[str] = ()) -> None:
        """Start the parent that others are forked from; `env` comes on top of our own.

        It imports what every case needs, and `modules`. One that was started before is kept, unless
        the environment has changed since.
        """
        self._why_fresh = why_none()
        if self._why_fresh:
            return
        environment = {**self.environ, **env}
        if self._parent is not None and not self._parent.fits(environment, directory):
            self._parent.end()
            self._parent = None
        self._parent = self._parent or WarmParent(environment, directory)
        if modules:
            self._parent.load(modules)

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        forked = None
        if self._parent is not None and not self.why_fresh:
            try:
                forked = self._parent.fork(env, directory)
            except ChildProcessError as error:
                # What it has forked goes on, and so the parent stays until the end.
                self._why_fresh = str(error)
        return forked or interpreter(env, directory)

    def end(self) -> None:
        """End the parent, and its forks; safe to repeat."""
        if self._parent is not None:
            self._parent.end()
            self._parent = None


_LAUNCHER: pytest.StashKey[Launcher] = pytest.StashKey()


def launcher_of(config: pytest.Config) -> Launcher:
    """Return the session's launcher, which ends with the session at the latest."""
    if _LAUNCHER not in config.stash:
        config.stash[_LAUNCHER] = launcher = Launcher()
        config.add_cleanup(launcher.end)
    return config.stash[_LAUNCHER]


def why_none() -> str:
    """Return what this system lacks for forks, "" where it has all."""
    if not hasattr(os, "fork"):
        return "this system does not fork processes"
    if not _TASKS.is_dir():
        return f"this system has no {_TASKS}, by which a fork's safety is judged"
    return ""


class WarmParent:
    """The process that forks, alive until `end`.

    Forks are asked for from any thread. ChildProcessError, which says why it cannot be used, is for
    good.
    """

    def __init__(self, env: Mapping[str, str], directory: str) -> None:
        """Start it with this environment; it imports while others go on."""
        self._started_with, self._directory = dict(env), directory
        # What it starts with stays readable in every fork; pytest's options name seeds and records.
        readable = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
        self._env = {**_AT_IMPORT, **readable}
        self._asking = threading.Lock()
        self._has_forked = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*boot("pytest_kopt.processes.forking:main"), str(theirs.fileno())],
                cwd=directory,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, env: Mapping[str, str], directory: str) -> Launched | None:
        """Return a fork with this environment that waits for orders.

        None where the environment needs an interpreter of its own. Raises ChildProcessError.
        """
        environment = {**_AT_IMPORT, **env}
        changed = {name for name, _ in environment.items() ^ self._env.items()}
        if any(name not in _OWN and not name.startswith("PYTEST_") for name in changed):
            return None
        changes = {name: environment.get(name) for name in changed}

        def start(reader: int, writer: int, log: IO[bytes], scratch: Path) -> Fork:
            request = {"env": changes, "directory": directory, "scratch": str(scratch)}
            status, their_status = os.pipe()
            try:
                descriptors = [reader, writer, log.fileno(), their_status]
                reply = self._ask(json.dumps(request).encode(), descriptors)
            except BaseException:
                # Ctrl-C comes while one waits for the parent, as a rule.
                os.close(status)
                raise
            finally:
                os.close(their_status)
            self._has_forked = True
            return Fork(reply["pid"], status)

        return launch(start)

    def fits(self, env: Mapping[str, str], directory: str) -> bool:
        """Say whether one that is started now would be no other."""
        environments = (
            {k: v for k, v in e.items() if k[:7] != "PYTEST_"} for e in (env, self._started_with)
        )
        return directory == self._directory and next(environments) == next(environments)

    def load(self, modules: Sequence[str]) -> None:
        """Have it import more before it forks again; a module that is not there is left out."""
        with self._asking, contextlib.suppress(ConnectionError):
            self._control.send(json.dumps(list(modules)).encode())

    def why_ended(self) -> str:
        """Return that the parent has ended and how, "" while it is there."""
        try:
            code = self._process.wait(0)
        except subprocess.TimeoutExpired:
            return ""
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"the parent of its processes ended ({how})"

    def end(self) -> None:
        """End the parent, and with it whatever it forked."""
        # It ends its forks, and then itself, unless it is busy.
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_SECONDS if self._has_forked else 0)
        sweep_group(self._process.pid)
        self._process.kill()
        self._process.wait()

    def _ask(self, order: bytes, descriptors: list[int]) -> dict[str, Any]:
        answer = b""
        with self._asking, contextlib.suppress(ConnectionError):
            socket.send_fds(self._control, [order], descriptors)
            answer = self._control.recv(4096)
        if not answer:
            self._process.wait()
            raise ChildProcessError(self.why_ended())
        reply: dict[str, Any] = json.loads(answer)
        if "unfit" in reply:
            raise ChildProcessError(reply["unfit"])
        return reply


class Fork:
    """A process that the parent forked, as `subprocess.Popen` would have it.

    The parent waits for it and writes its status; a parent that is gone takes its forks along.
    """

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        #: Whether it ended with its parent, which tells nothing of what it ran.
        self.is_orphan = False
        self._status = status
        self._waiting = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; `subprocess.TimeoutExpired`."""
        with self._waiting:
            if self.returncode is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
                status = os.read(self._status, STATUS.size)
                os.close(self._status)
                self.is_orphan = not status
                self.returncode = STATUS.unpack(status)[0] if status else -signal.SIGKILL
            return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
