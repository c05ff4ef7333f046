"""Time that passes outside of what a comparison counts: whether a gain was only moved there.

On the CPU a block's time is counted from its start to its end, and its content is written before
that, within the same process. On a GPU its events are counted, which begin after its start, and the
outside clock has to see the gain as well. What passes around the counted time is the same work for
all versions; a version that gains, and for which it takes as much longer, has moved its work there
(a hook, a finalizer, a clock that lies).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.decide.inference import Estimate, percent
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.paired.blocks import BlockTime, Quad
from pytest_kopt.paired.replica import CaseQuads

#: Of a gain, and of the counted time, so much may pass elsewhere; and of what passes elsewhere for
#: the current best, which differs by the contents of the processor's caches.
_SHARE, _LEAST, _CACHES = 0.25, 0.02, 0.1
#: Messages to a GPU's process and the launches of its calls take their time, in ms.
_LAUNCHES_MS = 5.0
#: One-sided level of the bound on the time that passes elsewhere.
_LEVEL = 0.001
#: One-sided level at which the outside clock has to see a gain of a GPU, and how many replicas may
#: be measured for that alone.
_SEEN_LEVEL, _MORE_REPLICAS = 0.05, 2
#: Standard error of the median of n values, from their median deviation, times the root of n.
_MEDIAN_ERROR = 1.2533 * 1.4826

Replicas = Sequence[Mapping[str, CaseQuads]]


@dataclass(frozen=True, slots=True)
class Witness:
    """What the clock of the deciding process says of a gain that a GPU's events measured.

    `seen` is the change over all cases as a log-ratio, None where that clock is the measure itself.
    With `loss_pct` the verdict claims no gain, but that no more than this is lost. `more` replicas
    were measured for this clock alone.
    """

    seen: Estimate | None = None
    loss_pct: float | None = None
    more: int = 0

    @property
    def doubt(self) -> str:
        """Why the verdict is not credited, empty where it is."""
        if self.seen is None:
            return ""
        low, high = self.seen.lower(_SEEN_LEVEL), self.seen.upper(_SEEN_LEVEL)
        if low > 0 if self.loss_pct is None else high >= math.log1p(-self.loss_pct / 100):
            return ""
        return (
            "by the clock of the process that decides, which is less sharp than the device's "
            f"events, the change is {percent(self.seen.mean):+.1f} % "
            f"[{percent(low):+.1f}, {percent(high):+.1f}]"
        )

    def to_document(self) -> dict[str, object] | None:
        if self.seen is None:
            return None
        return {**self.seen.figures(_SEEN_LEVEL), "more_replicas": self.more}


def look_outside(
    replicas: Replicas,
    another: Callable[[], Iterable[Mapping[str, CaseQuads]]],
    loss_pct: float | None = None,
) -> Witness:
    """Ask the outside clock, and `another` replica while it does not bear a verdict out."""
    measured = [*replicas]
    for more in range(_MORE_REPLICAS + 1):
        witness = Witness(_outside_change(measured), loss_pct, more)
        if not witness.doubt or more == _MORE_REPLICAS:
            break
        measured += another()
    return witness


def _outside_change(replicas: Replicas) -> Estimate | None:
    """Return the change over the cases of a GPU by the outside clock."""
    cases = [[*_outside_ratios(pairs)] for pairs, is_gpu in _timed(replicas).values() if is_gpu]
    if not cases:
        return None
    medians = [statistics.median(ratios) for ratios in cases]
    errors = [
        _MEDIAN_ERROR
        * statistics.median(abs(ratio - middle) for ratio in ratios)
        / math.sqrt(len(ratios))
        for ratios, middle in zip(cases, medians, strict=True)
    ]
    freedom = sum(len(ratios) - 1 for ratios in cases)
    return Estimate(statistics.fmean(medians), math.hypot(*errors) / len(cases), freedom)


def _outside_ratios(pairs: Collection[tuple[BlockTime, BlockTime]]) -> Iterator[float]:
    """Yield pairs' log-ratios by the outside clock, less what it sees around the current best."""
    around = statistics.median(old.outside - old.counted for _, old in pairs)
    least = 0.01 * statistics.median(old.counted for _, old in pairs)
    for new, old in pairs:
        yield math.log(max(old.outside - around, least) / max(new.outside - around, least))


def _timed(replicas: Replicas) -> dict[str, tuple[list[tuple[BlockTime, BlockTime]], bool]]:
    """Return the pairs of the cases that were timed, and whether events of a GPU measured them."""
    timed = {}
    for nodeid in {name: None for replica in replicas for name in replica}:
        cases = [replica[nodeid] for replica in replicas if nodeid in replica]
        pairs = [pair for case in cases for pair in _pairs(case.quads.get(CANDIDATE, ()))]
        is_gpu = any(not {"wall"}.issuperset(case.engine.split("+")) for case in cases)
        if len(pairs) > 1:
            timed[nodeid] = pairs, is_gpu
    return timed


def hidden_time(replicas: Replicas) -> Iterator[Finding]:
    """Say what contradicts the gain of a case."""
    for nodeid, (pairs, is_gpu) in _timed(replicas).items():
        if finding := _contradiction(nodeid, pairs, is_gpu=is_gpu):
            yield finding


def _contradiction(
    nodeid: str, pairs: Collection[tuple[BlockTime, BlockTime]], *, is_gpu: bool
) -> Finding | None:
    """Return a finding where the candidate's other time outweighs its gain, in ms of a block."""
    counted = statistics.fmean(old.counted for _, old in pairs)
    gained = counted - statistics.fmean(new.counted for new, _ in pairs)
    around = statistics.fmean(old.outside - old.counted for _, old in pairs)
    longer = [(new.outside - new.counted) - (old.outside - old.counted) for new, old in pairs]
    error = statistics.stdev(longer) / math.sqrt(len(longer))
    estimate = Estimate(statistics.fmean(longer), error, len(longer) - 1)
    tolerance = _LAUNCHES_MS + around if is_gpu else _CACHES * around
    if gained <= 0 or estimate.lower(_LEVEL) <= max(_SHARE * gained, _LEAST * counted, tolerance):
        return None
    return Finding(
        "hidden-time",
        f"the timed calls of a block take {gained:.3g} ms less than the current best's, and "
        f"{estimate.mean:.3g} ms more pass outside of them",
        where=nodeid,
        advice="do all the work within the timed call, and leave clocks and hooks alone",
    )


def _pairs(quads: Sequence[Quad]) -> Iterator[tuple[BlockTime, BlockTime]]:
    """Yield the candidate's and the current best's adjacent blocks."""
    for quad in quads:
        for pair in (dict(quad[:2]), dict(quad[2:])):
            yield pair[CANDIDATE], pair[INCUMBENT]
