"""The hosts of a session, seen from the controller: their processes and their devices.

The connection to another host is one of its own (execnet, as xdist's). It lasts as long as the
session, and no kernel code runs at either end.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pytest_kopt.cases.protocol import Order
from pytest_kopt.cases.replies import Reply
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.devices.pinning import Placement
from pytest_kopt.devices.vendor import Device, Reading
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.processes.channel import Channel, read_reply
from pytest_kopt.processes.launched import Launched
from pytest_kopt.processes.launcher import Starter
from pytest_kopt.versions import overlay

_AGENT = "from pytest_kopt.processes.host_agent import serve; serve(channel)"


class RemoteHost:
    """Starts processes on a host and reads its devices; safe to use from any thread.

    Each request has an execnet channel of its own for the answer, and each process two: for its
    messages, and for its end.
    """

    def __init__(
        self, name: str, spec: str, roots: Sequence[Path], say: Callable[[str], None]
    ) -> None:
        """Connect by what execnet calls a specification; BadInput where that fails.

        `roots` are the folders that xdist has copied there, none where the files are shared.
        """
        import execnet

        self.name = name
        self.why_fresh = ""
        self._roots = tuple(roots)
        self._trees: dict[Path, Path] = {}
        self._group = execnet.Group(execmodel="main_thread_only")
        try:
            self._gateway = self._group.makegateway(spec)
            self._requests = self._gateway.remote_exec(_AGENT)
        except (OSError, EOFError, execnet.HostNotFound) as error:
            raise BadInput(
                f"a round needs a connection to {name} of its own, and it failed: {error}",
                where="--tx",
                fix="--tx ssh=HOST, which can start Python there more than once",
            ) from None
        lines = self._gateway.newchannel()
        lines.setcallback(lambda line: say(f"{name}: {line}"))
        self._requests.send(lines)

    def open(
        self, option: str, target: str | None, environment: Mapping[str, str], *, warm: bool
    ) -> None:
        """Find out what the host is; `environment` is what all processes of the session get."""
        description = self.ask(
            "open", option=option, target=target, environment=dict(environment), warm=warm
        )
        self.kind: str = description["kind"]
        self.environment: dict[str, str] = description["environment"]
        self.environ: dict[str, str] = description["environ"]
        self.cores: int = description["cores"]
        self.devices = tuple(Device(**device) for device in description["devices"])
        self._pins: dict[str, dict[str, str]] = description["pins"]
        self._directory = Path(description["directory"])
        # Behind the host's own: xdist copies pytest there as well.
        self._sys_path = [*description["sys_path"], str(self._directory)]

    @property
    def sys_path(self) -> Sequence[str]:
        return self._sys_path if self._roots else sys.path

    def copied(self, path: Path) -> tuple[Path, Path] | None:
        """Return the folder around a path that was copied there, and its copy; None: shared.

        BadInput where the files are not shared and the path is in no such folder.
        """
        for root in self._roots:
            if path.is_relative_to(root):
                return root, self._directory / root.name
        if self._roots:
            raise BadInput(
                f"{path} is not copied to {self.name}", where="--rsyncdir", fix=f"--rsyncdir {path}"
            )
        return None

    def path(self, path: Path) -> Path:
        copied = self.copied(path)
        return copied[1] / path.relative_to(copied[0]) if copied else path

    def tree(self, root: Path, tree: Path) -> Path:
        """Return a tree there that holds what one made here for the project does."""
        if tree not in self._trees:
            files, absent = overlay.difference(root, tree)
            path = self.ask(
                "tree",
                root=str(self.path(root)),
                name=str(len(self._trees)),
                files=files,
                absent=absent,
                start=overlay.current_folder(root),
            )
            self._trees[tree] = Path(path)
        return self._trees[tree]

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        """Return a process with this environment, all of it, that waits for orders."""
        talk, end = self._channel(), self._channel()
        started = self.ask("start", talk=talk, end=end, env=dict(env), directory=directory)
        self.why_fresh = started["why_fresh"]
        process = RemoteProcess(self.name, started["pid"], talk, end)
        # What it leaves running there, the agent ends.
        return Launched(process, RemoteChannel(talk), process.log, sweep=lambda pid: None)

    def pin(self, device: Device) -> dict[str, str]:
        """Return the variables that leave a process there one device."""
        return self._pins[device.uuid]

    def read(self, device: Device) -> Reading:
        return Reading(**self.ask("read", device=device.uuid))

    def glance(self, device: Device) -> Reading:
        return Reading(**self.ask("glance", device=device.uuid))

    @contextmanager
    def lock(self, device: Device) -> Iterator[None]:
        self.ask("lock", device=device.uuid)
        try:
            yield
        finally:
            with suppress(CannotFinish):
                self.ask("unlock", device=device.uuid)

    def keep_strangers_off(
        self, device: Device, minutes: float, say: Callable[[str], None]
    ) -> None:
        """Wait until nobody else computes on a device; AllGpusBusy when it takes longer."""
        self.ask("strangers", device=device.uuid, minutes=minutes)

    def end(self) -> None:
        """Close the connection: the other end then ends whatever it has started."""
        with suppress(OSError):
            self._requests.close()
        self._group.terminate(timeout=10)

    def ask(self, request: str, **arguments: Any) -> Any:
        """Have a request carried out there and return its value.

        Raises what it raised: BadInput or AllGpusBusy; CannotFinish when the connection is lost.
        """
        answers = self._channel()
        try:
            self._requests.send((request, answers, arguments))
            outcome, value = answers.receive()
        except (OSError, EOFError):
            raise self._lost from None
        if outcome == "busy":
            raise AllGpusBusy(arguments["minutes"], [f"{self.name}: {reason}" for reason in value])
        if outcome == "refused":
            raise BadInput(value, where=self.name)
        return value

    def _channel(self) -> Any:
        try:
            return self._gateway.newchannel()
        except OSError:
            raise self._lost from None

    @property
    def _lost(self) -> CannotFinish:
        return CannotFinish(f"the connection to {self.name} was lost")


class RemoteProcess:
    """A process on another host, as `subprocess.Popen` would have it."""

    def __init__(self, host: str, pid: int, talk: Any, end: Any) -> None:
        """Know it by the execnet channels of its messages and of its end."""
        self.pid = pid
        self.returncode: int | None = None
        self.log = io.BytesIO()
        self._host = host
        self._talk, self._end = talk, end
        self._waiting = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; `subprocess.TimeoutExpired`."""
        with self._waiting:
            if self.returncode is None:
                try:
                    self.returncode, log = self._end.receive(timeout)
                except self._end.TimeoutError:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
                except EOFError:
                    self.returncode = -signal.SIGKILL
                    log = f"the connection to {self._host} was lost".encode()
                self.log.write(log)
            assert self.returncode is not None
            return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(OSError):
                self._talk.send(None)


