"""Measures forks that load anew several times: the plugin of `benchmarks/reload_replicas.py`.

In the session it takes the place of `--kopt-calibrate`'s measurement; the replicas, their orders,
blocks, looks, referee and re-loads stay the package's own, but for how many a fork carries.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import replica_ratio
from pytest_kopt.paired import lane
from pytest_kopt.paired.arms import Versions
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.replica import CaseQuads
from pytest_kopt.trials import calibration
from pytest_kopt.trials.trees import overlays
from pytest_kopt.trials.trial import Measurements

#: The variable with what is asked for, as JSON.
ASKED = "RELOAD_REPLICAS"
#: Forks that take turns; on a GPU one loads while the other is timed, as in any comparison.
AT_ONCE = 2


class TwoArms(Versions):
    """Versions without a placebo, which would take half of the time."""

    @property
    def arms(self) -> tuple[str, ...]:
        return CANDIDATE, INCUMBENT


def plan(forks: int, turns: int) -> list[tuple[int, int]]:
    """Return fork and turn of every replica."""
    return [
        (fork, turn)
        for first in range(1, forks + 1, AT_ONCE)
        for turn in range(1, turns + 1)
        for fork in range(first, first + AT_ONCE)
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
        for each in comparison._lanes:
            # A calibration's own have a process each.
            each._loads_anew = True
        lane.LOADS = asked["reloads"]
        order = plan(asked["forks"], asked["reloads"])
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
        (load,) = {case.load for case in quads.values()}
        assert load == turn, f"fork {fork} did not load anew"
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
    alone = [[(arm, block.of("step")) for arm, block in quad] for quad in case.quads[CANDIDATE]]
    return {
        "log_ratio": case.ratio("step"),
        "quads": [replica_ratio([quad], CANDIDATE, INCUMBENT) for quad in alone],
    }


if ASKED in os.environ:
    calibration.calibrate = measure
