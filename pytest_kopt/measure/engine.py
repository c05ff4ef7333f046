"""The timing engines: functions that make blocks of calls; times of two are never compared.

An engine is a function that warms up, compiles and tunes, outside of every timed region. It returns
a block that goes round the calls, each on inputs of its own.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter, sleep

#: One launch of the kernel on inputs that are ready.
Call = Callable[[], object]
#: What is called, untimed, before every round in which each call runs at most once.
Before = Callable[[], object] | None


#: A block on a GPU lasts at least so long, unless it is asked for otherwise.
BLOCK_MS = 5.0
#: Seconds of rest after which a block on a GPU meets its top clock again.
PAUSE_S = 0.0025
#: What times any call on a GPU, and so every arm of a case one of whose arms cannot be captured.
EVENTS = "events"


class CaptureFailed(Exception):
    """The calls cannot be captured into a device graph."""


def agreed(engines: Iterable[str]) -> str:
    """Return the engines of all arms, by what each can be timed by: `graph+events`."""
    ways = zip(*(engine.split("+") for engine in engines), strict=True)
    return "+".join(way[0] if len({*way}) == 1 else EVENTS for way in ways)


#: What is said of a call that was captured without a launch.
NOTHING = "the graph captured nothing of what the calls launch"


def by_events(why: Mapping[str, str]) -> str:
    """Say why a case is not timed by replays of a graph: what torch said, by what was captured."""
    reasons = "; ".join(f"{what} cannot be captured ({reason})" for what, reason in why.items())
    return (
        f"timed by events, not by replays of a graph: {reasons}. Fix: in the call copy no host "
        "value, read none back and do not synchronise. If it is intended: `engine: events` in "
        "manifest.yaml or --kopt-engine events"
    )


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one direction of a case: one sample a block, each in ms per call."""

    engine: str
    samples_ms: tuple[float, ...]
    calls_per_sample: int

    @property
    def mean_ms(self) -> float:
        return statistics.fmean(self.samples_ms)

    @property
    def stddev_ms(self) -> float:
        return statistics.pstdev(self.samples_ms)

    def rate(self, work: float, unit: str) -> tuple[float, float]:
        """Return FLOPs or bytes per mean time in the unit, and the samples' population stddev."""
        scale = {"TFLOPS": 1e12, "GB/s": 1e9}[unit] * 1e-3
        rates = [work / (sample * scale) for sample in self.samples_ms]
        return work / (self.mean_ms * scale), statistics.pstdev(rates)


class Block(ABC):
    """A fixed number of calls, ready to be timed again and again.

    `queue_full` says, for an engine that launches call by call, whether the device never waited for
    the launcher in the last run. `not_captured` says why an engine chosen by itself is no graph.
    """

    engine: str
    calls: int
    queue_full: bool | None = None
    not_captured: str = ""
    before: Before = None

    def ready(self) -> None:
        if self.before is not None:
            self.before()

    @abstractmethod
    def run(self) -> float:
        """Run the block once and return its time in ms per call."""

    def run_first(self, calls: int) -> float:
        """Run the first calls of a block that repeats none; return the time in ms per call."""
        raise NotImplementedError

    def run_on(self, times: int) -> None:
        """Run the block's calls `times` over without a pause: others see what that takes."""
        for _ in range(times):
            self.run()

    def run_for(self, seconds: float) -> float:
        """Keep the device busy with the block for so long; return the mean time in ms per call."""
        until, times = perf_counter() + seconds, [self.run()]
        while perf_counter() < until:
            times.append(self.run())
        return statistics.fmean(times)

    def run_once(self, write: Callable[[], object]) -> float:
        """Return the ms per call of one round of the calls, of as many as a block has.

        It comes right after `write`, and after a round that is not timed. A block that repeats no
        call is one round.
        """
        write()
        return self.run()


def samples_of(
    run: Callable[[], float], repeats: int = 3, discarded: int = 1, pause_s: float = 0.0
) -> tuple[float, ...]:
    """Return what runs of a block take: `discarded` runs that do not count, then `repeats`.

    A pause in front of each, in s, keeps the clock of a GPU at its top.
    """
    samples = []
    for _ in range(discarded + repeats):
        sleep(pause_s)
        samples.append(run())
    return tuple(samples[discarded:])
