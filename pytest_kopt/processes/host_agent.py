"""The far end of a session over several hosts: starts processes and reads devices on its host.

It runs in an interpreter of its own there, reached by a connection of its own: no kernel code runs
in it, and what a process writes to it is handed on as it is.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_kopt.devices.idle import NoIdleGpu
from pytest_kopt.devices.masks import choose, interpreter_environment
from pytest_kopt.devices.pinning import Host, discover, for_target
from pytest_kopt.errors import BadInput
from pytest_kopt.processes.launched import Launched
from pytest_kopt.processes.launcher import Launcher
from pytest_kopt.versions import overlay

_LOG_BYTES = 1 << 16


class HostAgent:
    """What can be asked for: each public method is an order, by its name.

    Orders come from the main thread, since a process ends with the thread that started it; those
    that wait are carried out in a pool.
    """

    #: Carried out one after the other, as they come.
    AT_ONCE = frozenset({"open", "start", "send", "kill"})

    def __init__(self, tell: Callable[[dict[str, Any]], None], scratch: Path) -> None:
        """Answer by `tell`, from any thread; trees are made below `scratch`."""
        self._tell = tell
        self._scratch = scratch
        self._launcher = Launcher()
        self._host = Host(None, ())
        self._running: dict[int, Launched] = {}
        self._locks: dict[str, ExitStack] = {}

    def open(
        self, option: str, target: str | None, environment: Mapping[str, str], warm: bool
    ) -> dict[str, Any]:
        """Find the devices for --kopt-device and a campaign's target; say what this host is."""
        kind = choose(option, target=target)
        self._host = for_target(discover(kind), target)
        environment = interpreter_environment(kind) | dict(environment)
        if warm:
            self._launcher.warm(environment, os.getcwd())
        return {
            "kind": kind,
            "environment": environment,
            "environ": dict(os.environ),
            "sys_path": sys.path,
            "directory": os.getcwd(),
            "cores": os.cpu_count() or 1,
            "devices": [asdict(device) for device in self._host.devices],
            "pins": {device.uuid: self._host.pin(device) for device in self._host.devices},
        }

    def start(self, number: int, env: Mapping[str, str], directory: str) -> Any:
        """Start a process, from now on known by this number; hand on what it writes."""
        launched = self._launcher.start(env, directory)
        self._running[number] = launched
        threading.Thread(target=self._follow, args=(number, launched), daemon=True).start()
        return {"pid": launched.process.pid, "why_fresh": self._launcher.why_fresh}

    def send(self, number: int, text: bytes) -> None:
        with suppress(KeyError, OSError):  # It has ended, and who asked is told so.
            self._running[number].channel.send_text(text)

    def kill(self, number: int) -> None:
        with suppress(KeyError):
            self._running[number].kill()

    def read(self, device: str) -> dict[str, Any]:
        return asdict(self._host.read(self._device(device)))

    def strangers(self, device: str, minutes: float) -> None:
        """Return when nobody else computes on a device; NoIdleGpu."""
        say = lambda line: self._tell({"say": line})  # noqa: E731
        self._host.keep_strangers_off(self._device(device), minutes, say)

    def lock(self, device: str) -> None:
        held = ExitStack()
        held.enter_context(self._host.lock(self._device(device)))
        self._locks[device] = held

    def unlock(self, device: str) -> None:
        self._locks.pop(device).close()

    def tree(
        self, root: str, name: str, files: Mapping[str, bytes], absent: Sequence[str], start: str
    ) -> str:
        """Make a tree of the project with other contents of some files; return where it is."""
        target = self._scratch / name / Path(root).name
        return str(overlay.build(Path(root), target, files, absent, start))

    def end(self) -> None:
        for launched in list(self._running.values()):
            launched.kill()
        self._launcher.end()

    def _device(self, uuid: str) -> Any:
        return next(device for device in self._host.devices if device.uuid == uuid)

    def _follow(self, number: int, launched: Launched) -> None:
        """Hand on messages up to the process's end, then how it ended and what it printed."""
        try:
            while True:
                text = launched.channel.receive_text()
                waited_ms = launched.channel.waited_ms
                self._tell({"process": number, "text": text, "waited_ms": waited_ms})
        except (EOFError, OSError):
            status = launched.process.wait()
        size = launched.log.seek(0, os.SEEK_END)
        launched.log.seek(max(0, size - _LOG_BYTES))
        log = launched.log.read()
        del self._running[number]
        launched.close()
        self._tell({"process": number, "status": status, "log": log})


def serve(channel: Any) -> None:
    """Carry out the orders of an execnet channel until the other end is gone."""
    telling = threading.Lock()

    def tell(answer: dict[str, Any]) -> None:
        with telling, suppress(OSError):
            channel.send(answer)

    def carry_out(order: dict[str, Any]) -> None:
        try:
            value = getattr(agent, order["order"])(**order["given"])
        except NoIdleGpu as busy:
            tell({"answer": order["id"], "busy": list(busy.in_the_way)})
        except (BadInput, OSError) as error:
            tell({"answer": order["id"], "refused": str(error)})
        else:
            if order["id"] is not None:
                tell({"answer": order["id"], "value": value})

    with (
        tempfile.TemporaryDirectory(prefix="kopt-trees-") as scratch,
        ThreadPoolExecutor() as pool,
    ):
        agent = HostAgent(tell, Path(scratch).resolve())
        try:
            for order in channel:
                if order["order"] in HostAgent.AT_ONCE:
                    carry_out(order)
                else:
                    pool.submit(carry_out, order)
        finally:
            agent.end()
