"""A process that checks and times cases as a script: the baseline's rows, by the tree's costs.

The controller talks to it as to any other; no process begins and no kernel runs.
"""

from __future__ import annotations

import ast
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.protocol import CheckCase, Order
from pytest_kopt.cases.replies import CaseFinished, CaseStarted, Collected, Reply, Report
from pytest_kopt.cases.result import PROPERTY, CaseResult, Check
from pytest_kopt.session import supervisor
from pytest_kopt.trials import measurements


@dataclass(frozen=True, slots=True)
class Version:
    """What a source of `doubled_kernel` says of itself: its forward's cost by rows, its factor."""

    cost_ms: Mapping[int, float]
    factor: float

    @classmethod
    def of(cls, source: str) -> Version:
        said = dict(re.findall(r"^(COST_MS|FACTOR) = (.+?)\r?$", source, re.MULTILINE))
        return cls(ast.literal_eval(said["COST_MS"]), float(said["FACTOR"]))

    def row(self, case: CaseResult, baseline: Version, *, is_timed: bool) -> CaseResult:
        """Return the case's row, whose times are to the baseline's as the costs are."""
        is_right, rows = self.factor == baseline.factor, case.dims["rows"]
        assert isinstance(rows, int)
        slower = self.cost_ms[rows] / baseline.cost_ms[rows] if is_right and is_timed else math.nan
        scale = {"rate": 1 / slower, "rate_stddev": 1 / slower, "ms": slower}
        cells = dict(case.cells)
        for column, quantity in (case.evidence.quantities or {}).items():
            if (by := scale.get(quantity.partition("_")[2])) is not None:
                value = cells[column]
                assert isinstance(value, float)
                cells[column] = value * by
        samples = {
            f"{way}_samples_ms": tuple(ms * slower for ms in case.evidence.samples_ms(way))
            for way in ("forward", "backward")
        }
        without = dict.fromkeys(samples, None)
        evidence = replace(case.evidence, **(without if math.isnan(slower) else samples))
        check: Check = "PASS" if is_right else "FAIL"
        return replace(case, cells=cells, evidence=evidence, check=check)


class Scripted:
    """Stands in for a `Child`."""

    def __init__(
        self,
        cases: Mapping[str, CaseResult],
        versions: Sequence[Version],
        config: pytest.Config,
        orders: WorkerOrders,
        env: Mapping[str, str],
        args: Sequence[str] | None,
        *there: object,
        starter: object = None,
    ) -> None:
        self._cases, self._versions = cases, versions
        self._hook, self._config, self._orders = config.hook, config, orders
        self._replies = deque[Reply]([Collected([*cases] if args is None else [*args])])

    def send(self, order: Order) -> None:
        if not isinstance(order, CheckCase):
            return
        nodeid, (baseline, version) = order.nodeid, self._versions
        is_timed = nodeid not in self._orders.untimed
        row = version.row(self._cases[nodeid], baseline, is_timed=is_timed)
        place = (nodeid.partition("::")[0], 0, nodeid.partition("::")[2])
        failed = None if row.check == "PASS" else f"{row.check} {row.label}"
        outcome: Any = "failed" if failed else "passed"
        report = pytest.TestReport(nodeid, place, {}, outcome, failed, "call")
        report.user_properties.append((PROPERTY, row.to_json()))
        data = self._hook.pytest_report_to_serializable(config=self._config, report=report)
        self._replies += [CaseStarted(nodeid, place), Report(data), CaseFinished(nodeid)]

    def receive(self) -> Reply:
        return self._replies.popleft()

    def dismiss(self) -> None: ...

    stop = kill = dismiss


@contextmanager
def scripted(results: Sequence[str], baseline: Path, kernel: Path) -> Iterator[None]:
    """Have sessions of this process run scripted cases, whose rows at the baseline are these."""
    cases = {case.nodeid: case for case in map(CaseResult.from_json, results)}
    versions = [Version.of(path.read_text("latin-1")) for path in (baseline, kernel)]
    child = partial(Scripted, cases, versions)
    with (
        mock.patch.object(supervisor, "Child", child),
        mock.patch.object(measurements, "Child", child),
    ):
        yield
