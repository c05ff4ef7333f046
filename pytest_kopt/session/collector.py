"""What has arrived from the processes that ran cases."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pytest_kopt.cases.result import LOST, OUTSIDE, PROPERTY, CaseResult
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.table import Table


@dataclass(slots=True)
class Collector:
    """Results by node id, and everything that went wrong on the way.

    `order` are the collected node ids in declaration order. `lost` describes workers that died
    while a case ran which later ran through; `dead` maps a case to how it killed its worker twice,
    `crashed` one that killed an xdist worker and waits for its second run. `context_lost` are
    cases after which their process had no working GPU: their rows stand, the process was replaced.
    `outside` are the labels of cases that target_shapes leaves out.
    """

    order: list[str] = field(default_factory=list)
    results: dict[str, CaseResult] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    collect_errors: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    crashed: dict[str, str] = field(default_factory=dict)
    context_lost: set[str] = field(default_factory=set)
    outside: dict[str, str] = field(default_factory=dict)
    startup_death: str = ""
    refusals: list[str] = field(default_factory=list)

    def collected(self, ids: list[str]) -> None:
        """Take over the node ids of a collection; every worker's is the same."""
        known = set(self.order)
        self.order += [nodeid for nodeid in ids if nodeid not in known]

    def add_report(self, report: pytest.TestReport) -> None:
        """Take the results out of a report's properties, each once."""
        if report.skipped and report.when in ("setup", "call"):
            self.skipped.add(report.nodeid)
        if report.failed and report.when in ("setup", "call"):
            self.failures[report.nodeid] = report.longreprtext
        for name, text in report.user_properties:
            if name == PROPERTY and isinstance(text, str):
                self._add(text)
            if name == LOST:
                self.context_lost.add(report.nodeid)
            if name == OUTSIDE:
                self.outside[report.nodeid] = str(text)

    def add_collect_error(self, report: pytest.CollectReport) -> None:
        """Keep a file that could not be imported."""
        self.collect_errors[report.nodeid] = report.longreprtext

    def died(self, nodeid: str | None, how: str, times: int, limit: int) -> None:
        """Keep a worker's death: while starting, or while a case ran for the first or last time."""
        if nodeid is None:
            if times >= limit:
                self.startup_death = how
        elif times >= limit:
            self.dead[nodeid] = how
        else:
            self.lost.append(f"{nodeid}: {how.splitlines()[0]}")

    def lost_after_all(self) -> list[str]:
        """Return the deaths that were not the case's own doing: its second run went through."""
        dead = tuple(f"{nodeid}: " for nodeid in self.dead)
        return [text for text in self.lost if not text.startswith(dead)]

    def table(self) -> Table | None:
        """Return the rows in declaration order, None when there is none.

        Raises BadInput when two cases have different headers or the same dims.
        """
        found = self.in_order()
        if not found:
            return None
        first = found[0]
        for result in found:
            if result.header != first.header:
                raise BadInput(
                    f"cases of one CSV have one schema: {result.nodeid} has the columns "
                    f"{','.join(result.header)}",
                    where=f"case {result.nodeid}",
                    legal=",".join(first.header),
                )
        table = Table(first.header, tuple(result.row() for result in found))
        table.check_unique("this session")
        return table

    def passed(self) -> list[str]:
        """Return the node ids of the cases that passed their checks, in declaration order."""
        return [result.nodeid for result in self.in_order() if result.check == "PASS"]

    def in_order(self) -> list[CaseResult]:
        """Return the results that have a row, in declaration order."""
        place = {nodeid: i for i, nodeid in enumerate(self.order)}
        found = [result for result in self.results.values() if result.header]
        return sorted(found, key=lambda result: place.get(result.nodeid, len(place)))

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
        known = self.results.get(result.nodeid)
        if known is None:
            self.results[result.nodeid] = result
        elif known.to_json() != result.to_json():
            self.refusals.append(
                f"case {result.nodeid}: kopt() was called twice (legal: one case a test)"
            )
