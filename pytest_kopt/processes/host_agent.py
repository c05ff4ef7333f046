"""The far end of a session over several hosts: starts processes and reads devices on its host.

It runs in an interpreter of its own there, reached by a connection of its own. No kernel code runs
in it, and it hands on what a process writes as it is.
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

from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.devices.pinning import Host, discover, for_target
from pytest_kopt.devices.vendor import choose, interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.processes.launched import Launched
from pytest_kopt.processes.launcher import Launcher
from pytest_kopt.versions import overlay

_LOG_BYTES = 1 << 16


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
        self._host = Host(None, ())
        self._running: set[Launched] = set()
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
        return asdict(self._host.read(self._device(device)))

    def glance(self, device: str) -> dict[str, Any]:
        return asdict(self._host.glance(self._device(device)))

    def strangers(self, device: str, minutes: float) -> None:
        """Return when nobody else computes on a device; AllGpusBusy."""
        self._host.keep_strangers_off(self._device(device), minutes, self._say)

    def lock(self, device: str) -> None:
        lock = ExitStack()
        lock.enter_context(self._host.lock(self._device(device)))
        self._locks[device] = lock

    def unlock(self, device: str) -> None:
        self._locks.pop(device).close()

    def tree(
        self, root: str, name: str, files: Mapping[str, bytes], absent: Sequence[str], start: str
    ) -> str:
        """Make a tree of the project with other contents of some files; return where it is."""
        target = self._scratch / name / Path(root).name
        return str(overlay.build(Path(root), target, files, absent, start))

    def end(self) -> None:
        for launched in list(self._running):
            launched.kill()
        self._launcher.end()

    def _device(self, uuid: str) -> Any:
        return next(device for device in self._host.devices if device.uuid == uuid)

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
