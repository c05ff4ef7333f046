"""Another host of a session, seen from the process that decides: its processes and its devices.

The connection is one of its own (execnet, as xdist's): it lasts as long as the session, whatever
becomes of the workers, and no kernel code runs at either end.
"""

from __future__ import annotations

import io
import itertools
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_kopt.cases.protocol import Order, Reply
from pytest_kopt.devices.idle import NoIdleGpu
from pytest_kopt.devices.vendor import Device, Reading
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.processes.channel import Channel, read_reply
from pytest_kopt.processes.launched import Launched
from pytest_kopt.versions import overlay

_AGENT = "from pytest_kopt.processes.host_agent import serve; serve(channel)"


class RemoteHost:
    """Starts processes on a host, and answers for its devices; safe to use from any thread."""

    def __init__(
        self, name: str, spec: str, roots: Sequence[Path], say: Callable[[str], None]
    ) -> None:
        """Connect by what execnet calls a specification; BadInput where that fails.

        `roots` are the folders that xdist has copied there, none where the files are shared.
        """
        import execnet

        self.name = name
        self.why_fresh = ""
        self._say = say
        self._roots = tuple(roots)
        self._answers: dict[int, Future[Any]] = {}
        self._processes: dict[int, RemoteProcess] = {}
        self._numbers = itertools.count()
        self._trees: dict[Path, Path] = {}
        self._gone = threading.Event()
        self._group = execnet.Group(execmodel="main_thread_only")
        try:
            self._channel = self._group.makegateway(spec).remote_exec(_AGENT)
        except (OSError, EOFError, execnet.HostNotFound) as error:
            raise BadInput(
                f"a round needs a connection to {name} besides xdist's, and there is none: {error}",
                where="--tx",
                legal="a --tx that can start Python there more than once",
            ) from None
        self._channel.setcallback(self._arrived, endmarker=None)

    def open(
        self, option: str, target: str | None, environment: Mapping[str, str], *, warm: bool
    ) -> None:
        """Find out what the host is; `environment` is what all processes of the session get."""
        given = {"option": option, "target": target, "environment": dict(environment)}
        told = self.ask("open", **given, warm=warm)
        self.kind: str = told["kind"]
        self.environment: dict[str, str] = told["environment"]
        self.environ: dict[str, str] = told["environ"]
        self.cores: int = told["cores"]
        self.devices = tuple(Device(**device) for device in told["devices"])
        self._pins: dict[str, dict[str, str]] = told["pins"]
        self._directory = Path(told["directory"])
        # Behind the host's own: xdist copies pytest there as well.
        self._sys_path = [*told["sys_path"], str(self._directory)]

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
                f"{path} is not copied to {self.name}", where="--rsyncdir", legal=str(path)
            )
        return None

    def path(self, path: Path) -> Path:
        copied = self.copied(path)
        return copied[1] / path.relative_to(copied[0]) if copied else path

    def tree(self, root: Path, tree: Path) -> Path:
        """Return a tree there that holds what one made here for the project does."""
        if tree not in self._trees:
            files, absent = overlay.difference(root, tree)
            made = self.ask(
                "tree",
                root=str(self.path(root)),
                name=str(len(self._trees)),
                files=files,
                absent=absent,
                start=overlay.current_folder(root),
            )
            self._trees[tree] = Path(made)
        return self._trees[tree]

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        """Return a process with this environment, all of it, that waits for orders."""
        number = next(self._numbers)
        process = self._processes[number] = RemoteProcess(self, number)
        told = self.ask("start", number=number, env=dict(env), directory=directory)
        process.pid, self.why_fresh = told["pid"], told["why_fresh"]
        # What it leaves running there, the agent ends.
        return Launched(process, process.channel, process.log, sweep=lambda pid: None)

    def pin(self, device: Device) -> dict[str, str]:
        """Return the variables that leave a process there one device."""
        return self._pins[device.uuid]

    def read(self, device: Device) -> Reading:
        return Reading(**self.ask("read", device=device.uuid))

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
        """Wait until nobody else computes on a device; NoIdleGpu when it takes longer."""
        self.ask("strangers", device=device.uuid, minutes=minutes)

    def end(self) -> None:
        """Close the connection: the other end then ends whatever it has started."""
        with suppress(OSError):
            self._channel.close()
        self._group.terminate(timeout=10)

    def ask(self, order: str, **given: Any) -> Any:
        """Have an order carried out there and return its answer.

        Raises what it raised: BadInput or NoIdleGpu; CannotFinish when the connection is lost.
        """
        number, answer = next(self._numbers), Future[dict[str, Any]]()
        self._answers[number] = answer
        self._send({"id": number, "order": order, "given": given})
        told = answer.result()
        if "busy" in told:
            in_the_way = [f"{self.name}: {found}" for found in told["busy"]]
            raise NoIdleGpu(given["minutes"], in_the_way)
        if "refused" in told:
            raise BadInput(told["refused"], where=self.name)
        return told["value"]

    def tell(self, order: str, **given: Any) -> None:
        self._send({"id": None, "order": order, "given": given})

    def _send(self, order: dict[str, Any]) -> None:
        with suppress(OSError):
            self._channel.send(order)
        if self._gone.is_set():
            self._lost()

    def _arrived(self, told: dict[str, Any] | None) -> None:
        if told is None:
            self._gone.set()
            self._lost()
        elif "say" in told:
            self._say(f"{self.name}: {told['say']}")
        elif "answer" in told:
            self._answers.pop(told["answer"]).set_result(told)
        elif "text" in told:
            received = told["text"], told["waited_ms"]
            self._processes[told["process"]].channel.received.put(received)
        else:
            self._processes.pop(told["process"]).has_ended(told["status"], told["log"])

    def _lost(self) -> None:
        """Let nobody wait for a host that does not answer any more."""
        while self._answers:
            _, answer = self._answers.popitem()
            answer.set_exception(CannotFinish(f"the connection to {self.name} was lost"))
        while self._processes:
            _, process = self._processes.popitem()
            process.has_ended(-signal.SIGKILL, f"the connection to {self.name} was lost".encode())


class RemoteProcess:
    """A process on another host, as `subprocess.Popen` would have it."""

    def __init__(self, host: RemoteHost, number: int) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self.channel = RemoteChannel(host, number)
        self.log = io.BytesIO()
        self._host = host
        self._number = number
        self._over = threading.Event()

    def has_ended(self, status: int, log: bytes) -> None:
        self.log.write(log)
        self.returncode = status
        self._over.set()
        self.channel.received.put(None)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; `subprocess.TimeoutExpired`."""
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if not self._over.is_set():
            self._host.tell("kill", number=self._number)


class RemoteChannel(Channel[Order, Reply]):
    """The talk with a process on another host, handed on by the host's agent.

    The time between an order and its reply is what the agent there waited for.
    """

    def __init__(self, host: RemoteHost, number: int) -> None:
        self.received: queue.SimpleQueue[tuple[bytes, float] | None] = queue.SimpleQueue()
        self.waited_ms = 0.0
        self._read_message = read_reply
        self._host = host
        self._number = number

    def send_text(self, text: bytes) -> None:
        self._host.tell("send", number=self._number, text=text)

    def receive_text(self) -> bytes:
        received = self.received.get()
        if received is None:
            raise EOFError
        text, self.waited_ms = received
        return text

    def close(self) -> None:
        """Nothing is held here."""
