"""Running one case: compare it with the baseline's, check it, time it, and fill its row."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import torch

from pytest_kopt.cases.case import Case, function_name
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult, Check
from pytest_kopt.cases.running.bench import Bench, hold_against_baseline
from pytest_kopt.cases.running.check import CheckReport, check_case, kernel_traceback
from pytest_kopt.cases.running.timing import Timed, time_case
from pytest_kopt.cases.running.training_check import Recall, Rehearsal
from pytest_kopt.devices.lock import checking_lock, timing_lock
from pytest_kopt.devices.machine import device_model
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.checks import Phase, ask, load
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.measure.engine import Timing
from pytest_kopt.measure.wall import one_thread
from pytest_kopt.schema.profile import Scalar, gate_holds, parse_gate

# A kernel that is imported later finds every check bound to what is genuine.
load()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's result with the timings behind it (None where it was not timed)."""

    result: CaseResult
    forward: Timing | None = None
    backward: Timing | None = None
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Course:
    """A checked case on its way to a row, and what is known of it so far."""

    case: Case
    bench: Bench
    report: CheckReport
    check: Check
    diagnosis: str
    findings: list[Finding]
    evidence: CaseEvidence
    timed: Timed | None = None

    @property
    def goes_on(self) -> bool:
        return self.check == "PASS" and not any(found.rejects for found in self.findings)

    @property
    def is_timed(self) -> bool:
        return self.bench.times(self.report.interpreted)

    def watched(self) -> None:
        self.findings += [new for new in self.bench.watched() if new not in self.findings]


def run_case(case: Case, bench: Bench, session: object = None) -> Outcome:
    """Check, then time a case; `session` tells what the kernel did to the test's report.

    Raises BadInput when the case does not fit its schema or the baseline; nothing is timed then.
    """
    hold_against_baseline(case, bench.expected)
    bench.classes.check_columns(case.dims)
    start = time.perf_counter()
    # One thread here as well: a checked call has to look like a timed one.
    with one_thread(), checking_lock(bench.uuid, bench.waiting):
        course = _checked(case, bench)
        if course.goes_on:
            _train(course)
    if course.is_timed and course.goes_on:
        # Once: who asks for a device alone waits for all that check on it.
        with one_thread(), timing_lock(bench.uuid, bench.waiting):
            if not course.report.interpreted:
                _recall(course)
            if course.goes_on:
                _time(course)
    if session:
        course.findings += ask(Phase.CASE, session=session)
    return _outcome(course, start)


def _checked(case: Case, bench: Bench) -> _Course:
    findings = bench.watched()
    report = check_case(
        case,
        bench.session_seed,
        device=bench.device,
        language=bench.language,
        left_to_torch=bench.left_to_torch(case.nodeid),
        baseline=bench.accuracy(case.nodeid),
        freezes=bench.freezes,
    )
    case = report.case or case
    findings += report.findings
    evidence = _evidence(case, bench, report)
    course = _Course(case, bench, report, report.check, report.diagnosis, findings, evidence)
    course.watched()
    return course


def _train(course: _Course) -> None:
    usual_db = min([course.report.out_snr, *course.report.gradients.values()])
    found = Rehearsal(course.case, course.bench.session_seed, usual_db)
    course.findings += found.findings
    course.evidence = replace(course.evidence, training=found.evidence)


def _recall(course: _Course) -> None:
    recall = Recall(course.case, course.bench.session_seed, course.bench.device)
    course.findings += ask(Phase.RECALLED, recall=recall)
    assert course.evidence.training is not None
    training = replace(course.evidence.training, reuse_log_ratios=tuple(recall.log_gains))
    course.evidence = replace(course.evidence, training=training)


def _time(course: _Course) -> None:
    """Time the case; one that raises then is an ERROR."""
    try:
        timed = time_case(course.case, course.bench, course.report, course.evidence)
    except BadInput:
        raise
    except Exception as error:
        text = kernel_traceback(error)
        course.check = "ERROR"
        course.diagnosis = f"passed its check but raises when it is timed\n{text}"
        return
    course.timed, course.evidence = timed, timed.evidence
    course.findings += timed.findings
    course.watched()


