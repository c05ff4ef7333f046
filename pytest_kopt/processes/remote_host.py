"""The hosts of a session as the controller sees them, and the agent at another one, the far end.

Each other host has a connection of its own (execnet, as xdist's). It lasts as long as the session,
and no kernel code runs at either end. The agent starts processes, reads devices, and hands on what
a process writes as it is.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from multiprocessing import Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pytest_kopt.cases.protocol import Order
from pytest_kopt.cases.replies import Reply
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.devices.pinning import ON_CPU, DeviceAccess, Placement, place
from pytest_kopt.devices.vendor import Device, Reading, choose, interpreter_environment
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.libraries import session_path
from pytest_kopt.processes.channel import Channel, read_reply
from pytest_kopt.processes.launched import Launched, Process
from pytest_kopt.processes.launcher import Launcher
from pytest_kopt.versions.tree import current_folder, difference, linked

_AGENT = "from pytest_kopt.processes.remote_host import serve; serve(channel)"
#: So much of what a process printed is handed on at its end.
_LOG_BYTES = 1 << 16


class Site:
    """A host that cases are measured on: this one, whose `name` is "".

    `kind` is what is measured on there ("cpu" or "cuda"), `environment` what every process that
    runs kernel code gets.
    """

    name = ""
    cores = os.cpu_count() or 1

    def __init__(
        self, kind: str, starter: Launcher, placement: Placement, environment: Mapping[str, str]
    ) -> None:
        self.kind, self.placement, self.environment = kind, placement, environment
        self.starter: Launcher | RemoteHost = starter

    def path(self, path: Path) -> Path:
        """Return where something of the project lies there."""
        copied = self.copied(path)
        return copied[1] / path.relative_to(copied[0]) if copied else path

    def tree(self, root: Path, tree: Path) -> Path:
        """Return a tree there like one that was made here for the project below `root`."""
        return tree

    def copied(self, path: Path) -> tuple[Path, Path] | None:
        """Return the folder around a path that was copied there, and its copy; None: shared."""
        return None

    def copy(self, root: Path, tree: Path | None = None) -> tuple[Path, Path] | None:
        """Return a folder around the project and what it is there, or `root` and a tree of it.

        None where the project lies there as it does here.
        """
        return (root, self.tree(root, tree)) if tree is not None else self.copied(root)

    def environment_on(self, device: Device) -> dict[str, str]:
        """Return what a process on one of its devices gets."""
        return {**self.environment, **self.placement.host.pin(device)}


class RemoteHost(Site):
    """Starts processes on a host and reads its devices; safe to use from any thread.

    Each request has an execnet channel of its own for the answer, and each process two: for its
    messages, and for its end.
    """

    def __init__(
        self,
        name: str,
        spec: str,
        roots: Sequence[Path],
        copy: Callable[[Any], None],
        say: Callable[[str], None],
    ) -> None:
        """Connect by what execnet calls a specification; BadInput where that fails.

        `roots` are the folders that `copy` copies there over a gateway, none where the files are
        shared.
        """
        import execnet

        self.name = name
        self.starter = self
        self.why_fresh = ""
        self._roots, self._say = tuple(roots), say
        self._trees: dict[Path, Path] = {}
        self._group = execnet.Group(execmodel="main_thread_only")
        try:
            self._gateway = self._group.makegateway(spec)
            if self._roots:
                # Before the agent: its main thread carries out one thing at a time.
                copy(self._gateway)
            self._requests = self._gateway.remote_exec(_AGENT)
        except (OSError, EOFError, execnet.HostNotFound) as error:
            raise BadInput(
                f"the connection to {name} failed: {error}",
                where="--tx",
                fix="give an address and a Python that has pytest-kopt: ssh=HOST//python=PYTHON",
            ) from None
        lines = self._gateway.newchannel()
        lines.setcallback(lambda line: say(f"{name}: {line}"))
        self._requests.send(lines)

    def open(
        self,
        option: str,
        target: str | None,
        environment: Mapping[str, str],
        minutes: float | None,
    ) -> None:
        """Find out what the host is; `environment` is what all processes of the session get.

        With `minutes` only its idle devices are used; AllGpusBusy where none is after that time.
        """
        description = self.ask(
            "open", option=option, target=target, environment=dict(environment), minutes=minutes
        )
        self.kind, self.environment = description["kind"], description["environment"]
        self.environ: dict[str, str] = description["environ"]
        self.cores = description["cores"]
        devices = tuple(Device(**device) for device in description["devices"])
        best = next(device for device in devices if device.uuid == description["best"])
        self.placement = Placement(self, devices, best, self._say, minutes)
        self._pins: dict[str, dict[str, str]] = description["pins"]
        self._directory = Path(description["directory"])
        # Behind the host's own: pytest is copied there as well.
        self._sys_path = [*description["sys_path"], str(self._directory)]

    @property
    def sys_path(self) -> Sequence[str]:
        return self._sys_path if self._roots else session_path()

    def copied(self, path: Path) -> tuple[Path, Path] | None:
        """Return them as a Site does; BadInput if it is not shared and in no such folder."""
        for root in self._roots:
            if path.is_relative_to(root):
                return root, self._directory / root.name
        if self._roots:
            raise BadInput(
                f"{path} is not copied to {self.name}", where="--rsyncdir", fix=f"--rsyncdir {path}"
            )
        return None

    def tree(self, root: Path, tree: Path) -> Path:
        if tree not in self._trees:
            path = self.ask(
                "tree",
                root=str(self.path(root)),
                name=str(len(self._trees)),
                old=difference(root, tree),
                start=current_folder(root),
            )
            self._trees[tree] = Path(path)
        return self._trees[tree]

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        """Return a process with this environment, all of it, that waits for orders."""
        talk, end = self._channel(), self._channel()
        started = self.ask("start", talk=talk, end=end, env=dict(env), directory=directory)
        self.why_fresh = started["why_fresh"]
        process = RemoteProcess(self.name, started["pid"], talk, end)
        return Launched(process, RemoteChannel(talk), process.log)

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
            in_the_way = [f"{self.name}: {reason}" for reason in value]
            raise AllGpusBusy(arguments["minutes"], in_the_way)
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


class RemoteProcess(Process):
    """A process on another host, known by the execnet channels of its messages and of its end."""

    def __init__(self, host: str, pid: int, talk: Any, end: Any) -> None:
        super().__init__(pid)
        self.log = io.BytesIO()
        self._host, self._talk, self._end = host, talk, end

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(OSError):
                self._talk.send(None)

    def _status(self, timeout: float | None) -> int:
        try:
            status, log = self._end.receive(timeout)
        except self._end.TimeoutError:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
        except EOFError:
            status, log = -signal.SIGKILL, f"the connection to {self._host} was lost".encode()
        self.log.write(log)
        return int(status)


class RemoteChannel(Channel[Order, Reply]):
    """The talk with a process on another host, handed on by the host's agent.

    The time between an order and its reply is what the agent there waited for.
    """

    def __init__(self, talk: Any) -> None:
        self.waited_ms = 0.0
        self._read_message = read_reply
        self._talk = talk
        self._arrived = SimpleQueue[tuple[bytes, float] | None]()
        #: Readable while something has arrived: several processes are waited for at once.
        self.reader, self._bell = Pipe(duplex=False)
        talk.setcallback(self._arrive, endmarker=None)

    def send_text(self, text: bytes) -> None:
        self._talk.send(text)

    def receive_text(self) -> bytes:
        self.reader.recv_bytes()
        if (arrived := self._arrived.get()) is None:
            raise EOFError
        text, self.waited_ms = arrived
        return text

    def close(self) -> None:
        self.reader.close()

    def _arrive(self, message: tuple[bytes, float] | None) -> None:
        self._arrived.put(message)
        with suppress(OSError):  # Nobody reads any more.
            self._bell.send_bytes(b".")
            if message is None:
                self._bell.close()


class HostAgent:
    """The requests: each public method is one, by its name.

    Requests come from the main thread, since a process ends with the thread that started it; those
    that wait are carried out in a pool.
    """

    #: Carried out one after the other, as they come.
    AT_ONCE = frozenset({"open", "start"})

    def __init__(self, say: Callable[[str], None], scratch: Path) -> None:
        """Print lines at the other end by `say`, from any thread; make trees below `scratch`."""
        self._say = say
        self._scratch = scratch
        self._launcher = Launcher()
        self._host: DeviceAccess = ON_CPU.host
        self._devices: dict[str, Device] = {}
        self._running: set[Launched] = set()
        self._locks: dict[str, ExitStack] = {}

    def open(
        self,
        option: str,
        target: str | None,
        environment: Mapping[str, str],
        minutes: float | None,
    ) -> dict[str, Any]:
        """Find the devices for --kopt-device and a campaign's target; say what this host is.

        AllGpusBusy where none is idle after some `minutes` (None: that does not matter).
        """
        kind = choose(option, target=target)
        placement = place(kind, target, minutes, self._say)
        self._host = placement.host
        self._devices = {device.uuid: device for device in placement.devices}
        environment = interpreter_environment(kind) | dict(environment)
        self._launcher.warm(environment, os.getcwd())
        return {
            "kind": kind,
            "environment": environment,
            "environ": dict(os.environ),
            "sys_path": sys.path,
            "directory": os.getcwd(),
            "cores": os.cpu_count() or 1,
            "devices": [asdict(device) for device in placement.devices],
            "best": placement.best.uuid,
            "pins": {device.uuid: self._host.pin(device) for device in placement.devices},
        }

    def start(self, talk: Any, end: Any, env: Mapping[str, str], directory: str) -> Any:
        """Start a process; hand its messages on in both directions, then how it ended.

        None in place of a message kills it.
        """
        launched = self._launcher.start(env, directory)
        self._running.add(launched)

        def hand_on(text: bytes | None) -> None:
            if text is None:
                launched.kill()
                return
            with suppress(OSError):  # It has ended, and the other end learns of it.
                launched.channel.send_text(text)

        talk.setcallback(hand_on)
        threading.Thread(target=self._follow, args=(launched, talk, end), daemon=True).start()
        return {"pid": launched.process.pid, "why_fresh": self._launcher.why_fresh}

    def read(self, device: str) -> dict[str, Any]:
        return asdict(self._host.read(self._devices[device]))

    def glance(self, device: str) -> dict[str, Any]:
        return asdict(self._host.glance(self._devices[device]))

    def strangers(self, device: str, minutes: float) -> None:
        """Return when nobody else computes on a device; AllGpusBusy."""
        self._host.keep_strangers_off(self._devices[device], minutes, self._say)

    def lock(self, device: str) -> None:
        lock = ExitStack()
        lock.enter_context(self._host.lock(self._devices[device]))
        self._locks[device] = lock

    def unlock(self, device: str) -> None:
        self._locks.pop(device).close()

    def tree(self, root: str, name: str, old: Mapping[str, bytes | None], start: str) -> str:
        """Make a tree of the project with other contents of some files; return where it is."""
        target = self._scratch / name / Path(root).name
        return str(linked(Path(root), target, old, start).place)

    def end(self) -> None:
        for launched in list(self._running):
            launched.kill()
        self._launcher.end()

    def _follow(self, launched: Launched, talk: Any, end: Any) -> None:
        """Hand on messages up to the process's end, then how it ended and what it printed."""
        try:
            while True:
                text = launched.channel.receive_text()
                talk.send((text, launched.channel.waited_ms))
        except (EOFError, OSError):
            status = launched.process.wait()
        size = launched.log.seek(0, os.SEEK_END)
        launched.log.seek(max(0, size - _LOG_BYTES))
        log = launched.log.read()
        self._running.remove(launched)
        launched.close()
        with suppress(OSError):
            end.send((status, log))
            talk.close()


def serve(requests: Any) -> None:
    """Carry out what comes over an execnet channel until the other end is gone."""
    lines = requests.receive()

    def say(line: str) -> None:
        with suppress(OSError):
            lines.send(line)

    def carry_out(request: str, answers: Any, arguments: dict[str, Any]) -> None:
        try:
            outcome = "value", getattr(agent, request)(**arguments)
        except AllGpusBusy as busy:
            outcome = "busy", list(busy.in_the_way)
        except (BadInput, OSError) as error:
            outcome = "refused", str(error)
        with suppress(OSError):
            answers.send(outcome)

    with (
        tempfile.TemporaryDirectory(prefix="kopt-trees-") as scratch,
        ThreadPoolExecutor() as pool,
    ):
        agent = HostAgent(say, Path(scratch).resolve())
        try:
            for request, answers, arguments in requests:
                if request in HostAgent.AT_ONCE:
                    carry_out(request, answers, arguments)
                else:
                    pool.submit(carry_out, request, answers, arguments)
        finally:
            agent.end()
