"""Which cases a comparison measures at the sustained operating point as well, and for how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_kopt.cases.order import AT_LENGTH, CANDIDATE, IN_A_ROUND
from pytest_kopt.devices.states import SUSTAINED
from pytest_kopt.paired.blocks import Blocks, Kind, Quad, gain_in_turns

#: A round's turns are repeated the other way round in the next replica after a loss of so much, as
#: a log-ratio, that boost does not show: on an H100 the version whose turn came second was up to
#: 7 % slower for that. A smaller loss is no more than one replica's error.
_LOSS = 0.05


class Sustained:
    """The cases that replicas of one device have measured at the sustained operating point."""

    def __init__(self, turns: int) -> None:
        """Have `turns` turns measured, in as many replicas, where the point does not decide."""
        self._turns = turns
        #: By node id, how many replicas have measured it, and of those to be measured once more the
        #: version whose turn came first.
        self._measured: Counter[str] = Counter()
        self._doubtful: dict[str, str] = {}
        #: The cases whose clock does not fall under load: they have one figure for both points.
        self.steady: set[str] = set()

    def measure(
        self, nodeid: str, point: str, blocks: Blocks, at_boost: Sequence[Quad]
    ) -> Mapping[Kind, list[Quad]]:
        """Measure a case, whose `point` decides, in one replica; nothing where that is not due.

        `at_boost` are this replica's comparisons at boost.
        """
        decides = point == SUSTAINED
        # Where no clock is known, none is known to fall.
        most = self._turns + (nodeid in self._doubtful)
        is_due = decides or (self._measured[nodeid] < most and blocks.top_mhz > 0)
        if nodeid in self.steady or not is_due:
            return {}
        turns = AT_LENGTH if decides else self._turns
        last = self._doubtful.get(nodeid, "")
        quads = blocks.sustained(turns, last, has_control=decides)
        if quads is None:
            self.steady.add(nodeid)
            return {}
        self._measured[nodeid] += 1
        is_once = self._turns == IN_A_ROUND and not decides
        if is_once and gain_in_turns(quads[CANDIDATE]) < -_LOSS <= gain_in_turns(at_boost):
            self._doubtful.setdefault(nodeid, quads[CANDIDATE][0][0][0])
        return quads
