"""pytest-benchmark's `benchmark` fixture: its stats become a row of schema `single`, unchecked.

With a reference (`kopt.benchmark`) a test is a case like any other, and the fixture runs as well.

Under xdist pytest-benchmark switches itself off and calls the function once; then the plugin's own
wall clock times that call, and the row's evidence says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.errors import BadInput
from pytest_kopt.measure.engine import Timing, samples_of
from pytest_kopt.measure.wall import WallEngine
from pytest_kopt.schema.columns import SINGLE, Scalar

FIXTURE = "benchmark"
NO_REFERENCE = "pytest-benchmark times the test, and nothing is checked"


def undecidable(test: pytest.Item) -> BadInput:
    """Return the refusal of a test that is to be judged and has no reference."""
    return BadInput(
        f"{NO_REFERENCE}, so kopt cannot decide about it",
        where=f"case {test.nodeid}",
        fix="kopt.benchmark(benchmark, FUNCTION, inputs=…, reference=…, dims=…), or remove the "
        "marker kopt",
    )


class TimedBenchmark:
    """Stands in for a switched-off benchmark fixture and times what it is called with."""

    def __init__(self) -> None:
        self.timing: Timing | None = None

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        block = WallEngine().prepare([lambda: function(*args, **kwargs)])
        self.timing = Timing(block.engine, samples_of(block.run), block.calls)
        return result

    def pedantic(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """Time `target` as a plain call: rounds and set-up are pytest-benchmark's business."""
        return self(target, *args, **(kwargs or {}))


@contextmanager
def stand_in(test: pytest.Function) -> Iterator[TimedBenchmark | None]:
    """Replace a switched-off `benchmark` fixture of a case while it runs; yield the replacement."""
    fixture = test.funcargs[FIXTURE]
    if not getattr(fixture, "disabled", False):
        yield None
        return
    test.funcargs[FIXTURE] = timed = TimedBenchmark()
    try:
        yield timed
    finally:
        # pytest-benchmark looks at its own fixture once more when it makes the report.
        test.funcargs[FIXTURE] = fixture


def result(
    test: pytest.Function, timed: TimedBenchmark | None, dims: dict[str, Scalar], label: str
) -> CaseResult | None:
    """Return the row of a test that used the `benchmark` fixture; None when it never called it."""
    timing = timed.timing if timed else None
    # pytest-benchmark's, where it is on and was called.
    if not timed and (stats := getattr(test.funcargs[FIXTURE], "stats", None)):
        samples = tuple(seconds * 1e3 for seconds in stats.stats.data)
        timing = Timing("pytest-benchmark", samples, stats.iterations)
    if timing is None:
        return None
    cells: dict[str, Scalar | None] = {
        "Time (ms)": timing.mean_ms,
        "Time (ms)_stddev": timing.stddev_ms,
        "out_snr": None,
    }
    return CaseResult(
        nodeid=test.nodeid,
        label=label,
        header=SINGLE.header(tuple(dims)),
        dims=dims,
        check="UNCHECKED",
        diagnosis=NO_REFERENCE,
        cells=cells,
        evidence=CaseEvidence(
            schema=SINGLE.name,
            engine=timing.engine,
            forward_samples_ms=timing.samples_ms,
            calls_per_sample=timing.calls_per_sample,
            note="pytest-benchmark was switched off: timed by the wall clock" if timed else "",
        ),
    )


def awaited(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return a function whose calls end when the device has done their work."""
    if device != "cuda":
        return function
    import torch

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        torch.cuda.synchronize()
        return result

    return call
