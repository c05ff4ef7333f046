"""The rows and reports that have arrived from the processes that ran cases."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from pytest_kopt.cases.result import (
    DEAD,
    DIED,
    LOST,
    NEVER,
    OUTSIDE,
    PROPERTY,
    CaseResult,
    table_of,
)
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.schema.table import Table


@dataclass(slots=True)
class Collector:
    """Results by node id, and everything that went wrong on the way.

    `order` are the collected node ids in declaration order. `lost` describes workers that died
    while a case ran which later ran through; `dead` maps a case to how it killed its worker twice.
    `undecided` are the rows of cases that were declared, for those that die. `context_lost` are
    cases after which their process had no working GPU: their rows stand, the process was replaced.
    `outside` are the labels of cases that target_shapes leaves out, `silent` the node ids of marked
    tests that passed and never called their fixture. A test that fails as its xfail mark expects is
    `skipped` and among the `failures`: it has no row.
    """

    order: list[str] = field(default_factory=list)
    results: dict[str, CaseResult] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    collect_errors: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    undecided: dict[str, CaseResult] = field(default_factory=dict)
    context_lost: set[str] = field(default_factory=set)
    outside: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    startup_death: str = ""
    refusals: list[str] = field(default_factory=list)

    def collected(self, ids: list[str]) -> None:
        collected_ids = set(self.order)
        self.order += [nodeid for nodeid in ids if nodeid not in collected_ids]

    def add_report(self, report: pytest.TestReport) -> None:
        """Take the results out of a report's properties, each once."""
        if report.skipped and report.when in ("setup", "call"):
            self.skipped.add(report.nodeid)
            if hasattr(report, "wasxfail"):
                self.failures[report.nodeid] = report.longreprtext
        if report.failed and report.when in ("setup", "call"):
            self.failures[report.nodeid] = report.longreprtext
        for name, text in report.user_properties:
            if name in (DIED, DEAD):
                self._note_end(report.nodeid, str(text), is_last=name == DEAD)
            if name == PROPERTY and isinstance(text, str):
                self._add(text)
            if name == LOST:
                self.context_lost.add(report.nodeid)
            if name == OUTSIDE:
                self.outside[report.nodeid] = str(text)
            if name == NEVER:
                self.silent.add(report.nodeid)

    def declared(self, text: str) -> None:
        """Take over the row that a case gets if it kills its process."""
        result = CaseResult.from_json(text)
        self.undecided[result.nodeid] = result

    def add_collect_error(self, report: pytest.CollectReport) -> None:
        self.collect_errors[report.nodeid] = report.longreprtext
        self.startup_death = getattr(report, DIED, self.startup_death)

    def died(self, nodeid: str | None, how: str, times: int, limit: int) -> None:
        """Keep a worker's death: while starting, or while a case ran for the first or last time."""
        if nodeid is None:
            self.startup_death = how if times >= limit else self.startup_death
            return
        self._note_end(nodeid, how, is_last=times >= limit)
        if nodeid in self.dead and nodeid in self.undecided:
            self.results[nodeid] = replace(self.undecided[nodeid], diagnosis=how)

    def _note_end(self, nodeid: str, how: str, *, is_last: bool) -> None:
        # It may have sent its row before it died; the second run sends another.
        self.results.pop(nodeid, None)
        if is_last:
            self.dead[nodeid] = how
        else:
            self.lost.append(f"{nodeid}: {how.splitlines()[0]}")

    def lost_after_all(self) -> list[str]:
        """Return the deaths that were not the case's own doing: its second run went through."""
        dead = tuple(f"{nodeid}: " for nodeid in self.dead)
        return [text for text in self.lost if not text.startswith(dead)]

    def xfailed(self) -> list[str]:
        return sorted(self.skipped & self.failures.keys())

    def never_called(self) -> list[Finding]:
        message = "a test marked kopt did not call kopt(), so kopt checked nothing"
        advice = "call kopt(), or remove the marker"
        return [Finding("never-called", message, nodeid, advice) for nodeid in sorted(self.silent)]

    def take_over(self, rerun: Collector) -> None:
        """Have what arrived of another run of the same cases stand for this one's."""
        self.results, self.undecided = rerun.results, rerun.undecided
        self.failures, self.dead, self.lost = rerun.failures, rerun.dead, rerun.lost
        self.collect_errors, self.startup_death = rerun.collect_errors, rerun.startup_death

    def table(self) -> Table | None:
        """Return the rows in declaration order, None without any; BadInput where two do not fit."""
        return table_of(self.in_order())

    def passed(self) -> list[str]:
        return [result.nodeid for result in self.in_order() if result.check == "PASS"]

    def in_order(self) -> list[CaseResult]:
        place = {nodeid: i for i, nodeid in enumerate(self.order)}
        rows = [result for result in self.results.values() if result.header]
        return sorted(rows, key=lambda result: place.get(result.nodeid, len(place)))

    def _add(self, text: str) -> None:
        try:
            result = CaseResult.from_json(text)
        except ValueError as error:
            self.refusals.append(f"a worker sent {error}")
            return
        if result.refusal:
            if result.refusal not in self.refusals:
                self.refusals.append(result.refusal)
            return
        if result.nodeid in self.skipped:
            return
        # A plugin may have run its test again: a case that failed once stays failed.
        earlier = self.results.get(result.nodeid)
        if earlier is None or earlier.check == "PASS":
            self.results[result.nodeid] = result
