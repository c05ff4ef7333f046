"""The message of one case from the process that ran it to the controller, and what has arrived.

A message travels as one JSON string in a report's `user_properties`: it is streamed per test and
survives the death of its worker. A numpy scalar or a Path in there would kill an xdist worker.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from pytest_kopt import models
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.devices.states import COLD
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import CONSEQUENCES, Finding
from pytest_kopt.honesty.fingerprint import ObservedFiles
from pytest_kopt.numerics.gates import Gate
from pytest_kopt.schema.columns import Scalar, Schema
from pytest_kopt.schema.table import Row, Table, cell, make_row

if TYPE_CHECKING:
    import pytest

PROPERTY = "kopt"
#: Property of a report whose case left its process without a working GPU.
LOST = "kopt-context-lost"
#: Property of a report whose case the campaign's target_shapes leave out: its label.
OUTSIDE = "kopt-outside"
#: Property of the report of a marked test that passed without a call of its fixture.
NEVER = "kopt-never-called"
#: Properties of a report whose case has ended its process, and how: it ran once more, or was given
#: up. Of a report of a collection the first is an attribute: no process came so far.
DIED, DEAD = "kopt-died", "kopt-dead"
WIRE_VERSION = 1

#: UNCHECKED rows have times and nothing else: no reference says what is right. No campaign decides
#: on them, and they are refused wherever a CSV is read.
Check = Literal["PASS", "FAIL", "ERROR", "UNCHECKED"]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case: its row, and the evidence that the frozen CSV has no column for.

    `refusal` holds the message of input that cannot be used (drift, misfitting dims): such a case
    has no row and the session ends with exit code 4.
    """

    nodeid: str
    label: str = ""
    header: tuple[str, ...] = ()
    dims: dict[str, Scalar] = field(default_factory=dict)
    check: Check = "ERROR"
    cells: dict[str, Scalar | None] = field(default_factory=dict)
    diagnosis: str = ""
    evidence: CaseEvidence = field(default_factory=CaseEvidence)
    findings: tuple[Finding, ...] = ()
    refusal: str = ""

    def row(self) -> Row:
        values = {"label": self.label, **self.dims, "Check": self.check, **self.cells}
        return make_row(self.header, values)

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(cell(value) for value in self.dims.values())

    @property
    def schema(self) -> str:
        return self.evidence.schema or ""

    @property
    def weight(self) -> float:
        """The weight of its time in the weighted time of all cases."""
        return 1.0 if self.evidence.weight is None else self.evidence.weight

    def to_document(self) -> dict[str, Any]:
        return models.known(self)

    def to_json(self) -> str:
        """Return the wire form; Infinity and NaN are written as Python's json does."""
        return json.dumps({"v": WIRE_VERSION, **self.to_document()})

    @classmethod
    def from_json(cls, text: str) -> CaseResult:
        """Read the wire form, what is unknown aside; ValueError for another version or shape."""
        document = json.loads(text)
        if not isinstance(document, dict) or document.pop("v", None) != WIRE_VERSION:
            raise ValueError("a kopt result of another version")
        if isinstance(findings := document.get("findings"), list):
            # A name that no check uses any more must not keep an older record from being read.
            document["findings"] = [
                finding
                for finding in findings
                if not isinstance(finding, dict) or str(finding.get("check")) in CONSEQUENCES
            ]
        return models.read(cls, document)

    @classmethod
    def undecided(
        cls,
        nodeid: str,
        schema: Schema,
        dims: dict[str, Scalar],
        label: str,
        *,
        backward: bool = False,
        guessed: bool = False,
    ) -> CaseResult:
        """Return the ERROR result of a case not checked yet; its dims may be `guessed`."""
        return cls(
            nodeid=nodeid,
            label=label,
            header=schema.header(tuple(dims)),
            dims=dims,
            cells={c.name: math.nan for c in schema.columns if backward or not c.is_backward},
            evidence=CaseEvidence(
                schema=schema.name,
                quantities={c.name: c.quantity for c in schema.columns},
                guessed=guessed,
            ),
        )

    @classmethod
    def failed(cls, nodeid: str, expected: ExpectedCase, diagnosis: str) -> CaseResult:
        """Return the ERROR result of a case that could not speak for itself."""
        return cls(
            nodeid=nodeid,
            label=expected.label,
            header=expected.header,
            dims=dict(expected.dims),
            cells=dict.fromkeys(expected.metrics, math.nan),
            diagnosis=diagnosis,
        )


