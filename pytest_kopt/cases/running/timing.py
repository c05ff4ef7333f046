"""Timing one case: blocks of one version's calls, on inputs that are not in the cache."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.evidence import ColdCache
from pytest_kopt.cases.order import WAYS, Bench, derive
from pytest_kopt.cases.running.check import CheckedCase
from pytest_kopt.cases.running.execution import make_inputs
from pytest_kopt.cases.running.spot_checks import Spotted, recorded
from pytest_kopt.cases.running.timed_calls import (
    MOST_SETS,
    Backward,
    Content,
    Forward,
    Gradients,
    RepeatedBackward,
    input_set,
    input_sets,
    most_sets,
    repeats_calls,
)
from pytest_kopt.devices.conditions import Steadily
from pytest_kopt.devices.states import WARM
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import RestoredArguments
from pytest_kopt.honesty.work import too_fast
from pytest_kopt.measure.choice import prepare
from pytest_kopt.measure.cold import InputPool, input_pool, launch_stream, warm_pool
from pytest_kopt.measure.engine import (
    NOTHING,
    PAUSE_S,
    CaptureFailed,
    Timing,
    by_events,
    samples_of,
)
from pytest_kopt.measure.gpu import GraphMemory
from pytest_kopt.measure.wall import WallBlock
from pytest_kopt.numerics.nested import fresh_copies, storages, tensors

#: Samples of a case, and runs of a block before them, which do not count.
_SAMPLES, _DISCARDED = 3, 1


def time_case(checked: CheckedCase) -> list[Spotted]:
    """Time each direction on fresh inputs, up to three times while the device drifts; look on.

    Returns the blocks, whose results are to be judged.
    """
    case, bench, since = checked.case, checked.bench, time.time()
    seed = derive(bench.session_seed, case.nodeid, "time")
    is_interpreted = bool(checked.evidence.interpreted)
    if bench.device == "cpu":
        most = 1 if is_interpreted else None
        number, rounds = sets_on_cpu([case], bench, seed, most=most)
        pool = cpu_pool([case], seed, number)
    else:
        rounds, pool = 1, gpu_pool([case], bench, seed, [case.function])
    (blocks,) = prepare_blocks(
        {"": case.function},
        [case],
        pool,
        bench,
        seed,
        engines=engines_of(case, bench),
        interpreted=is_interpreted,
    ).values()
    looks = derive(bench.session_seed, case.nodeid, "looks")
    runs = [block.drawn_runs(random.Random(looks), rounds) for block in blocks]
    pause_s = 0.0 if bench.device == "cpu" else PAUSE_S
    steadily = Steadily(bench.read)
    for _ in steadily:
        timings = [
            Timing(
                block.engine,
                samples_of(partial(next, times), bench.repeats or _SAMPLES, _DISCARDED, pause_s),
                block.calls * rounds,
            )
            for block, times in zip(blocks, runs, strict=True)
        ]
    queues = [block.queue_full for block in blocks if block.queue_full is not None]
    checked.timings = timings
    checked.evidence = replace(
        checked.evidence,
        engine="+".join(timing.engine for timing in timings),
        threads=1,
        cold_cache=ColdCache.of(pool),
        # Whether the launcher kept ahead of the device.
        queue_full=all(queues) if queues else None,
        conditions=steadily.conditions,
        timed=(since, time.time()),
        forward_samples_ms=timings[0].samples_ms,
        calls_per_sample=timings[0].calls_per_sample,
        backward_samples_ms=timings[1].samples_ms if timings[1:] else None,
    )
    # What a forward cannot save: the FLOPs of a dense product.
    flops = case.work[0] if case.work and case.schema.name == "gemm" else 0.0
    least_ms = min(timings[0].samples_ms)
    checked.findings += too_fast(least_ms, checked.written, flops, bench.device)
    if why := not_captured(blocks):
        checked.findings += uncaptured(why, not bench.expected, lambda: _computes(case, seed))
    return blocks


def engines_of(case: Case, bench: Bench) -> Sequence[str]:
    """Return the engines of a case's directions, the baseline's; a graph it chose may now fail."""
    engines = (bench.frozen(case.nodeid).engine or bench.engine).split("+")
    return ["auto" if bench.engine == "auto" and name == "graph" else name for name in engines]


def not_captured(blocks: Sequence[Spotted], whose: str = "the") -> dict[str, str]:
    """Return why a direction is no graph, by words for it: `the candidate's forward`."""
    ways = zip(WAYS, blocks, strict=False)
    return {f"{whose} {way}": block.not_captured for way, block in ways if block.not_captured}


def uncaptured(
    why: Mapping[str, str], is_reported: bool, computes: Callable[[], bool]
) -> Iterator[Finding]:
    """Say what it means that calls cannot be captured, `why` by words for them.

    Mostly a note, where it `is_reported`; but streams may go on by themselves, or nothing be
    launched by a call that `computes` its results.
    """
    reasons = " ".join(why.values())
    if "unjoined" in reasons:
        yield Finding(
            "late-result",
            (
                "a call leaves work on a stream for which the caller's stream does not "
                "wait (the driver reports the captured call as unjoined)"
            ),
            advice="let the current stream wait for every other one before returning: wait_stream",
        )
    elif NOTHING in reasons and computes():
        yield Finding(
            "empty-capture",
            (
                "a call that is captured in a graph launches nothing, but returns a "
                "result: every replay returns old results"
            ),
            advice=(
                "launch on torch's current stream, and do the same work in captured and "
                "in other calls"
            ),
        )
    elif is_reported:
        yield Finding("not-captured", by_events(why))


def _computes(case: Case, seed: int) -> bool:
    inputs = make_inputs(case, seed)
    result = case.positional(case.function)(*inputs)
    return not storages(result) <= storages(inputs)


def gpu_pool(
    cases: Sequence[Case], bench: Bench, seed: int, functions: Sequence[Callable[..., Any]]
) -> InputPool:
    """Return the input sets that blocks of functions go round on a GPU, of `cases` in turn."""
    case = cases[0]
    calls = map(case.positional, functions)
    make = partial(input_set, cases, seed)
    if case.cache == WARM:
        # Of cases in turn, as groups have them, each has one.
        pool = warm_pool(make(0), *calls)
        more = [*map(make, range(1, len(cases)))]
        # The calls may have written to those of the pool.
        first = make(0)
        return replace(pool, sets=[first, *more] if more else [first] * len(pool.sets))
    pool = input_pool(make, bench.device, *calls)
    return replace(pool, sets=[*pool.sets, *map(make, range(len(pool.sets), len(cases)))])


def cpu_pool(cases: Sequence[Case], seed: int, number: int) -> InputPool:
    """Return a pool of that many sets, drawn from `cases` in turn."""
    sets = input_sets(cases, seed, range(number))
    return InputPool(sets, sum(tensor.nbytes for tensor in tensors(sets[0])), 0)


def sets_on_cpu(
    cases: Sequence[Case], bench: Bench, seed: int, arms: int = 1, most: int | None = None
) -> tuple[int, int]:
    """Return how many sets a block on the CPU has, and how many rounds make a sample.

    One for every call of a block, as far as memory allows for that many `arms`; at most `most`.
    """
    case = cases[0]
    (first,) = input_sets(cases, seed, [0])
    room = min(most or MOST_SETS, most_sets(case, first, 1 + arms * case.backward))
    count = room
    if room > 1 and most is None:
        count = bench.cpu.count(_call_ms(case, first))
    rounds = math.ceil(count / room)
    return max(math.ceil(count / rounds), min(len(cases), room)), rounds


def _call_ms(case: Case, inputs: Sequence[Any]) -> float:
    """Return about how long a warm call takes."""
    call = Forward(case, case.function, RestoredArguments(fresh_copies(inputs), case.rewritten))
    block = WallBlock([call], 1, before=call.restore)
    block.run()
    return min(block.run(), block.run())


def prepare_blocks(
    versions: Mapping[str, Callable[..., Any]],
    cases: Sequence[Case],
    pool: InputPool,
    bench: Bench,
    seed: int,
    *,
    engines: Sequence[str],
    interpreted: bool = False,
) -> dict[str, list[Spotted]]:
    """Return each version's forward block, and backward block if any, on sets that all share.

    Raises BadInput where an engine that was asked for cannot time the calls.
    """
    case = cases[0]
    sets = [RestoredArguments(inputs, case.rewritten) for inputs in pool.sets]
    # Sets of a warm cache are the first one.
    own_sets = len({id(held) for held in pool.sets}) if repeats_calls(bench) else 0
    sources = {number: held.source for number, held in enumerate(sets[: own_sets or None])}
    # Triton's interpreter gives a number for a row, which nobody is credited with.
    content = None if interpreted else Content(cases, sources, len(sets), is_captured=own_sets > 0)
    runs_once = not own_sets and content is not None
    memory = GraphMemory() if bench.device != "cpu" and len(versions) > 1 else None

    def spotted(
        arm: str,
        engine: str,
        calls: Sequence[Forward | Backward],
        content: Content | Gradients | None,
        forward: Spotted | None = None,
    ) -> Spotted:
        recorders = recorded(calls, says_where=runs_once)
        is_written_to = bool(case.rewritten) or case.consumes_incoming
        if engine == "do_bench" and is_written_to:
            raise BadInput(
                "do_bench cannot restore what a call writes to before every call",
                where="--kopt-engine",
                legal="auto, graph, events, wall",
            )
        # What calls write over is brought back, untimed; a GPU's cache is flushed then.
        restored = [call.restore for call in calls] if is_written_to else []
        flush = pool.flush(is_written_to=is_written_to)
        steps = [step for step in (*restored, flush) if step is not None]

        def prepared() -> None:
            for step in steps:
                step()

        # Where calls run once, they are given what they find with the content.
        before = None if runs_once or not steps else prepared
        if memory is not None and engine in ("auto", "graph"):
            memory.lay_out(calls, before)
        try:
            block = prepare(
                *(engine, bench.device, interpreted, recorders, before),
                memory=memory,
                block_ms=bench.gpu_block_ms,
            )
        except CaptureFailed as error:
            raise case.refusal(
                f"--kopt-engine is {engine}, but the calls cannot be captured: {error}",
                fix="give --kopt-engine auto, which times such a case by events",
            ) from None
        if memory is not None and block.engine == "graph":
            views = memory.let_go([recorder.result for recorder in recorders])
            for recorder, view in zip(recorders, views, strict=True):
                recorder.result = view
        return Spotted(block, recorders, content, arm, forward, own_sets)

    def directions(arm: str, function: Callable[..., Any]) -> Iterator[Spotted]:
        front = [Forward(case, function, restored) for restored in sets]
        forward = spotted(arm, engines[0], front, content)
        yield forward
        if not case.backward:
            return
        if runs_once:
            back: list[Backward] = [Backward(call, seed) for call in front]
            followed = forward
        else:
            # Autograd runs a backward on its forward's stream, and only there can it be captured.
            with launch_stream(bench.device):
                back = [RepeatedBackward(case, function, held.source, seed) for held in sets]
            followed = None
        gradients = content and Gradients({n: call.changing for n, call in enumerate(back)})
        yield spotted(arm, engines[-1], back, gradients, followed)

    return {arm: [*directions(arm, function)] for arm, function in versions.items()}
