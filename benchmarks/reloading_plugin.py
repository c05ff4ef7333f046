"""Has one fork carry several replicas: the pytest plugin of `benchmarks/reload_replicas.py`.

In the session it takes the place of `--kopt-calibrate`'s measurement; the replicas, their orders,
blocks, looks and referee stay the package's own. In the warm parent, which imports it as well, it
has a fork that holds arms run one session after the other: every session collects anew, and so
loads the modules of both versions anew, their kernels, graphs and buffers.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import replica_ratio
from pytest_kopt.devices import context
from pytest_kopt.measure import cold
from pytest_kopt.paired.arms import NotComparable, Versions
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.replica import CaseQuads, Replica, time_of
from pytest_kopt.processes import forking, served
from pytest_kopt.processes.channel import Channel, Message
from pytest_kopt.processes.launched import Launched
from pytest_kopt.processes.launcher import Launcher, Starter
from pytest_kopt.processes.site import Site
from pytest_kopt.processes.warm_parent import Fork
from pytest_kopt.trials import calibration
from pytest_kopt.trials.trees import overlays
from pytest_kopt.trials.trial import Measurements

#: The variable with what is asked for, as JSON.
ASKED = "RELOAD_REPLICAS"
OVER = "over"
#: On a GPU a second fork loads while the first is timed, as in any comparison.
AT_ONCE = {"cuda": 2, "cpu": 1}


def serve(reader: int, writer: int, scratch: Path) -> NoReturn:
    """Be a fork: as ever, but where it holds arms begin again after each session."""
    channel = Channel(Connection(reader, writable=False), Connection(writer, readable=False))
    while True:
        hello = served.hear(channel)
        arms = json.loads(hello["orders"])["arms"]
        if not arms or not arms["names"]:
            os._exit(served.run(channel, hello, scratch, served.Leave()))
        served.run(channel, hello, scratch)
        forget(Path.cwd())
        channel.send(OVER)


def forget(root: Path) -> None:
    """Drop the modules of the project, and what is kept of their kernels and buffers."""
    import torch

    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{root}{os.sep}"):
            del sys.modules[name]
    sys.last_traceback = None
    for cached in (cold.capture_stream, cold._flusher, context._waking):
        cached.cache_clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    # On the device the next session does so, as it wakes.
    forking._differ()


served.serve = serve


class Chain:
    """A fork, and the turn in it that is over."""

    def __init__(self, launched: Launched) -> None:
        if not isinstance(launched.process, Fork):
            raise NotComparable("a fresh interpreter was started instead of a fork")
        self.launched = launched
        self.over = 0

    def receive(self, turn: int, timeout: float | None) -> Message | None:
        """Return the next message of a turn; EOFError where it is over."""
        while self.over < turn:
            message = self.launched.channel.receive(timeout)
            if message is None or message["kind"] != OVER:
                return message
            self.over += 1
        raise EOFError


class Turn:
    """One replica's part of a fork: a process and a channel to whoever uses it."""

    def __init__(self, chain: Chain, number: int, *, is_last: bool) -> None:
        self._chain, self._number, self._is_last = chain, number, is_last
        self._is_dismissed = False
        self.pid = chain.launched.process.pid

    @property
    def reader(self) -> Connection:
        return self._chain.launched.channel.reader

    @property
    def returncode(self) -> int | None:
        return self._chain.launched.process.returncode

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message; what comes behind a stop would be for the next turn."""
        if not self._is_dismissed:
            self._chain.launched.channel.send(kind, **fields)
        self._is_dismissed |= kind == "stop"

    def receive(self, timeout: float | None = None) -> Message | None:
        return self._chain.receive(self._number, timeout)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the turn, or of the fork."""
        try:
            while self._chain.receive(self._number, timeout):
                pass
        except EOFError:
            if self._chain.over < self._number:
                return self._chain.launched.process.wait(timeout)
        return 0

    def kill(self) -> None:
        self._chain.launched.kill()

    def close(self) -> None:
        if self._is_last:
            self.kill()
            self._chain.launched.close()


