"""Work outside of the call: threads that go on, threads taken for good, processes left behind."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pytest_kopt.honesty.finding import Finding

#: A look at the idle process, longer where children's ticks have to be told, and how many busy ones
#: in a row are no after-effect of the call.
_LOOK_SECONDS, _TICKING_SECONDS, _LOOKS = 0.02, 0.05, 25
#: Share of a core that a process without work may use, and how many looks have to find it idle: on
#: a crowded machine a thread that never rests may get no core for the length of one.
_IDLE_SHARE, _IDLE_LOOKS = 0.05, 2
_COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"


def compile_here() -> None:
    """Have torch compile in this process; called before the first case of it runs.

    Its pool of compilers would be importing torch for seconds, beside cases that are timed.
    """
    os.environ[_COMPILERS] = "1"
    # Whoever imported it has the old setting.
    config: Any = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.compile_threads = 1


def still_busy(call: Callable[[], object]) -> list[Finding]:
    """Return a finding when the process or its children compute on while nobody calls the kernel.

    Torch's own pool runs dry within milliseconds of a call, a compiler's workers when they are done
    with what they were given. A thread or process that is merely there is none of our business.
    """
    call()
    shares: list[float] = []
    idle = 0
    while len(shares) < _LOOKS:
        share = _busy_share()
        idle += share < _IDLE_SHARE
        if idle == _IDLE_LOOKS:
            return []
        shares.append(share)
    return [
        Finding(
            "background-work",
            f"threads or child processes used {100 * sum(shares) / len(shares):.0f} % of a core, "
            "look after look, while no call was running",
            advice="do all work within the call, and wait for it before returning",
        )
    ]


def _busy_share() -> float:
    processes = children()
    theirs = _seconds_of(processes)
    mine, everyone, start = time.thread_time(), time.process_time(), time.perf_counter()
    time.sleep(_TICKING_SECONDS if processes else _LOOK_SECONDS)
    spent = (time.process_time() - everyone) - (time.thread_time() - mine)
    spent += _seconds_of(processes) - theirs
    return spent / (time.perf_counter() - start)


def children() -> frozenset[int]:
    """Return the live child processes of this one; empty where /proc does not tell."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(word) for word in listing.read_text().split()}
    return frozenset(found)


def _seconds_of(processes: Iterable[int]) -> float:
    """Return the CPU time of processes so far; those that are gone count nothing."""
    total = 0.0
    for number in processes:
        with contextlib.suppress(OSError, IndexError):
            words = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


def taken_threads(threads: int, threads_now: int) -> list[Finding]:
    """Return a finding when torch's number of threads is not the one that was set for timing."""
    if threads_now == threads:
        return []
    return [
        Finding(
            "thread-count",
            f"the kernel set torch's threads from {threads} to {threads_now}",
            advice="cases are timed with the threads that the harness sets, for every version",
        )
    ]