def _outcome(course: _Course, start: float) -> Outcome:
    """Fill the row; the case began at `start` on the clock of perf_counter."""
    case, check, diagnosis = course.case, course.check, course.diagnosis
    timed = course.timed
    if any(found.rejects for found in course.findings):
        # What a refused kernel was timed at means nothing.
        check, timed = "FAIL" if check == "PASS" else check, None
    forward, backward = (*(timed.timings if timed else ()), None, None)[:2]
    if course.findings and check != "PASS":
        diagnosis = "\n".join([*map(str, course.findings), diagnosis]).rstrip()
    evidence = replace(course.evidence, seconds=time.perf_counter() - start)
    figures = figures_of(case, course.report, forward, backward)
    cells: dict[str, Scalar | None] = {
        column.name: figures.get(column.quantity, math.nan)
        for column in case.schema.columns
        if case.backward or not column.is_backward
    }
    if check == "PASS" and (failed := _failed_gate(case, figures, is_timed=forward is not None)):
        check, diagnosis = "FAIL", failed
        # A case that fails its check has no metrics, whatever was measured.
        cells |= {c.name: math.nan for c in case.schema.columns if c.name in cells and c.is_time}
    result = CaseResult(
        nodeid=case.nodeid,
        label=case.label,
        header=case.header,
        dims=case.dims,
        check=check,
        cells=cells,
        diagnosis=diagnosis,
        evidence=evidence,
        findings=tuple(course.findings),
    )
    return Outcome(result, forward, backward, figures)


def _failed_gate(case: Case, figures: dict[str, float], *, is_timed: bool) -> str:
    """Return how the schema's own gate fails, "" where it holds or its column was not timed."""
    if not case.schema.gate:
        return ""
    name, _, _ = parse_gate(case.schema.gate)
    column = next(c for c in case.schema.columns if c.name == name)
    value = figures.get(column.quantity, math.nan)
    if (column.is_time and not is_timed) or gate_holds(case.schema.gate, value):
        return ""
    return f"gate {case.schema.gate!r} fails: {value!r}"


def figures_of(
    case: Case, report: CheckReport, forward: Timing | None, backward: Timing | None
) -> dict[str, float]:
    figures = {
        "out_snr": report.out_snr,
        "max_abs_error": report.max_abs_error,
        "mismatch_share": report.mismatch_share,
        "grad_snr": min(report.gradients.values(), default=math.nan),
        **{f"grad_snr:{position}": snr for position, snr in report.gradients.items()},
    }
    for way, timing, position in (("forward", forward, 0), ("backward", backward, 1)):
        if timing is None:
            continue
        figures[f"{way}_ms"] = timing.mean_ms
        figures[f"{way}_ms_stddev"] = timing.stddev_ms
        figures[f"{way}_us"] = timing.mean_ms * 1e3
        if case.work and case.schema.unit:
            rate, spread = timing.rate(case.work[position], case.schema.unit)
            figures[f"{way}_rate"], figures[f"{way}_rate_stddev"] = rate, spread
    return figures


def _evidence(case: Case, bench: Bench, report: CheckReport) -> CaseEvidence:
    return CaseEvidence(
        schema=case.schema.name,
        function=f"{getattr(case.function, '__module__', '?')}.{function_name(case.function)}",
        dims=case.dims,
        device=bench.uuid,
        gate=report.gate,
        failed=report.failed or None,
        interpreted=report.interpreted,
        session_seed=bench.session_seed,
        seeds=report.seeds,
        flops=case.flops,
        nbytes=case.nbytes,
        io_bytes=report.io_bytes,
        counted_flops=report.counted_flops,
        by_torch=report.by_torch,
        dtype=report.dtype,
        device_model=device_model(bench.device),
        weights=case.weights,
        domain=case.domain or None,
        groups=report.groups if case.is_grouped else None,
        better={c.name: c.better for c in case.schema.columns if c.better},
        torch=torch.__version__,
        accuracy=report.accuracy,
    )