class Reused:
    """Starts processes by a plan: the fork of each, by number, and its turn there."""

    def __init__(self, starter: Starter, plan: Sequence[tuple[int, int]]) -> None:
        self._starter = starter
        self._plan = iter(plan)
        self._turns = max(turn for _, turn in plan)
        self._chains: dict[int, Chain] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._starter, name)

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        number, turn = next(self._plan)
        if turn == 1:
            self._chains[number] = Chain(self._starter.start(env, directory))
        chain = self._chains[number]
        process: Any = Turn(chain, turn, is_last=turn == self._turns)
        log = os.fdopen(os.dup(chain.launched.log.fileno()), "rb")
        return Launched(process, process, log, None, lambda pid: None)


class TwoArms(Versions):
    """Versions without a placebo, which would take half of the time."""

    @property
    def arms(self) -> tuple[str, ...]:
        return CANDIDATE, INCUMBENT


def plan(forks: int, turns: int, at_once: int) -> list[tuple[int, int]]:
    """Return fork and turn of every replica; forks that are there `at_once` take turns."""
    return [
        (fork, turn)
        for first in range(1, forks + 1, at_once)
        for turn in range(1, turns + 1)
        for fork in range(first, first + at_once)
    ]


def measure(
    results: Sequence[CaseResult], root: Path, processes: int, measurements: Measurements
) -> NoReturn:
    """Measure the replicas and write them down, instead of a calibration."""
    asked = json.loads(os.environ[ASKED])
    labels = {result.nodeid: result.label for result in results if result.check == "PASS"}
    with ExitStack() as held:
        whole = held.enter_context(overlays(root, {}))
        # As in a race no other shapes are tried, and there is no falling back to more processes.
        versions = TwoArms(whole.root, whole.trees[:1], whole.changed, raced=(CANDIDATE,))
        comparison = held.enter_context(measurements.compare([*labels], versions))
        (lane,), arms = comparison._lanes, comparison._arms
        lane.ahead = AT_ONCE[lane.site.kind]
        order = plan(asked["forks"], asked["reloads"], lane.ahead)
        starter = Reused(lane.site.starter, order)
        begin = arms.start

        def start(site: Site, *rest: Any, **more: Any) -> Replica:
            return begin(replace(site, starter=starter), *rest, **more)

        arms.start = start  # type: ignore[method-assign]
        for found in replicas(comparison, labels, order, asked["seconds"]):
            asked.setdefault("replicas", []).append(found)
            Path(asked["out"]).write_text(json.dumps(asked | {"out": ""}, indent=1) + "\n")
    pytest.exit("measured", returncode=0)


def replicas(
    comparison: Comparison,
    labels: dict[str, str],
    order: Sequence[tuple[int, int]],
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """Yield what each replica gives, until `seconds` are over."""
    begin = last = time.perf_counter()
    held = 0.0
    for fork, turn in order:
        if last - begin > seconds:
            return
        comparison.get_ahead()
        (quads,) = comparison.replicas(1)
        now = time.perf_counter()
        yield {
            "fork": fork,
            "reload": turn,
            "uuid": next(iter(quads.values())).device,
            "seconds": round(now - last, 3),
            "device_seconds": round(comparison.device_seconds - held, 3),
            "cases": {label: log_ratios(quads[nodeid]) for nodeid, label in labels.items()},
        }
        last, held = now, comparison.device_seconds


def log_ratios(case: CaseQuads) -> dict[str, Any]:
    """Return a replica's log-ratio of a case, and that of each of its quads alone."""
    alone = [
        [(arm, time_of(times, "step")) for arm, times in quad] for quad in case.quads[CANDIDATE]
    ]
    return {
        "log_ratio": case.ratio("step"),
        "quads": [replica_ratio([quad], CANDIDATE, INCUMBENT) for quad in alone],
    }


if ASKED in os.environ:
    calibration.calibrate = measure
    _warm = Launcher.warm
    Launcher.warm = lambda self, env, directory, modules=(): _warm(  # type: ignore[method-assign]
        self, env, directory, [*modules, __name__]
    )
