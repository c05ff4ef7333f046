"""Running one case: compare it with the baseline's, check it, time it, and fill its row."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.order import WAYS, Bench, hold_against_baseline
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.cases.running.check import (
    CheckedCase,
    check_case,
    kernel_traceback,
    refuse_own_fault,
)
from pytest_kopt.cases.running.inspected_results import floors
from pytest_kopt.cases.running.spot_checks import wrong_results
from pytest_kopt.cases.running.switches import new_operators
from pytest_kopt.cases.running.timing import time_case
from pytest_kopt.devices.lock import checking_lock, timing_lock
from pytest_kopt.errors import BadInput
from pytest_kopt.measure.engine import Timing
from pytest_kopt.measure.wall import one_thread
from pytest_kopt.numerics.compare import InvalidReference
from pytest_kopt.schema.columns import Scalar, gate_holds, parse_gate
from pytest_kopt.schema.table import Classes

#: How far below its SNR in the check a timed result may lie, in dB, before it is plainly wrong.
_OWN_SLACK_DB = 10.0
_RAISES = "passed its check, but raises in a timed call"
_IN_ORDER = (
    "Timed inputs have the values that the case draws, scaled a little, with "
    "a few elements exchanged. Fix: if the function is not defined for "
    "these, declare domain='declared order' in the case"
)


def run_case(case: Case, bench: Bench) -> tuple[CaseResult, Sequence[Timing], dict[str, float]]:
    """Check, then time a case; return its result, what each direction took, and its figures.

    Raises BadInput when the case does not fit its schema or the baseline; nothing is timed then.
    """
    hold_against_baseline(case, bench.expected)
    Classes(bench.classes).check_columns(case.dims)
    start = time.perf_counter()
    # One thread here as well: a checked call has to look like a timed one.
    with one_thread(), checking_lock(bench.uuid, bench.waiting):
        checked = check_case(case, bench)
        checked.findings[:0] = new_operators(bench)
    if bench.times(case.nodeid, bool(checked.evidence.interpreted)) and checked.goes_on:
        with one_thread():
            _time(checked)
        new = new_operators(bench)
        checked.findings += [finding for finding in new if finding not in checked.findings]
    return _filled(checked, start)


def _time(checked: CheckedCase) -> None:
    """Time the case; one that raises then is an ERROR."""
    bench = checked.bench
    try:
        # Once: who asks for a device alone waits for all that check on it.
        with timing_lock(bench.uuid, bench.waiting):
            blocks = time_case(checked)
        with checking_lock(bench.uuid, bench.waiting):
            snr_floors = floors(checked.evidence.accuracy or {}, _OWN_SLACK_DB)
            checked.findings += wrong_results(blocks, snr_floors)
    except BadInput:
        raise
    except Exception as error:
        is_of_the_reference = isinstance(error, InvalidReference)
        if not is_of_the_reference:
            refuse_own_fault(checked.case, error)
        text = str(error) if is_of_the_reference else kernel_traceback(error, bench)
        checked.check, checked.timings = "ERROR", ()
        may_be_order = not checked.case.keeps_order and not isinstance(
            error, torch.OutOfMemoryError
        )
        # A verdict takes the last line for the error.
        lines = (_RAISES, *([_IN_ORDER] if may_be_order else []), text)
        checked.diagnosis = "\n".join(lines)


def _filled(
    checked: CheckedCase, start: float
) -> tuple[CaseResult, Sequence[Timing], dict[str, float]]:
    """Fill the row; the case began at `start` on the clock of perf_counter."""
    case, check, diagnosis = checked.case, checked.check, checked.diagnosis
    timings = checked.timings
    if any(finding.rejects for finding in checked.findings):
        # What a refused kernel was timed at means nothing.
        check, timings = "FAIL" if check == "PASS" else check, ()
    if checked.findings and check != "PASS":
        diagnosis = "\n".join([*map(str, checked.findings), diagnosis]).rstrip()
    evidence = replace(checked.evidence, seconds=time.perf_counter() - start)
    figures = checked.figures | figures_of_case(case, timings)
    cells: dict[str, Scalar | None] = {
        column.name: figures.get(column.quantity, math.nan)
        for column in case.schema.columns
        if case.backward or not column.is_backward
    }
    if check == "PASS" and (failed := _failed_gate(case, figures, is_timed=bool(timings))):
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
        findings=tuple(checked.findings),
    )
    return result, timings, figures


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


def figures_of_case(case: Case, timings: Sequence[Timing]) -> dict[str, float]:
    """Return times and rates by the quantities of a schema's columns."""
    figures: dict[str, float] = {}
    for position, (way, timing) in enumerate(zip(WAYS, timings, strict=False)):
        figures[f"{way}_ms"] = timing.mean_ms
        figures[f"{way}_ms_stddev"] = timing.stddev_ms
        figures[f"{way}_us"] = timing.mean_ms * 1e3
        if case.work and case.schema.unit:
            rate, spread = timing.rate(case.work[position], case.schema.unit)
            figures[f"{way}_rate"], figures[f"{way}_rate_stddev"] = rate, spread
    return figures
