"""The columns of tables for people: a heading, and the cell of what a row is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pytest_kopt.figures import changed, figure, interval

if TYPE_CHECKING:
    from pytest_kopt.decide.verdict import FirstCall

Column = tuple[str, Callable[[Any], str]]


def rows(records: Iterable[Any], *columns: Column) -> list[dict[str, str]]:
    """Return a row for each record, its cells by heading."""
    return [{heading: cell(record) for heading, cell in columns} for record in records]


def first_call(call: FirstCall | None) -> str:
    """Return the first calls' times, before -> now in ms."""
    return f"{call.incumbent:.0f} -> {call.candidate:.0f}" if call else ""


def headed(column: Column, heading: str) -> Column:
    return heading, column[1]


CHANGE: Column = ("vs incumbent", lambda record: changed(record.change_pct))
INTERVAL: Column = (
    "Interval",
    lambda record: interval(record.change_pct, record.low_pct, record.high_pct),
)
INCUMBENT: Column = ("Incumbent", lambda record: figure(record.incumbent))
CANDIDATE: Column = ("Candidate", lambda record: figure(record.candidate))
STATUS: Column = ("Status", attrgetter("status"))
CHECK: Column = ("Check", attrgetter("check"))

GEOMEANS = (("Geomean", attrgetter("metric")), INCUMBENT, CANDIDATE, CHANGE, INTERVAL)
SUMS = (("All cases", attrgetter("metric")), INCUMBENT, CANDIDATE, CHANGE, INTERVAL)
CASES = (
    ("Case", attrgetter("label")),
    ("Dims", lambda case: ", ".join(f"{name}={value}" for name, value in case.dims.items())),
    *(CHECK, CHANGE, INTERVAL, STATUS),
)
#: Of cases in which both versions were measured: before -> now.
COSTS: tuple[Column, ...] = (
    ("Memory", lambda case: case.memory.in_mib if case.memory else ""),
    ("First call (ms)", lambda case: first_call(case.first_call_ms)),
)
CLASSES = (
    ("Class", attrgetter("name")),
    ("Cases", lambda group: str(group.cases)),
    *(INCUMBENT, CANDIDATE, CHANGE, INTERVAL, STATUS),
)
CANDIDATES = (
    ("Place", lambda raced: str(raced.place)),
    ("Candidate", attrgetter("name")),
    ("Decision", lambda raced: str(raced.decision)),
    *(CHANGE, INTERVAL),
    ("Reason", attrgetter("reason")),
)
AUDIT = (
    ("Round", lambda audited: f"round-{audited.round}"),
    ("Bucket", lambda audited: audited.bucket or "-"),
    ("Benchmark gain", lambda audited: changed(audited.benchmark_pct)),
    ("With fresh tensors", lambda audited: changed(audited.credited_pct)),
    ("Decision", attrgetter("decision")),
)
REGRESSIONS = (
    ("Round", lambda slower: f"round-{slower.round} attempt {slower.attempt}"),
    ("Time", attrgetter("time")),
    ("Hypothesis", lambda slower: slower.hypothesis or "not stated"),
    ("Changed files", lambda slower: ", ".join(slower.files)),
    (
        "Benchmark best -> candidate",
        lambda slower: f"{slower.metric} {figure(slower.incumbent)} -> {figure(slower.candidate)}",
    ),
    (
        "GPU time best -> candidate (us)",
        lambda slower: (
            f"{figure(slower.incumbent_kernel_us)} -> {figure(slower.candidate_kernel_us)}"
        ),
    ),
    ("Delta", lambda slower: changed(slower.change_pct)),
    ("Notes", attrgetter("points")),
)