def loaded_by(results: Iterable[CaseResult]) -> set[str]:
    """Return the project's files that the processes of these cases had imported."""
    return {file for result in results for file in result.evidence.loaded or ()}


def observed_by(results: Sequence[CaseResult]) -> ObservedFiles:
    """Return what the processes of these cases had of the project's files."""
    judged_by = {file for result in results for file in result.evidence.judged_by or ()}
    return ObservedFiles(loaded_by(results), judged_by, opened_by(results))


def opened_by(results: Sequence[CaseResult]) -> dict[str, set[str]]:
    """Return the project's files that these processes had opened, and which files had them opened.

    Imports are not among them.
    """
    loaded, opened = loaded_by(results), dict[str, set[str]]()
    for result in results:
        for path, authors in (result.evidence.opened or {}).items():
            if path not in loaded:
                opened.setdefault(path, set()).update(authors)
    return opened


def table_of(results: Sequence[CaseResult]) -> Table | None:
    """Return the rows of these results, None without any; BadInput where two do not fit."""
    if not results:
        return None
    first = results[0]
    for result in results:
        if result.header != first.header:
            raise BadInput(
                f"cases of one CSV have the same columns, but {first.nodeid} has the dims "
                f"{', '.join(first.dims)}, {result.nodeid} {', '.join(result.dims)}",
                where=f"case {result.nodeid}",
                fix="name the tests of one function; without a campaign --summary-csv=DIR/ writes "
                "one CSV for each",
            )
    return Table(first.header, tuple(result.row() for result in results))


def device_model_of(results: Iterable[CaseResult]) -> str:
    """Return the model of the device that timed the cases; "" for none, several, and no times."""
    timed = (result.evidence for result in results if not result.evidence.interpreted)
    models = {evidence.device_model for evidence in timed if evidence.device_model}
    return models.pop() if len(models) == 1 else ""


def named(nodeid: str, dims: Mapping[str, Scalar]) -> str:
    """Return a case's label: its test and dims, `softmax rows=64`, in a class `Decode.softmax`."""
    return " ".join([operation(nodeid), *(f"{name}={value}" for name, value in dims.items())])


def operation(nodeid: str) -> str:
    """Return the names of a test's classes and its own, without the prefixes of pytest."""
    _, *classes, test = nodeid.partition("[")[0].split("::")
    return ".".join([*(name.removeprefix("Test") for name in classes), test.removeprefix("test_")])


def names(cases: Iterable[CaseResult | ExpectedCase]) -> dict[str, str]:
    """Return a name by node id that no other case has: the label where it tells cases apart.

    Tests of one name in several files have their file's in front. A label that is still not
    the case's alone gives way to the node id.
    """
    cases, files = list(cases), dict[str, set[str]]()
    for case in cases:
        files.setdefault(operation(case.nodeid), set()).add(case.nodeid.partition("::")[0])

    def told_apart(case: CaseResult | ExpectedCase) -> str:
        test = operation(case.nodeid)
        if len(files[test]) == 1 or not f"{case.label} ".startswith(f"{test} "):
            return case.label
        file = PurePath(case.nodeid.partition("::")[0]).stem
        return f"{file.removeprefix('test_')}.{case.label}"

    labels = {case.nodeid: told_apart(case) for case in cases}
    shared = Counter(labels.values())
    return {nodeid: text if shared[text] == 1 else nodeid for nodeid, text in labels.items()}