class RemoteChannel(Channel[Order, Reply]):
    """The talk with a process on another host, handed on by the host's agent.

    The time between an order and its reply is what the agent there waited for.
    """

    def __init__(self, talk: Any) -> None:
        self.waited_ms = 0.0
        self._read_message = read_reply
        self._talk = talk

    def send_text(self, text: bytes) -> None:
        self._talk.send(text)

    def receive_text(self) -> bytes:
        text: bytes
        text, self.waited_ms = self._talk.receive()
        return text

    def close(self) -> None:
        """Nothing is held here."""


@dataclass(frozen=True, slots=True)
class Site:
    """A host that cases are measured on: this one, or another (`remote`).

    `kind` is what is measured on there ("cpu" or "cuda"), `environment` what every process that
    runs kernel code gets.
    """

    kind: str
    starter: Starter
    placement: Placement
    environment: Mapping[str, str]
    remote: RemoteHost | None = None

    @property
    def cores(self) -> int:
        return self.remote.cores if self.remote else os.cpu_count() or 1

    def path(self, path: Path) -> Path:
        """Return where something of the project lies there."""
        return self.remote.path(path) if self.remote else path

    def tree(self, root: Path, tree: Path) -> Path:
        """Return a tree there like one that was made here for the project below `root`."""
        return self.remote.tree(root, tree) if self.remote else tree

    def copy(self, root: Path, tree: Path | None = None) -> tuple[Path, Path] | None:
        """Return a folder around the project and what it is there, or `root` and a tree of it.

        None where the project lies there as it does here.
        """
        if tree is not None:
            return root, self.tree(root, tree)
        return self.remote.copied(root) if self.remote else None

    def environment_on(self, device: Device) -> dict[str, str]:
        """Return what a process on one of its devices gets."""
        return {**self.environment, **self.placement.host.pin(device)}


class Place(NamedTuple):
    """Cases that are measured one after the other, and the device of a host that they are on."""

    site: Site
    device: Device
    ids: list[str]
