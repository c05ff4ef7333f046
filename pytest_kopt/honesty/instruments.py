"""Known answers: the instruments of the harness are asked what only a tampered one gets wrong.

Asked right after a call of the kernel, since some tampering lasts for one reading. There is no
tolerance here that an untouched instrument could miss.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.compare import compare
from pytest_kopt.numerics.gates import Tolerance
from pytest_kopt.numerics.snr import compute_snr

_LEAST_SECONDS, _MOST_CALLS = 0.002, 50
#: A reading of less than this share of the other clock's is no rounding.
_SHARE = 0.6
_CYCLES = 3_000_000
#: With three sessions on an H200 one try in seven is off; six in a row are not.
_TRIES = 6
#: No device's clock is faster.
_FASTEST_HZ = 4e9


def question(call: Callable[[], object], device: str) -> list[Finding]:
    """Question every instrument, each right after a call of the kernel; return what lied."""
    lies = [lie for probe in (_comparisons, _statistics, _random) for lie in probe(call)]
    lies += _clocks(call)
    if device == "cuda":
        lies += _events(call)
    if not lies:
        return []
    return [
        Finding(
            "tampered-instrument",
            "after the kernel ran, " + "; ".join(lies),
            advice="a kernel leaves clocks, comparisons and statistics alone",
        )
    ]


def _comparisons(call: Callable[[], object]) -> Iterator[str]:
    one, other = torch.arange(8.0), torch.arange(8.0) + 1
    gate = Tolerance(1e-4, 1e-4)
    call()
    if compare(one, other, gate).passed or not compare(one, one.clone(), gate).passed:
        yield "the comparison of outputs is wrong about known tensors"
    call()
    if torch.allclose(one, other) or torch.equal(one, other) or not torch.equal(one, one.clone()):
        yield "torch calls different tensors equal"
    call()
    if bool(torch.isclose(one, other).any()) or not bool(torch.isnan(one * float("nan")).all()):
        yield "torch compares elements wrongly"
    call()
    if not 0 < compute_snr(one, other) < 20:
        yield "the SNR of known tensors is wrong"


def _statistics(call: Callable[[], object]) -> Iterator[str]:
    for name, expected in (("median", 2.0), ("fmean", 3.0), ("pstdev", 14 / 3)):
        call()
        data = [1.0, 2.0, 6.0]
        found = getattr(statistics, name)(data)
        found = found * found if name == "pstdev" else found
        if abs(found - expected) > 1e-9 or data != [1.0, 2.0, 6.0]:
            yield f"statistics.{name} of known numbers is {found:.4g}"


def _random(call: Callable[[], object]) -> Iterator[str]:
    # A generator of its own: the global one belongs to the test.
    generator = torch.Generator().manual_seed(7)
    call()
    drawn = torch.randn(64, generator=generator)
    if float(drawn.std()) < 0.2 or bool((drawn == torch.randn(64, generator=generator)).all()):
        yield "torch.randn draws nothing random"


def _clocks(call: Callable[[], object]) -> list[str]:
    clocks = {
        "perf_counter": time.perf_counter,
        "perf_counter_ns": lambda: time.perf_counter_ns() * 1e-9,
        "monotonic": time.monotonic,
    }
    before = {name: read() for name, read in clocks.items()}
    start = time.clock_gettime(time.CLOCK_MONOTONIC)
    for _ in range(_MOST_CALLS):
        call()
        if time.clock_gettime(time.CLOCK_MONOTONIC) - start > _LEAST_SECONDS:
            break
    passed = time.clock_gettime(time.CLOCK_MONOTONIC) - start
    spent = {name: read() - before[name] for name, read in clocks.items()}
    return [
        f"time.{name} counted {seconds * 1e3:.3f} of {passed * 1e3:.3f} ms"
        for name, seconds in spent.items()
        if seconds < _SHARE * passed
    ]


def _events(call: Callable[[], object]) -> list[str]:
    """Read a wait on the device by events, without and right after a call of the kernel.

    A tampered event lies each time. The work of another process, whose checks share the device,
    comes in between now and then and makes a wait longer, never shorter.
    """
    call()
    torch.cuda.synchronize()
    plain, after = math.inf, 0.0
    for _ in range(_TRIES):
        plain = min(plain, *(_wait_ms(lambda: None) for _ in range(2)))
        after = max(after, _wait_ms(call))
        if after >= _SHARE * plain and plain >= _CYCLES / _FASTEST_HZ * 1e3:
            return []
    return [f"device events counted {after:.3f} ms of a wait of {plain:.3f} ms"]


def _wait_ms(first: Callable[[], object]) -> float:
    """Return what events say of a wait of `_CYCLES`, queued up whole before it begins."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first()
    # Without something in front, the first event would pass while the host still launches the wait.
    torch.cuda._sleep(_CYCLES // 2)
    begin.record()
    torch.cuda._sleep(_CYCLES)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
