"""A process that was started to run kernel code: its channel, its output, and its end.

It may be an interpreter of another virtual environment, with another torch or Triton.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Protocol

from pytest_kopt.cases.protocol import Order
from pytest_kopt.cases.replies import Reply
from pytest_kopt.errors import BadInput
from pytest_kopt.libraries import session_path
from pytest_kopt.process_tree import end_descendants
from pytest_kopt.processes.channel import Channel, read_reply

#: How the folders for what a process writes are called, before the id of who started it.
SCRATCH = "kopt-scratch-"
_OPTION = "--kopt-base-python"
_PROBE = """\
import json, sys
from importlib.metadata import version
import pytest_kopt.processes.served, torch
found = {"python": sys.version.split()[0], "torch": torch.__version__, "path": sys.path[1:]}
try:
    import triton
    found["triton"] = triton.__version__
except ImportError:
    pass
print(json.dumps({**found, "pytest-kopt": version("pytest-kopt")}))
"""
#: What would lead another interpreter into this one's packages.
_OURS = frozenset({"VIRTUAL_ENV", "PYTHONHOME", "__PYVENV_LAUNCHER__"})


class Process(Protocol):
    """A process, as a part of `subprocess.Popen`, whatever its parent is."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None before the end was waited for."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; `subprocess.TimeoutExpired`."""

    def kill(self) -> None: ...


def sweep_group(pid: int) -> None:
    """End what is left of a process's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Launched:
    """A started process, the channel to it, the file that takes its output, and its scratch.

    It leads a process group of its own and adopts orphans, so that what kernel code starts or forks
    ends with it: `sweep` ends that group, given the process's id. The scratch folder goes with the
    process; None where that is another host's.
    """

    process: Process
    channel: Channel[Order, Reply]
    log: IO[bytes]
    scratch: Path | None = None
    sweep: Callable[[int], None] = sweep_group

    def kill(self) -> None:
        if self.scratch is not None and self.process.returncode is None:
            end_descendants(self.process.pid)
        self.sweep(self.process.pid)
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Let go of a process that has ended: its channel, its output, and what it left running."""
        self.sweep(self.process.pid)
        self.channel.close()
        self.log.close()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of a channel, a log and a scratch folder: `their` ends go to the process."""

    ours: Channel[Order, Reply]
    their_reader: int
    their_writer: int
    log: IO[bytes]
    scratch: Path

    @classmethod
    def make(cls) -> Ends:
        """Open two pipes and a log, and make a folder."""
        to_us, to_them = os.pipe(), os.pipe()
        channel: Channel[Order, Reply] = Channel(
            Connection(to_us[0], writable=False),
            Connection(to_them[1], readable=False),
            read_reply,
        )
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-")).resolve()
        return cls(channel, to_them[0], to_us[1], log, scratch)

    def hand_over(self, process: Process) -> Launched:
        """Close what the process has by now, and return it."""
        self._close_theirs()
        return Launched(process, self.ours, self.log, self.scratch)

    def drop(self) -> None:
        """Close everything: there is no process."""
        self._close_theirs()
        self.ours.close()
        self.log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _close_theirs(self) -> None:
        os.close(self.their_reader)
        os.close(self.their_writer)


def boot(entry: str, python: Path | None = None) -> list[str]:
    """Return the command that runs `package.module:function` of this very plugin.

    The package's own parent comes first on the path, whatever else is installed. Another
    interpreter runs the plugin that it has.
    """
    module, _, function = entry.partition(":")
    if python is not None:
        return [str(python), "-c", f"from {module} import {function}; {function}()"]
    # Python puts the current folder first, whose files may have the names of libraries.
    path = f"import sys; sys.path[:1] = [{str(Path(__file__).parents[2])!r}]"
    return [sys.executable, "-c", f"{path}; from {module} import {function}; {function}()"]


def interpreter(env: Mapping[str, str], directory: str, python: Path | None = None) -> Launched:
    """Start a fresh interpreter, this one's own or `python`, that waits for orders."""
    ends = Ends.make()
    descriptors = (ends.their_reader, ends.their_writer)
    arguments = (*map(str, descriptors), str(ends.scratch))
    process = subprocess.Popen(
        [*boot("pytest_kopt.processes.served:main", python), *arguments],
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=ends.log,
        stderr=ends.log,
        pass_fds=descriptors,
        start_new_session=True,
    )
    return ends.hand_over(process)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Starts processes under another interpreter; `versions` are what it has.

    The entries of this process's path below `root` come first there: the project is the same.
    """

    python: Path
    root: Path
    versions: Mapping[str, str]
    path: Sequence[str]
    why_fresh: str = ""

    @classmethod
    def at(cls, python: Path, root: Path) -> Toolchain:
        """Ask an interpreter what it has.

        BadInput where it does not start, lacks pytest-kopt or torch, or has another major version.
        """
        try:
            process = subprocess.run(
                [python, "-c", _PROBE],
                env=_environment(),
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise BadInput(f"{python}: {error.strerror}", where=_OPTION) from None
        fix = f"use an interpreter that has pytest-kopt {version('pytest-kopt')} and torch"
        if process.returncode:
            last = (process.stderr.strip() or f"status {process.returncode}").splitlines()[-1]
            raise BadInput(f"{python} cannot run cases: {last}", where=_OPTION, fix=fix)
        versions = json.loads(process.stdout.splitlines()[-1])
        path, ours, theirs = (
            versions.pop("path"),
            version("pytest-kopt"),
            versions["pytest-kopt"],
        )
        if ours.partition(".")[0] != theirs.partition(".")[0]:
            raise BadInput(f"{python} has pytest-kopt {theirs}", where=_OPTION, fix=fix)
        return cls(python, root, versions, path)

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        return f"{self.python} ({versions})"

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of this process, but for what names its own packages."""
        return _environment()

    @property
    def sys_path(self) -> Sequence[str]:
        """The folders that processes there import from: the project's, then its packages'."""
        below = [
            p
            for p in session_path()
            if Path(p or ".").resolve().is_relative_to(self.root.resolve())
        ]
        prefix = Path(sys.prefix).resolve()
        ours = [p for p in below if not Path(p or ".").resolve().is_relative_to(prefix)]
        return [*ours, *(entry for entry in self.path if entry not in ours)]

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        return interpreter(env, directory, self.python)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OURS}
