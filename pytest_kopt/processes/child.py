"""Child processes: each runs cases, so that kernel code never runs in the deciding process."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.protocol import Begin, Order, StopWorker
from pytest_kopt.cases.replies import Confined, Reply, why_ended
from pytest_kopt.devices.processes import Inspected
from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import (
    FROM_MANIFEST,
    PATH_OPTIONS,
    SHORT,
    spell_out,
)
from pytest_kopt.processes.isolation import lacking
from pytest_kopt.processes.launcher import Fork, Launcher, launcher_of

if TYPE_CHECKING:
    from pytest_kopt.processes.remote_host import RemoteHost

_Reply = TypeVar("_Reply")

#: After so many deaths of its process a case is given up.
MAX_DEATHS = 2
#: In the report of a case that did not find the memory that it needs on its GPU.
NO_MEMORY = "OutOfMemoryError"
_GRACE_SECONDS = 10
#: So many characters of its output say how a process ended.
_SHOWN = 4000
#: Options with a value that a process which runs cases has no use for, and such settings.
_RECORDS = (*PATH_OPTIONS, "--kopt-campaign")
_SETTINGS = ("kopt_seed=", "kopt_campaign=", "kopt_workspace=", "kopt_policy=")
_OVERRIDE = ("-o", "--override-ini")
_ADDOPTS = "PYTEST_ADDOPTS"
_TIMEOUT, _FATAL = "Timeout (", "Fatal Python error"
#: What processes that run kernel code for a verdict may not read; absent where nothing is refused.
HIDDEN: pytest.StashKey[tuple[Path, ...]] = pytest.StashKey()


def why_open(config: pytest.Config) -> str:
    """Return why kernel code is not kept to its own files and processes, "" where it is."""
    if HIDDEN not in config.stash:
        return "kopt_isolation is off: kernel code may write wherever you may"
    return lacking()


def mover(config: pytest.Config, root: Path, tree: Path) -> Callable[[str], str]:
    """Return what turns a path or node id below a resolved root into the one in a copy of it.

    The root is also known by the name under which pytest was started, when a link leads there.
    """
    named = [path for path in (config.rootpath, *config.rootpath.parents) if path.resolve() == root]

    def moved(text: str) -> str:
        for prefix in map(str, (*named, root)):
            if text == prefix or text.startswith((f"{prefix}{os.sep}", f"{prefix}::")):
                return f"{tree}{text[len(prefix) :]}"
        return text

    return moved


def _without_records(words: Iterable[object], *, short: bool = True) -> list[str]:
    """Return a command's words but for those that name a campaign, a seed or what is written.

    `short` says whether `--summary-csv` is ours.
    """
    remaining: list[str] = []
    spelled = [*map(str, words)]
    if short:
        spell_out(spelled)
    left = iter(spelled)
    for word in left:
        name, equals, value = word.partition("=")
        if name in _RECORDS:
            if not equals:
                next(left, None)
        elif word in _OVERRIDE:
            setting = next(left, "")
            remaining += [] if setting.startswith(_SETTINGS) else [word, setting]
        elif not (name in _OVERRIDE and value.startswith(_SETTINGS)):
            remaining.append(word)
    return remaining


def without_records(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with options of pytest's, if there is one, without those words."""
    words = shlex.split(environ.get(_ADDOPTS, ""))
    return {_ADDOPTS: shlex.join(_without_records(words))} if words else {}


def begin_of(
    config: pytest.Config,
    orders: WorkerOrders,
    args: Sequence[str] | None,
    moved: Callable[[str], str],
    sys_path: Sequence[str],
    **more: Any,
) -> Begin:
    """Return the order that has a worker collect what the session does, or `args` of it alone.

    `more` are further fields of the order.
    """
    short = config.getoption(SHORT, default=...) is ...
    words = _without_records(config.invocation_params.args, short=short)
    return Begin(
        orders,
        sys_path=[moved(entry) for entry in sys_path],
        argv=_without_records(sys.argv, short=short),
        pytest_args=[moved(word) for word in words],
        from_manifest=[moved(word) for word in config.stash.get(FROM_MANIFEST, [])],
        args=None if args is None else [moved(os.path.join(config.rootpath, arg)) for arg in args],
        **more,
    )


class ChildDied(Exception):
    """The process ended before it had done its work; the message says how and shows its log."""


