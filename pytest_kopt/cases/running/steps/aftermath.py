"""After a call: whether threads or processes still work, and what it left in generators."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter

from pytest_kopt.cases.running.checking import (
    IDLE_SHARE,
    LONG_SECONDS,
    Checking,
    seconds_of_others,
)
from pytest_kopt.cases.seeds import drawn_so_far, seed_everything
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.process_tree import children

#: A look at the idle process, longer where children's ticks have to be told, and how many busy ones
#: in a row are no after-effect of the call.
_LOOK_SECONDS, _TICKING_SECONDS, _LOOKS = 0.02, 0.05, 25
#: How many looks have to find it idle: on a crowded machine a thread that never rests may get no
#: core for the length of one.
_IDLE_LOOKS = 2


def aftermath(checking: Checking) -> Iterator[Finding]:
    """See whether the process comes to rest."""
    end = perf_counter() + LONG_SECONDS

    def call() -> None:
        if checking.is_short and perf_counter() < end:
            checking.call_unjudged()

    if not checking.is_at_rest() or children():
        yield from still_busy(call)


def seeds_anew(checking: Checking) -> Iterator[Finding]:
    """Say when calls seed torch's global generator, and the reference does not."""

    def states(call: Callable[[], object]) -> set[bytes]:
        left = set()
        for number in range(2):
            seed_everything(checking.seeds["disturb"] + number)
            call()
            left.add(drawn_so_far(checking.bench.device))
        return left

    if len(states(checking.call_unjudged)) == 1 and len(states(checking.again)) > 1:
        yield Finding(
            "generator-left",
            "calls leave torch's global generator in one state, whatever they find it in: all that "
            "is drawn after any of them is the same",
            advice="draw from a torch.Generator of your own, or seed under torch.random.fork_rng()",
            rejects=False,
        )


def still_busy(call: Callable[[], object]) -> Iterator[Finding]:
    """Say when the process or its children compute on while nobody calls the kernel.

    Torch's own pool, and a compiler's workers, run dry soon after a call.
    """
    call()
    shares: list[float] = []
    idle = 0
    while len(shares) < _LOOKS:
        share = _busy_share()
        idle += share < IDLE_SHARE
        if idle == _IDLE_LOOKS:
            return
        shares.append(share)
    yield Finding(
        "background-work",
        f"threads or child processes used {100 * sum(shares) / len(shares):.0f} % of a core "
        "each time it was measured, while no call was running",
        advice="do all work within the call, and wait for it before returning",
    )


def _busy_share() -> float:
    processes = children()
    theirs = _seconds_of(processes)
    others_before, start = seconds_of_others(), perf_counter()
    time.sleep(_TICKING_SECONDS if processes else _LOOK_SECONDS)
    spent = seconds_of_others() - others_before + _seconds_of(processes) - theirs
    return spent / (perf_counter() - start)


def _seconds_of(processes: Iterable[int]) -> float:
    total = 0.0
    for number in processes:
        with contextlib.suppress(OSError, IndexError):
            words = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total
