"""Whether the clock of the deciding process bears out what a comparison counts.

On the CPU a comparison counts the processor time of a block, on a GPU the device's events. A gain
of processor time that this clock shows to be a loss, as calls wait, is none. The work around the
counted time is the same for all versions. A version that gains, and for which this work takes as
much longer, has moved its work there (a hook, a finalizer, a clock that lies). Blocks that a GPU
replays are run many times over as well, so that what passes around them cancels: a gain has to show
there by the outside clock too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_kopt.cases.order import ALONE, CANDIDATE
from pytest_kopt.decide.inference import Estimate, percent
from pytest_kopt.devices.states import BOOST
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.paired.samples import BlockTime, CaseQuads, pairs_of

#: Of a gain, and of the counted time, so much may pass elsewhere; and of what passes elsewhere for
#: the current best, which differs by the contents of the processor's caches.
_SHARE, _LEAST, _CACHES = 0.25, 0.02, 0.1
#: The same between two processes, which differ by where their memory lies.
_PROCESSES = 0.5
#: Messages to a GPU's process and the launches of its calls take their time, in ms.
_LAUNCHES_MS = 5.0
#: One-sided level of the bound on the time that passes elsewhere.
_LEVEL = 0.001
#: One-sided level at which the outside clock has to see a gain of a GPU, and how many replicas may
#: be measured for that alone.
_SEEN_LEVEL, _MORE_REPLICAS = 0.05, 2

Replicas = Sequence[Mapping[str, CaseQuads]]


@dataclass(frozen=True, slots=True)
class Witness:
    """The controller's clock on a change that others measured.

    `change` is that and `differs` by how much it is more than theirs, over all cases as
    log-ratios; None where that clock was not asked. On a GPU the device's events measured it. On
    the CPU processor time did (`is_gpu`), and this clock, which others on the machine disturb, can
    only contradict. With `loss_pct` the verdict claims no gain, but that no more than this is lost.
    `more` replicas were measured for this clock alone.
    """

    change: Estimate | None = None
    differs: Estimate | None = None
    loss_pct: float | None = None
    more: int = 0
    is_gpu: bool = True

    @property
    def doubt(self) -> str:
        """Why the verdict is not credited, empty where it is."""
        if self.change is None:
            return ""
        low, high = self.change.lower(_SEEN_LEVEL), self.change.upper(_SEEN_LEVEL)
        least = math.log1p(-(self.loss_pct or 0.0) / 100)
        if low > 0 if self.is_gpu and self.loss_pct is None else high >= least:
            return ""
        return (
            "by the clock of the process that decides the change is "
            f"{percent(self.change.mean):+.1f} % [{percent(low):+.1f}, {percent(high):+.1f}]"
        )

    @property
    def contradiction(self) -> Finding | None:
        """The contradiction between the events and this clock."""
        if self.change is None or self.differs is None or not self.is_gpu:
            return None
        gain = self.change.mean - self.differs.mean
        if self.differs.upper(_LEVEL) >= -max(_SHARE * gain, _LEAST):
            return None
        return Finding(
            "hidden-time",
            (
                f"the device's events measure a change of {percent(gain):+.1f} %, the "
                f"clock of the controller one of {percent(self.change.mean):+.1f} %"
            ),
            advice="do all the work within the timed call, and leave clocks and hooks alone",
        )

    def to_document(self) -> dict[str, object] | None:
        if self.change is None:
            return None
        return {**self.change.figures(_SEEN_LEVEL), "more_replicas": self.more}


def look_outside(
    replicas: Replicas,
    another: Callable[[], Iterable[Mapping[str, CaseQuads]]],
    loss_pct: float | None = None,
) -> Witness:
    """Ask the outside clock, and `another` replica while it does not bear a verdict out."""
    measured = [*replicas]
    by_wall = [*_by_wall(replicas)]
    if len(by_wall) > 1:
        return Witness(Estimate.of(tuple(by_wall)), loss_pct=loss_pct, is_gpu=False)
    for more in range(_MORE_REPLICAS + 1):
        change, differs = _estimates(measured)
        witness = Witness(change, differs, loss_pct, more)
        if not witness.doubt or more == _MORE_REPLICAS:
            break
        measured += another()
    return witness


def _by_wall(replicas: Replicas) -> Iterator[float]:
    """Yield the log-ratio of each case of the CPU in each replica by what passed meanwhile."""
    for case in (case for replica in replicas for case in replica.values()):
        if case.engine == "wall" and case.quads:
            pairs = pairs_of(case.quads[CANDIDATE])
            yield statistics.median(math.log(old.passed / new.passed) for new, old in pairs)


def _estimates(replicas: Replicas) -> tuple[Estimate, Estimate] | tuple[None, None]:
    """Return the change by the outside clock, and by how much it is more than the events'.

    The scatter of the two clocks' difference is that of the outside clock.
    """
    cases = [case for replica in replicas for case in replica.values() if case.outside]
    # That clock was asked at boost.
    differs = [wall - case.ratio("step", point=BOOST) for case in cases for wall in case.outside]
    if len(differs) < 2:
        return None, None
    difference = Estimate.of(tuple(differs))
    change = statistics.fmean(case.ratio("step", point=BOOST) for case in cases)
    return replace(difference, mean=change + difference.mean), difference


def hidden_time(replicas: Replicas) -> Iterator[Finding]:
    """Say what contradicts the gain of a case that is not replayed as a graph."""
    for nodeid in {name: None for replica in replicas for name in replica}:
        cases = [replica[nodeid] for replica in replicas if nodeid in replica]
        if any(case.engine == "graph" for case in cases):
            continue
        pairs = [pair for case in cases for pair in pairs_of(case.quads.get(CANDIDATE, ()))]
        alone = [
            time
            for case in cases
            for quad in case.quads.get("alone", ())
            for arm, time in quad
            if arm == ALONE
        ]
        is_gpu = any(case.engine != "wall" for case in cases)
        if len(pairs) > 1 and (finding := _contradiction(nodeid, pairs, alone, is_gpu=is_gpu)):
            yield finding


def _contradiction(
    nodeid: str,
    pairs: Sequence[tuple[BlockTime, BlockTime]],
    alone: Sequence[BlockTime],
    *,
    is_gpu: bool,
) -> Finding | None:
    """Return a finding where the candidate's other time outweighs its gain, in ms of a block.

    The time around is compared with that of the current best next to it and, if there is one, with
    the current best's in a process of its own. Code that puts work off to where nothing is counted
    may hold the current best up there as well.
    """
    counted = statistics.fmean(old.counted for _, old in pairs)
    gained = counted - statistics.fmean(new.counted for new, _ in pairs)
    beside = [old.outside - old.counted for _, old in pairs]
    around = [new.outside - new.counted for new, _ in pairs]
    held_against = [
        (_mean_of([new - old for new, old in zip(around, beside, strict=True)]), beside)
    ]
    if len(alone) > 1:
        apart = [time.outside - time.counted for time in alone]
        new, old = _mean_of(around), _mean_of(apart)
        error = math.hypot(new.error, old.error)
        held_against.append((Estimate(new.mean - old.mean, error, new.freedom), apart))
    for longer, reference in held_against:
        least = statistics.fmean(reference)
        if is_gpu:
            least += _LAUNCHES_MS
        else:
            least *= _CACHES if reference is beside else _PROCESSES
        if gained > 0 and longer.lower(_LEVEL) > max(_SHARE * gained, _LEAST * counted, least):
            return Finding(
                "hidden-time",
                f"the timed calls of a block take {gained:.3g} ms less than the current best's, "
                f"and {longer.mean:.3g} ms more pass outside of them",
                where=nodeid,
                advice="do all the work within the timed call, and leave clocks and hooks alone",
            )
    return None


def _mean_of(values: Sequence[float]) -> Estimate:
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), error, len(values) - 1)
