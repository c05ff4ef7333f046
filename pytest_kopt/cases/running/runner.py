"""Running one case: hold it against the baseline, check, time, and fill its row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_kopt.cases.case import Case, function_name
from pytest_kopt.cases.evidence import CaseEvidence, ColdCache
from pytest_kopt.cases.result import CaseResult, ExpectedCase
from pytest_kopt.cases.running.check import CheckReport, check_case, kernel_traceback
from pytest_kopt.cases.running.execution import grad_out, make_inputs
from pytest_kopt.cases.running.spot_checks import (
    Backward,
    Forward,
    Looks,
    Recorder,
    Spotted,
    floors,
)
from pytest_kopt.cases.running.training_check import rehearse
from pytest_kopt.cases.seeds import derive
from pytest_kopt.devices.conditions import Conditions, steadily
from pytest_kopt.devices.lock import Waiting, checking_lock, timing_lock
from pytest_kopt.devices.model import device_model
from pytest_kopt.devices.vendor import Reading
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import Held
from pytest_kopt.honesty.physics import too_fast
from pytest_kopt.honesty.renewal import Renewal
from pytest_kopt.honesty.watching.background import taken_threads
from pytest_kopt.honesty.watching.watch import Watch
from pytest_kopt.measure.choice import prepare
from pytest_kopt.measure.cold import InputPool, input_pool, launch_stream
from pytest_kopt.measure.engine import Block, CaptureFailed, Timing, by_events, time_block
from pytest_kopt.measure.wall import WallEngine, one_thread
from pytest_kopt.schema.classes import NO_CLASSES, Classes
from pytest_kopt.schema.profile import gate_holds, parse_gate
from pytest_kopt.schema.table import describe_header_drift

#: How far below its SNR in the check a timed result may lie, in dB, before it is plainly wrong.
_OWN_SLACK_DB = 10.0
#: Runs of a block before the samples: they do not count.
_DISCARDED = 1


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how the cases of this process are measured.

    `device` is torch's name, `uuid` what its host calls it, `read` returns its state. `expected`
    holds the baseline's cases by node id, None when nothing is frozen yet; a run that `freezes` is
    the baseline itself. `watch` is this process's. Every case has to have the columns that tell
    the `classes` apart, and is timed by `repeats` samples, with `check_only` not at all; if it is
    `compared` later, it is asked there what known content is worth. A label or node id that is not
    among the `selected` (none: all) is left out. `waiting` is entered while a case waits for its
    turn on the device. A candidate is to be written in `language` ("": any).
    """

    device: str
    engine: str
    session_seed: int
    expected: Mapping[str, ExpectedCase] | None = None
    cpu: WallEngine = field(default_factory=WallEngine)
    uuid: str = "cpu"
    read: Callable[[], Reading] = Reading
    freezes: bool = False
    watch: Watch | None = None
    classes: Classes = NO_CLASSES
    selected: tuple[str, ...] = ()
    check_only: bool = False
    compared: bool = False
    repeats: int = 3
    waiting: Waiting = nullcontext
    language: str = ""

    def times(self, interpreted: bool) -> bool:
        """Say whether a case is timed; one that was interpreted only where a row has to be full."""
        is_recorded = self.freezes or self.expected is not None
        return not self.check_only and (is_recorded or not interpreted)

    def accuracy(self, nodeid: str) -> dict[str, Accuracy]:
        """Return what the baseline's results of a case reached, by name."""
        frozen = (self.expected or {}).get(nodeid)
        return frozen.accuracy if frozen else {}

    def left_to_torch(self, nodeid: str) -> str | None:
        """Return which operators of torch alone made a case's result at the baseline."""
        frozen = (self.expected or {}).get(nodeid)
        return None if self.freezes else frozen.by_torch if frozen else ""

    def watched(self) -> list[Finding]:
        """Return what the watch of this process has to tell."""
        return self.watch.findings() if self.watch else []


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's result with the timings behind it (None where it was not timed)."""

    result: CaseResult
    forward: Timing | None = None
    backward: Timing | None = None
    figures: dict[str, float] = field(default_factory=dict)


