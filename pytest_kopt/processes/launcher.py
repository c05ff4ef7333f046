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
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from pytest_kopt.devices.vendor import MASKS
from pytest_kopt.libraries import session_path
from pytest_kopt.processes.forking import STATUS
from pytest_kopt.processes.launched import Launched, Process, boot, interpreter, launch, sweep_group

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


class Launcher:
    """Starts processes: forks of a warm parent once `warm` was called.

    Each is a fresh interpreter if a fork is not possible: slower, and otherwise the same.
    Forks may be asked for from any thread; an interpreter ends with the thread that started it.
    `warm` and `end` are called by the session's thread.
    """

    def __init__(self) -> None:
        self.environ: Mapping[str, str] = os.environ
        self._first_environ = dict(os.environ)
        self._why_fresh = ""
        self._parent: subprocess.Popen[bytes] | None = None
        #: What the parent was started with.
        self._env: Mapping[str, str] = {}
        self._directory = ""
        self._asking = threading.Lock()
        self._has_forked = False

    @property
    def sys_path(self) -> Sequence[str]:
        """The session's folders, which this process may give up after this was made."""
        return session_path()

    @property
    def why_fresh(self) -> str:
        """The reason why the parent cannot be used, "" as long as it can."""
        if self._parent is not None and not self._why_fresh:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._why_fresh = _ended(self._parent.wait(0))
        return self._why_fresh

    def forget_variables(self) -> None:
        """Start processes with the environment of this one as it was when this was made."""
        self.environ = self._first_environ

    def warm(self, env: Mapping[str, str], directory: str, modules: Sequence[str] = ()) -> None:
        """Start the parent that others are forked from; `env` comes on top of our own.

        It imports what every case needs, and `modules`; one that is not there is left out. A parent
        that was started before is kept, unless the environment has changed since.
        """
        self._why_fresh = why_none()
        if self._why_fresh:
            return
        variables = {**_AT_IMPORT, **self.environ, **env}
        # What it starts with stays readable in every fork; pytest's options name seeds and records.
        readable = {k: value for k, value in variables.items() if not k.startswith("PYTEST_")}
        if (readable, directory) != (self._env, self._directory):
            self.end()
        if self._parent is None:
            self._start_parent(readable, directory)
        if modules:
            with self._asking, contextlib.suppress(ConnectionError):
                self._control.send(json.dumps(list(modules)).encode())

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        environment = {**_AT_IMPORT, **env}
        changed = {name for name, _ in environment.items() ^ self._env.items()}
        # Any other variable needs an interpreter of its own.
        can_fork = all(name in _OWN or name.startswith("PYTEST_") for name in changed)
        parent = self._parent
        if parent is not None and can_fork and not self.why_fresh:
            changes = {name: environment.get(name) for name in changed}
            try:
                return launch(partial(self._fork, parent, changes, directory))
            except ChildProcessError as error:
                # What it has forked goes on, and so the parent stays until the end.
                self._why_fresh = str(error)
        return interpreter(env, directory)

    def end(self) -> None:
        """End the parent, and with it whatever it forked; safe to repeat."""
        if self._parent is None:
            return
        # It ends its forks, and then itself, unless it is busy.
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._parent.wait(_ENDING_SECONDS if self._has_forked else 0)
        sweep_group(self._parent.pid)
        self._parent.kill()
        self._parent.wait()
        self._parent = None

    def _start_parent(self, env: Mapping[str, str], directory: str) -> None:
        """Start it with this environment; it imports while others go on."""
        self._env, self._directory, self._has_forked = env, directory, False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._parent = subprocess.Popen(
                [*boot("pytest_kopt.processes.forking:main"), str(theirs.fileno())],
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def _fork(
        self,
        parent: subprocess.Popen[bytes],
        changes: Mapping[str, str | None],
        directory: str,
        reader: int,
        writer: int,
        log: IO[bytes],
        scratch: Path,
    ) -> Fork:
        """Have the parent fork; ChildProcessError, which says why it cannot be used, is for good.

        The fork's environment has `changes` to the parent's.
        """
        request = {"env": changes, "directory": directory, "scratch": str(scratch)}
        status, their_status = os.pipe()
        try:
            descriptors = [reader, writer, log.fileno(), their_status]
            pid = self._ask(parent, json.dumps(request).encode(), descriptors)
        except BaseException:
            # Ctrl-C comes while one waits for the parent, as a rule.
            os.close(status)
            raise
        finally:
            os.close(their_status)
        self._has_forked = True
        return Fork(pid, status)

    def _ask(self, parent: subprocess.Popen[bytes], order: bytes, descriptors: list[int]) -> int:
        answer = b""
        with self._asking, contextlib.suppress(ConnectionError):
            socket.send_fds(self._control, [order], descriptors)
            answer = self._control.recv(4096)
        if not answer:
            # The session may have ended it meanwhile, and have none now.
            raise ChildProcessError(_ended(parent.wait()))
        reply = json.loads(answer)
        if "unfit" in reply:
            raise ChildProcessError(reply["unfit"])
        return int(reply["pid"])


def _ended(code: int) -> str:
    """Return how a parent ended."""
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return f"the parent of its processes ended ({how})"


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


class Fork(Process):
    """A process that the parent forked.

    The parent waits for it and writes its status; a parent that is gone takes its forks along.
    """

    def __init__(self, pid: int, status: int) -> None:
        super().__init__(pid)
        #: Whether it ended with its parent, which tells nothing of what it ran.
        self.is_orphan = False
        self._descriptor = status

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _status(self, timeout: float | None) -> int:
        if not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        status = os.read(self._descriptor, STATUS.size)
        os.close(self._descriptor)
        self.is_orphan = not status
        return int(STATUS.unpack(status)[0]) if status else -signal.SIGKILL
