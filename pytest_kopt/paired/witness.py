"""Time that passes outside of what a comparison counts: whether a gain was only moved there.

On the CPU a block's time is counted from its start to its end, and its content is written before
that, within the same process. On a GPU its events are counted, which begin after its start. What
passes around the counted time is the same work for all versions; a version that gains, and for
which it takes as much longer, has moved its work there (a hook, a finalizer, a clock that lies).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.decide.inference import Estimate
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


def hidden_time(replicas: Sequence[Mapping[str, CaseQuads]]) -> Iterator[Finding]:
    """Say what contradicts the gain of a case."""
    for nodeid in {name: None for replica in replicas for name in replica}:
        cases = [replica[nodeid] for replica in replicas if nodeid in replica]
        pairs = [pair for case in cases for pair in _pairs(case.quads.get(CANDIDATE, ()))]
        is_gpu = any(not {"wall"}.issuperset(case.engine.split("+")) for case in cases)
        if len(pairs) > 1 and (finding := _contradiction(nodeid, pairs, is_gpu=is_gpu)):
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
