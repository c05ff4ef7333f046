"""Running one case: hold it against the baseline, check, time, and fill its row."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_kopt.cases.case import Case, function_name
from pytest_kopt.cases.check import CheckReport, check_case, grad_out, make_inputs
from pytest_kopt.cases.result import CaseResult, ExpectedCase
from pytest_kopt.cases.seeds import derive
from pytest_kopt.devices.conditions import Conditions, steadily
from pytest_kopt.devices.lock import checking_lock, timing_lock
from pytest_kopt.devices.model import device_model
from pytest_kopt.devices.vendor import Reading
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.rehearsal import rehearse
from pytest_kopt.measure.choice import prepare
from pytest_kopt.measure.cold import InputPool, input_pool, launch_stream
from pytest_kopt.measure.engine import Block, Call, Timing, time_block
from pytest_kopt.measure.wall import WallEngine, one_thread
from pytest_kopt.numerics.determinism import tensors
from pytest_kopt.schema.profile import Scalar, gate_holds, parse_gate
from pytest_kopt.schema.table import describe_header_drift


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how the cases of this process are measured.

    `device` is torch's name, `uuid` what its host calls it, `read` returns its state. `expected`
    holds the baseline's cases by node id, None when nothing is frozen yet.
    """

    device: str
    engine: str
    session_seed: int
    expected: Mapping[str, ExpectedCase] | None = None
    cpu: WallEngine = field(default_factory=WallEngine)
    uuid: str = "cpu"
    read: Callable[[], Reading] = Reading


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's result with the timings behind it (None where it was not timed)."""

    result: CaseResult
    forward: Timing | None = None
    backward: Timing | None = None
    figures: dict[str, float] = field(default_factory=dict)


def run_case(case: Case, bench: Bench) -> Outcome:
    """Check, then time a case.

    Raises BadInput when the case does not fit its schema or the baseline; nothing is timed then.
    """
    hold_against_baseline(case, bench.expected)
    start = time.perf_counter()
    with checking_lock(bench.uuid):
        report = check_case(case, bench.session_seed)
    check, diagnosis = report.check, report.diagnosis
    forward = backward = None
    evidence = _evidence(case, bench, report)
    if check == "PASS" and not report.findings:
        with one_thread(), timing_lock(bench.uuid):
            rehearsal = rehearse(
                case,
                bench.session_seed,
                bench.device,
                min([report.out_snr, *report.gradients.values()]),
                timed=not report.interpreted,
            )
        report = replace(report, findings=rehearsal.findings)
        evidence["training"] = rehearsal.evidence
    refused = [found for found in report.findings if found.rejects]
    if check == "PASS" and not refused:
        with one_thread(), timing_lock(bench.uuid):
            timed = time_case(case, bench, report.interpreted)
        forward, backward = timed.forward, timed.backward
        evidence |= {
            "engine": "+".join(timing.engine for timing in (forward, backward) if timing),
            "threads": 1,
            "cold_cache": timed.cold_cache,
            "queue_full": timed.queue_full,
            "conditions": timed.conditions.to_document(),
            "timed": list(timed.interval),
            "forward_samples_ms": list(forward.samples_ms),
            "calls_per_sample": forward.calls_per_sample,
        }
        if backward:
            evidence["backward_samples_ms"] = list(backward.samples_ms)
    elif refused:
        check = "FAIL"
        diagnosis = "\n".join([*map(str, refused), diagnosis])
    evidence["seconds"] = time.perf_counter() - start
    figures = _figures(case, report, forward, backward)
    cells = {
        column.name: figures.get(column.quantity, math.nan)
        for column in case.schema.columns
        if case.backward or not column.is_backward
    }
    if check == "PASS" and case.schema.gate:
        column, _, _ = parse_gate(case.schema.gate)
        if not gate_holds(case.schema.gate, float(cells[column])):
            check, diagnosis = "FAIL", f"gate {case.schema.gate!r} fails: {cells[column]!r}"
            # A case that fails its check has no metrics, whatever was measured.
            cells |= {
                c.name: math.nan for c in case.schema.columns if c.name in cells and c.is_time
            }
    result = CaseResult(
        nodeid=case.nodeid,
        label=case.label,
        header=case.header,
        dims=case.dims,
        check=check,
        cells=dict(cells),
        diagnosis=diagnosis,
        evidence=evidence,
        findings=report.findings,
    )
    return Outcome(result, forward, backward, figures)