def run_case(case: Case, bench: Bench, tampering: Callable[[], list[Finding]] = list) -> Outcome:
    """Check, then time a case; `tampering` says what the kernel did to the session around it.

    Raises BadInput when the case does not fit its schema or the baseline; nothing is timed then.
    """
    hold_against_baseline(case, bench.expected)
    bench.classes.check_columns(case.dims)
    start = time.perf_counter()
    findings = bench.watched()
    # One thread here as well: a checked call has to look like a timed one.
    with one_thread(), checking_lock(bench.uuid, bench.waiting):
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
        findings += [*report.findings, *taken_threads(1)]
    findings += [new for new in bench.watched() if new not in findings]
    check, diagnosis = report.check, report.diagnosis
    timed = None
    evidence = _evidence(case, bench, report)
    is_timed = bench.times(report.interpreted)
    lock = timing_lock if is_timed else checking_lock
    if check == "PASS" and not any(found.rejects for found in findings):
        with one_thread(), lock(bench.uuid, bench.waiting):
            rehearsal = rehearse(
                case,
                bench.session_seed,
                bench.device,
                min([report.out_snr, *report.gradients.values()]),
                timed=is_timed and not report.interpreted,
            )
        findings += rehearsal.findings
        evidence = replace(evidence, training=rehearsal.evidence)
    if is_timed and check == "PASS" and not any(found.rejects for found in findings):
        try:
            with one_thread(), timing_lock(bench.uuid, bench.waiting):
                timed = time_case(case, bench, report)
        except BadInput:
            raise
        except Exception as error:
            text = kernel_traceback(error)
            check, diagnosis = "ERROR", f"passed its check and raises when it is timed\n{text}"
    forward, backward = (timed.forward, timed.backward) if timed else (None, None)
    if timed:
        findings += timed.findings
        findings += [new for new in bench.watched() if new not in findings]
        evidence = replace(
            evidence,
            engine="+".join(t.engine for t in (timed.forward, timed.backward) if t),
            threads=1,
            cold_cache=timed.cold_cache,
            queue_full=timed.queue_full,
            conditions=timed.conditions,
            timed=timed.interval,
            forward_samples_ms=timed.forward.samples_ms,
            calls_per_sample=timed.forward.calls_per_sample,
            backward_samples_ms=timed.backward.samples_ms if timed.backward else None,
        )
    findings += tampering()
    rejecting = [found for found in findings if found.rejects]
    if rejecting:
        # What a refused kernel was timed at means nothing.
        check, forward, backward = "FAIL" if check == "PASS" else check, None, None
    if findings and check != "PASS":
        diagnosis = "\n".join([*map(str, findings), diagnosis]).rstrip()
    evidence = replace(evidence, seconds=time.perf_counter() - start)
    figures = _figures(case, report, forward, backward)
    cells = {
        column.name: figures.get(column.quantity, math.nan)
        for column in case.schema.columns
        if case.backward or not column.is_backward
    }
    if check == "PASS" and case.schema.gate:
        column, _, _ = parse_gate(case.schema.gate)
        untimed = [c.name for c in case.schema.columns if c.is_time and forward is None]
        if column not in untimed and not gate_holds(case.schema.gate, float(cells[column])):
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
        findings=tuple(findings),
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
    """The timings of a case, what they were made under, and what the timed calls gave away.

    `interval` is from when to when the device was its own, in seconds since the epoch.
    `queue_full` is whether the launcher kept ahead of the device, None where it does not matter.
    """

    forward: Timing
    backward: Timing | None
    conditions: Conditions
    cold_cache: ColdCache
    interval: tuple[float, float]
    queue_full: bool | None
    findings: list[Finding]


def time_case(case: Case, bench: Bench, report: CheckReport) -> Timed:
    """Time forward, and backward where the case has one, on fresh inputs; look at what they do.

    Once more, up to twice, while the device is throttled or drifts.
    """
    since = time.time()
    seed = derive(bench.session_seed, case.nodeid, "time")
    call = case.positional(case.function)
    pool = input_pool(lambda i: make_inputs(case, seed + i), bench.device, call)
    looks = Looks(_DISCARDED + bench.repeats, 1, derive(bench.session_seed, case.nodeid, "looks"))
    sets = [Held(given, case.rewritten) for given in pool.sets]
    blocks = prepare_blocks(
        case.function,
        case,
        pool,
        sets,
        bench,
        seed,
        looks,
        engines=engines_of(case, bench),
        interpreted=report.interpreted,
    )
    forward, backward = blocks

    def measure() -> tuple[Timing, Timing | None]:
        return _time(forward, bench), _time(backward, bench) if backward else None

    (timing, back), conditions = steadily(measure, bench.read)
    findings = taken_threads(1)
    known = floors(report.accuracy, _OWN_SLACK_DB)
    for block in filter(None, blocks):
        found = [*block.findings(known), *([] if bench.compared else block.inflation())]
        findings += [new for new in found if new not in findings]
    findings += too_fast(
        "a call", min(timing.samples_ms), report.written, _flops(case), bench.device
    )
    if not bench.expected and (why := not_captured(forward, backward)):
        findings.append(Finding("not-captured", by_events(why), rejects=False))
    queues = [b.queue_full for b in (forward, backward) if b and b.queue_full is not None]
    return Timed(
        timing,
        back,
        conditions,
        ColdCache.of(pool),
        (since, time.time()),
        all(queues) if queues else None,
        findings,
    )


