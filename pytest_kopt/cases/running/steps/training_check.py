"""A case in a training loop: from what the test declared to findings and evidence."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.evidence import Training
from pytest_kopt.cases.running.course import Course
from pytest_kopt.cases.running.reference import code_of
from pytest_kopt.cases.running.steps.training_loop import Loop, Step
from pytest_kopt.cases.seeds import derive
from pytest_kopt.honesty.audit import suspects_a_cache
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.transfer import ACTIVATION, GRAD_OUT, WEIGHT, Trace

STEPS, TRACE_STEPS = 8, 4
#: A cache that hits less often than this in real training does not pay.
LEAST_HIT_RATE = 0.5


def caches(course: Course) -> list[Finding]:
    findings, trace, uncounted = _simulated(course)
    course.evidence = replace(course.evidence, training=Training(trace, uncounted))
    return findings


def _is_suspected(case: Case) -> bool:
    code = code_of(case.function)
    path = Path(code.co_filename if code else "")
    return path.is_file() and suspects_a_cache(path.read_bytes())


def _simulated(course: Course) -> tuple[list[Finding], Trace | None, str]:
    """Run the loop where a short probe suspects a cache, or the audit notes one.

    Returns what was found, the last steps' trace (None where the loop did not run), and why work
    could not be counted: then only results were held against the reference.
    """
    case, figures = course.case, course.figures
    usual_db = min(figures[name] for name in figures if name.startswith(("out_snr", "grad_snr:")))

    def seed(purpose: str) -> int:
        return derive(course.bench.session_seed, case.nodeid, f"training {purpose}")

    # It lives as long as the loop runs: no parameter there takes the identity of one of these,
    # whose stale copy would be no update's.
    probing = Loop(case, usual_db)
    try:
        if not probing.probe(seed) and not _is_suspected(case):
            return [], None, ""
        return *_run(Loop(case, usual_db), seed), ""
    except Exception as error:
        uncounted = f"{type(error).__name__}: {error}".splitlines()[0]
    return *_run(Loop(case, usual_db, counts=False), seed), uncounted


def _run(loop: Loop, seed: Callable[[str], int]) -> tuple[list[Finding], Trace]:
    steps = [loop.step(number, seed) for number in range(STEPS)]
    wrong = [step for step in steps if step.wrong]
    # What is allocated, compiled or tuned once is done in the first step.
    steps = steps[1:]
    # An allocation now and then is no cache, nor is a kernel that takes one of two ways at random:
    # what is one shows in every step, or in all but one.
    cached = tuple(
        kind
        for kind in (ACTIVATION, GRAD_OUT, WEIGHT)
        if sum(step.saved.get(kind, False) for step in steps) >= len(steps) - 1
    )
    trace = Trace(cached, tuple(step.hits() for step in steps[-TRACE_STEPS:]))
    share = statistics.median_high(step.share for step in steps)
    return list(_findings(trace, wrong, share)), trace


def _findings(trace: Trace, wrong: Sequence[Step], share: float) -> Iterator[Finding]:
    if stale := next((step for step in wrong if step.stale_weight), None):
        yield Finding(
            "stale-weight",
            f"after a parameter was updated in place, the answer is from before ({stale.wrong})",
            advice="key the cache on the parameter and its _version, or compute anew",
            bucket="W1",
        )
    elif wrong:
        yield Finding(
            "training-loop",
            f"wrong with fresh tensors in a simulated training loop ({wrong[0].wrong})",
            advice="a result must depend only on the arguments of its own call",
            bucket="W3",
        )
    if ACTIVATION in trace.cached:
        memo = share < 0.1
        yield Finding(
            "activation-cache",
            "the same activations once more cost "
            + ("next to nothing" if memo else f"{share:.0%} of the work of fresh ones")
            + ", and no step of a training loop sees them twice (hit rate 0 %)",
            advice="cache nothing that was computed from an activation; one that lives longer "
            "than a step has to be declared in the case (weights=…)",
            bucket="W3" if memo else "W2",
        )
    if GRAD_OUT in trace.cached:
        yield Finding(
            "grad-out-cache",
            "the same grad_out, or the same graph, once more costs less work than a fresh one, and "
            "no step of a training loop sees one twice (hit rate 0 %)",
            advice="cache nothing that was computed from an incoming gradient, and have a backward "
            "keep nothing for another one",
            bucket="W2",
        )
    if WEIGHT in trace.cached:
        rate = trace.rate(WEIGHT)
        enough = rate >= LEAST_HIT_RATE - 1e-9
        yield Finding(
            "weight-cache" if enough else "hit-rate",
            f"a parameter that has not changed costs less work (hit rate {rate:.0%} in a "
            "simulated training loop of two micro-batches a step)",
            advice="its gain is bounded by quant time / step time: give w1_quant_ms and step_ms "
            "in the notes"
            if enough
            else "below 50 % the cache does not pay",
            bucket="W1",
            rejects=not enough,
        )