@dataclass(frozen=True, slots=True)
class ExpectedCase:
    """A case as the baseline froze it.

    The incumbent was measured on `device` (its UUID), in `seconds`; "" and 0 where not known.
    `accuracy` is what the baseline's results reached, by name; `by_torch` tells
    which operators of torch alone made them, `libraries` what its process had to import.
    `autotuned`: its process chose configurations of autotuned kernels.
    `limit_pct`, `limit_us`, `weight`, `cache` and `operating_point` are as declared.
    `bitwise_stable`: all the incumbent's calls on equal inputs gave equal bits.
    `gates` are those that were derived, by name of the result.
    """

    nodeid: str
    label: str
    header: tuple[str, ...]
    dims: dict[str, Scalar]
    empty: tuple[str, ...] = ()
    engine: str = ""
    seconds: float = 0.0
    device: str = ""
    accuracy: dict[str, Accuracy] = field(default_factory=dict)
    by_torch: str = ""
    limit_pct: float | None = None
    limit_us: float | None = None
    weight: float = 1.0
    cache: str = COLD
    operating_point: str | None = None
    libraries: tuple[str, ...] = ()
    autotuned: bool = False
    bitwise_stable: bool = False
    gates: dict[str, Gate] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(cell(value) for value in self.dims.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns after Check that this case fills (no backward leaves some empty)."""
        names = self.header[self.header.index("Check") + 1 :]
        return tuple(name for name in names if name not in self.empty)

    @classmethod
    def of(cls, result: CaseResult) -> ExpectedCase:
        names = result.header[result.header.index("Check") + 1 :]
        empty = tuple(name for name in names if result.cells.get(name) is None)
        return cls(
            result.nodeid,
            result.label,
            result.header,
            dict(result.dims),
            empty,
            result.evidence.engine or "",
            accuracy=result.evidence.accuracy or {},
            by_torch=result.evidence.by_torch or "",
            limit_pct=result.evidence.limit_pct,
            limit_us=result.evidence.limit_us,
            weight=result.weight,
            cache=result.evidence.cache or COLD,
            operating_point=result.evidence.operating_point,
            libraries=result.evidence.libraries or (),
            autotuned=bool(result.evidence.autotuned),
            gates=result.evidence.derived_gates or {},
        )


@dataclass(slots=True)
class Collector:
    """Results by node id, and everything that went wrong on the way.

    `order` are the collected node ids in declaration order. `lost` describes workers that died
    while a case ran which later ran through; `dead` maps a case to how it killed its worker twice.
    `undecided` are the rows of cases that were declared, for those that die. `context_lost` are
    cases after which their process had no working GPU: their rows stand, the process was replaced.
    `outside` are the labels of cases that target_shapes leaves out, `silent` the node ids of marked
    tests that passed and never called their fixture. `refused` maps each reason to its case.
    A test that fails as its xfail mark expects has no row: it is `skipped` and in `failures`.
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
    refused: dict[str, str] = field(default_factory=dict)

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
        """Return the rows in declaration order, None without any; BadInput where two are alike."""
        table = table_of(self.in_order())
        if table:
            table.check_unique("this session")
        return table

    def passed(self) -> list[str]:
        return [result.nodeid for result in self.in_order() if result.check == "PASS"]

    def in_order(self) -> list[CaseResult]:
        """Return the rows in declaration order, each with a label of its own."""
        place = self._places()
        rows = [result for result in self.results.values() if result.header]
        rows.sort(key=lambda result: place.get(result.nodeid, len(place)))
        labels = names(rows)
        return [replace(result, label=labels[result.nodeid]) for result in rows]

    def refusals(self) -> list[str]:
        """Return the reasons in declaration order; workers send theirs in any order."""
        place = self._places()
        return sorted(self.refused, key=lambda text: place.get(self.refused[text], len(place)))

    def _places(self) -> dict[str, int]:
        return {nodeid: i for i, nodeid in enumerate(self.order)}

    def _add(self, text: str) -> None:
        try:
            result = CaseResult.from_json(text)
        except ValueError as error:
            self.refused[f"a worker sent {error}"] = ""
            return
        if result.refusal:
            self.refused.setdefault(result.refusal, result.nodeid)
            return
        if result.nodeid in self.skipped:
            return
        # A plugin may have run its test again: a case that failed once stays failed.
        earlier = self.results.get(result.nodeid)
        if earlier is None or earlier.check == "PASS":
            self.results[result.nodeid] = result
