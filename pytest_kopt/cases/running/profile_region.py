"""The part of a profile that runs where kernel code runs: the steps of one case."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.order import Bench, derive
from pytest_kopt.cases.running.execution import make_inputs, watch_interpreter
from pytest_kopt.cases.running.reference import observed
from pytest_kopt.cases.running.timed_calls import Forward, RepeatedBackward
from pytest_kopt.devices.lock import timing_lock
from pytest_kopt.honesty.inputs import RestoredArguments
from pytest_kopt.measure.cold import input_pool
from pytest_kopt.measure.wall import one_thread
from pytest_kopt.profiling import kernel_table
from pytest_kopt.profiling.kernel_table import CaseProfile, KernelRow, rows_of

_WARM_UP = 3
#: With as many, identical code came out less than 1 % apart (docs/gpu.md).
_STEPS = 100
#: On the CPU a step can be long, or be thousands of operators: fewer of them then.
_CPU_STEPS, _CPU_SECONDS = 5, 0.2
#: Between steps the device goes idle, as it does under a tool that replays launch by launch.
_PAUSE_SECONDS = 0.002
_NOTE = "Triton's interpreter ran this case: its times say nothing about a GPU"

Step = Callable[[int], object]


def profile_case(case: Case, bench: Bench, *, marked_steps: int) -> CaseProfile:
    """Run the steps of a case and return what was seen of them.

    For the tool of a vendor `marked_steps` only run between its marks.
    """
    with one_thread(), timing_lock(bench.uuid, bench.waiting):
        with watch_interpreter() as watch:
            step, steps = _prepare(case, bench, marked_steps or _STEPS)
        rows: tuple[KernelRow, ...] = ()
        note = _NOTE if watch.seen else ""
        if marked_steps and not note:
            _between_marks(step, steps)
        elif not note:
            rows = _recorded(step, steps, bench.device)
    on = "cpu" if bench.device == "cpu" else "gpu"
    return CaseProfile(case.nodeid, case.label, kernel_table.TOOL, on, steps, rows, note)


def _prepare(case: Case, bench: Bench, steps: int) -> tuple[Step, int]:
    """Return a warm step over rotating inputs, and how many to run: `steps`, fewer on a CPU."""
    seed = derive(bench.session_seed, case.nodeid, "profile")
    case = observed(case, seed)
    function = case.positional(case.function)
    pool = input_pool(lambda i: make_inputs(case, seed + i), bench.device, function)
    sets = [RestoredArguments(inputs, case.rewritten) for inputs in pool.sets]
    calls = [Forward(case, case.function, held_inputs) for held_inputs in sets]
    back: list[RepeatedBackward] = []
    if case.backward:
        back = [
            RepeatedBackward(case, case.function, held_inputs.source, seed) for held_inputs in sets
        ]

    def step(number: int) -> object:
        place = number % len(calls)
        calls[place].restore()
        forward = calls[place]()
        if not back:
            return forward
        back[place].restore()
        return back[place]()

    for number in range(_WARM_UP):
        step(number)
    if bench.device != "cpu":
        torch.cuda.synchronize()
        return step, steps
    start = perf_counter()
    step(0)
    once = max(perf_counter() - start, 1e-6)
    return step, max(1, min(_CPU_STEPS, int(_CPU_SECONDS / once)))


def _recorded(step: Step, steps: int, device: str) -> tuple[KernelRow, ...]:
    kinds = torch.profiler.ProfilerActivity
    if device == "cpu":
        with torch.profiler.profile(activities=[kinds.CPU]) as recording:
            for number in range(steps):
                step(number)
        return _operators(recording.key_averages())
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as recording:
        _paced(step, steps)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "trace.json")
        recording.export_chrome_trace(str(path))
        return rows_of(kernel_table.launches(json.loads(path.read_text(encoding="utf-8"))))


def _operators(averages: Any) -> tuple[KernelRow, ...]:
    """Return CPU operators by the time that they spent themselves."""
    rows = [
        KernelRow(average.key, average.count, average.self_cpu_time_total / average.count)
        for average in averages
        if average.count and average.self_cpu_time_total > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.total_us))


def _between_marks(step: Step, steps: int) -> None:
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    if torch.version.cuda:
        torch.cuda.profiler.start()
    _paced(step, steps)
    if torch.version.cuda:
        torch.cuda.profiler.stop()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()


def _paced(step: Step, steps: int) -> None:
    for number in range(steps):
        step(number)
        torch.cuda.synchronize()
        sleep(_PAUSE_SECONDS)