def _time(block: Block, bench: Bench) -> Timing:
    return time_block(block, bench.repeats, _DISCARDED)


def engines_of(case: Case, bench: Bench) -> Sequence[str]:
    """Return the engines that a case's forward and backward are to be timed by.

    Those of the baseline; where it chose a graph by itself, what cannot be captured now is timed by
    events.
    """
    frozen = (bench.expected or {}).get(case.nodeid)
    engines = frozen.engine.split("+") if frozen and frozen.engine else [bench.engine]
    return ["auto" if bench.engine == "auto" and name == "graph" else name for name in engines]


def not_captured(forward: Block, backward: Block | None, whose: str = "the") -> dict[str, str]:
    """Return why a direction is no graph, by words for it: `the candidate's forward`."""
    both = (("forward", forward), ("backward", backward))
    return {f"{whose} {way}": b.not_captured for way, b in both if b and b.not_captured}


def prepare_blocks(
    function: Callable[..., Any],
    case: Case,
    pool: InputPool,
    sets: Sequence[Held],
    bench: Bench,
    seed: int,
    looks: Looks,
    *,
    engines: Sequence[str],
    interpreted: bool = False,
) -> tuple[Spotted, Spotted | None]:
    """Return the forward block of one version of a case's function, and its backward block.

    `sets` are the pool's, which all versions share. Raises BadInput where an engine that was asked
    for by name cannot time the calls.
    """
    function = case.positional(function)

    def spotted(engine: str, calls: Sequence[Forward | Backward]) -> Spotted:
        recorders = [Recorder(call, bench.device) for call in calls]
        renewal = None
        if bench.device == "cpu" and not interpreted:
            renewal = Renewal((tensor for call in calls for tensor in call.changing), looks.seed)
        before = renewal or pool.flush
        if case.rewritten or case.consumes_incoming:
            if engine == "do_bench":
                raise BadInput(
                    "do_bench cannot restore what a call writes to before every call",
                    where="--kopt-engine",
                    legal="auto, graph, events or wall",
                )
            before = _restored(calls, renewal, pool)
        try:
            block = prepare(engine, bench.device, interpreted, recorders, before, bench.cpu)
        except CaptureFailed as error:
            raise BadInput(
                f"engine {engine} was asked for, and the calls cannot be captured: {error}",
                where=f"case {case.nodeid}",
                legal="engine auto, which times such a case by events, or events",
            ) from None
        return Spotted(block, case, recorders, looks, renewal)

    front = [Forward(function, held, case.weights, case) for held in sets]
    forward = spotted(engines[0], front)
    if not case.backward:
        return forward, None
    # Autograd runs a backward on its forward's stream, and only there can it be captured.
    with launch_stream(bench.device):
        back = [
            Backward(function, held.source, lambda out: grad_out(out, seed), case) for held in sets
        ]
    return forward, spotted(engines[-1], back)


def _restored(
    calls: Sequence[Forward | Backward], renewal: Renewal | None, pool: InputPool
) -> Callable[[], object]:
    """Return what brings back, untimed, what calls write over; a GPU's cache is flushed then."""
    flush = pool.flusher()

    def before() -> None:
        if renewal is not None:
            renewal()
        for call in calls:
            call.restore()
        if flush is not None:
            flush()

    return before


def _flops(case: Case) -> float:
    """Return the FLOPs that a forward cannot save: those of a dense product."""
    return case.work[0] if case.work and case.schema.name == "gemm" else 0.0


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