def hold_against_baseline(case: Case, expected: Mapping[str, ExpectedCase] | None) -> None:
    """Raise BadInput when the case is not the one that the baseline froze under this node id."""
    if expected is None:
        return
    where = f"case {case.nodeid}"
    frozen = expected.get(case.nodeid)
    if frozen is None:
        raise BadInput("is not in the baseline", where=where, legal="the cases of the baseline")
    if case.header != frozen.header:
        raise BadInput(
            describe_header_drift(case.header, frozen.header),
            where=where,
            legal=",".join(frozen.header),
        )
    empty = {column.name for column in case.schema.columns if column.is_backward}
    had_backward = not empty or not empty <= set(frozen.empty)
    if empty and case.backward != had_backward:
        raise BadInput(
            f"backward is {case.backward} now", where=where, legal=f"the baseline's {had_backward}"
        )
    if case.dims != frozen.dims:
        raise BadInput(
            f"dims drifted: {case.dims}", where=where, legal=f"the baseline's {frozen.dims}"
        )


@dataclass(frozen=True, slots=True)
class Timed:
    """The timings of a case and what they were made under.

    `interval` is from when to when the device was its own, in seconds since the epoch.
    `queue_full` is whether the launcher kept ahead of the device, None where it does not matter.
    """

    forward: Timing
    backward: Timing | None
    conditions: Conditions
    cold_cache: dict[str, Any]
    interval: tuple[float, float]
    queue_full: bool | None


def time_case(case: Case, bench: Bench, interpreted: bool) -> Timed:
    """Time forward, and backward where the case has one, on fresh inputs.

    Once more, up to twice, while the device is throttled or drifts.
    """
    since = time.time()
    seed = derive(bench.session_seed, case.nodeid, "time")
    pool = input_pool(lambda i: make_inputs(case, seed + i), bench.device)
    forward, backward = prepare_blocks(case.function, case, pool, bench, interpreted, seed)

    def measure() -> tuple[Timing, Timing | None]:
        return time_block(forward), time_block(backward) if backward else None

    timings, conditions = steadily(measure, bench.read)
    queues = [b.queue_full for b in (forward, backward) if b and b.queue_full is not None]
    interval = (since, time.time())
    full = all(queues) if queues else None
    return Timed(*timings, conditions, pool.to_document(), interval, full)


def prepare_blocks(
    function: Callable[..., Any],
    case: Case,
    pool: InputPool,
    bench: Bench,
    interpreted: bool,
    seed: int,
) -> tuple[Block, Block | None]:
    """Return the forward block of one version of a case's function, and its backward block."""
    frozen = (bench.expected or {}).get(case.nodeid)
    engines = frozen.engine.split("+") if frozen and frozen.engine else [bench.engine] * 2
    calls = [functools.partial(function, *given) for given in pool.sets]
    flush = pool.flush
    forward = prepare(engines[0], bench.device, interpreted, calls, flush, bench.cpu)
    if not case.backward:
        return forward, None
    # Autograd runs a backward on its forward's stream, and only there can it be captured.
    with launch_stream(bench.device):
        back = [backward_call(function, given, seed) for given in pool.sets]
    return forward, prepare(engines[-1], bench.device, interpreted, back, flush, bench.cpu)


def backward_call(function: Callable[..., Any], given: Sequence[Any], seed: int) -> Call:
    """Return a call that runs one backward over a graph built once."""
    outputs = [out for out in tensors(function(*given)) if out.requires_grad]
    leaves = [item for item in given if isinstance(item, torch.Tensor) and item.requires_grad]
    seeds = [grad_out(out, seed) for out in outputs]

    def call() -> object:
        return torch.autograd.grad(outputs, leaves, seeds, retain_graph=True, allow_unused=True)

    return call


def _figures(
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


def _evidence(case: Case, bench: Bench, report: CheckReport) -> dict[str, Any]:
    dims: dict[str, Scalar] = case.dims
    return {
        "function": f"{getattr(case.function, '__module__', '?')}.{function_name(case.function)}",
        "dims": dims,
        "device": bench.uuid,
        "gate": report.gate,
        "interpreted": report.interpreted,
        "session_seed": bench.session_seed,
        "seeds": report.seeds,
        "flops": list(case.flops) if case.flops else None,
        "nbytes": list(case.nbytes) if case.nbytes else None,
        "io_bytes": report.io_bytes,
        "dtype": report.dtype,
        "device_model": device_model(bench.device),
        "weights": list(case.weights),
        "better": {c.name: c.better for c in case.schema.columns if c.better},
        "torch": torch.__version__,
    }