class Child:
    """One child process that runs cases, and the talk with it."""

    def __init__(
        self,
        config: pytest.Config,
        orders: WorkerOrders,
        env: Mapping[str, str],
        args: Sequence[str] | None,
        copy: tuple[Path, Path] | None = None,
        starter: Launcher | RemoteHost | None = None,
    ) -> None:
        """Start the process, a worker; with `copy` it runs in a copy of a root.

        `copy` is the project's root and the copy. `env` comes on top of the environment of the host
        that `starter` (default: the session's launcher) starts it on. `args` are node ids or paths,
        relative to pytest's root or absolute; None: the session's.
        """
        moved = mover(config, *copy) if copy else str
        starter = starter or launcher_of(config)
        env = {**starter.environ, **env}
        if "PYTHONPATH" in env:
            entries = env["PYTHONPATH"].split(os.pathsep)
            env["PYTHONPATH"] = os.pathsep.join(map(moved, entries))
        self._launched = starter.start(env, moved(str(config.invocation_params.dir)))
        hidden = config.stash.get(HIDDEN, None) if orders.decides else None
        if hidden and orders.arms and orders.arms.is_judge:
            # It reads what others hand over, from folders that are not there yet.
            hidden = ()
        self._process, self._channel = self._launched.process, self._launched.channel
        self._inspected = Inspected(self._process.pid)
        hidden_folders = None if hidden is None else [str(path) for path in hidden]
        copied = (str(copy[0]), str(copy[1])) if copy else None
        more = {"hidden": hidden_folders, "copy": copied}
        self.send(begin_of(config, orders, args, moved, starter.sys_path, **more))

    @property
    def reader(self) -> Connection:
        """The object that `multiprocessing.connection.wait` can wait for."""
        return self._channel.reader

    @property
    def inspected(self) -> Inspected | None:
        """The view of it without its help; None where it is another host's."""
        return None if self.scratch is None else self._inspected

    @property
    def scratch(self) -> Path | None:
        """The folder that it may write to, None where it is another host's."""
        return self._launched.scratch

    @property
    def has_died(self) -> bool:
        """Whether ChildDied was raised for this process."""
        return self._process.returncode is not None

    @property
    def is_orphan(self) -> bool:
        return isinstance(self._process, Fork) and self._process.is_orphan

    @property
    def waited_ms(self) -> float:
        """The time that passed here, in ms, from the last order to the last reply."""
        return self._channel.waited_ms

    def receive(self) -> Reply:
        """Return the next reply; ChildDied when the process ended, or sent something else.

        BadInput where its confinement refused something to a plugin, a conftest file or a test.
        """
        try:
            reply = self._channel.receive()
        except (EOFError, OSError):
            raise ChildDied(self._obituary()) from None
        if isinstance(reply, Confined):
            raise BadInput(reply.why)
        return reply

    def expect(self, kind: type[_Reply]) -> _Reply:
        """Return the next reply, which is of this kind; where it is another, the process ends."""
        reply = self.receive()
        if not isinstance(reply, kind):
            self.kill()
            instead = f"sent {type(reply).__name__} instead of {kind.__name__}"
            raise ChildDied(why_ended(reply) or instead)
        return reply

    def dismiss(self) -> None:
        """Tell the process to end, without waiting for it."""
        self.send(StopWorker())

    def stop(self) -> None:
        self.dismiss()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._launched.close()

    def kill(self) -> None:
        self._launched.kill()

    def send(self, order: Order) -> None:
        """Send an order, unless the process has ended."""
        with contextlib.suppress(OSError):
            self._channel.send(order)

    def _obituary(self) -> str:
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"the process was ended: what it sent is no message\n{self._log_tail()}".rstrip()
        how = f"exit status {code}"
        if code < 0:
            how = f"signal {signal.Signals(-code).name}"
        tail = self._log_tail()
        if tail.startswith(_TIMEOUT):
            limit = tail.removeprefix(_TIMEOUT).partition(")")[0]
            how = f"the time limit of the case (--kopt-timeout), {limit}"
        return f"the process was ended by {how}\n{tail}".rstrip()

    def _log_tail(self) -> str:
        log = self._launched.log
        end = log.seek(0, os.SEEK_END)
        log.seek(max(0, end - 16 * _SHOWN))
        text = log.read().decode(errors="replace")
        # What faulthandler wrote says most; the log before it is pytest's own.
        starts = [place for word in (_TIMEOUT, _FATAL) if (place := text.rfind(word)) >= 0]
        return text[starts[-1] :][:_SHOWN] if starts else text[-_SHOWN:]


class Children:
    """Processes that are used together; whatever thread may end them."""

    def __init__(self, children: Iterable[Child] = ()) -> None:
        self.children = [*children]

    @property
    def are_orphans(self) -> bool:
        """Whether they ended with the parent of all forks."""
        return any(child.is_orphan for child in self.children)

    def dismiss(self) -> None:
        for child in self.children:
            child.dismiss()

    def kill(self) -> None:
        for child in self.children:
            child.kill()

    def stop(self) -> None:
        for child in self.children:
            child.stop()

    def end(self) -> None:
        self.kill()
        self.stop()
