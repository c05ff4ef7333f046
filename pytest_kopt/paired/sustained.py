"""Which cases a comparison measures at the sustained operating point as well, and for how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pytest_kopt.cases.order import AT_LENGTH
from pytest_kopt.devices.states import SUSTAINED
from pytest_kopt.paired.blocks import Blocks, Kind, Quad


class Sustained:
    """The cases that replicas of one device have measured at the sustained operating point."""

    def __init__(self, turns: int) -> None:
        """Have `turns` turns measured, in as many replicas, where the point does not decide."""
        self._turns = turns
        #: By node id, how many replicas have measured it.
        self._measured: Counter[str] = Counter()
        #: The cases whose clock does not fall under load: they have one figure for both points.
        self.steady: set[str] = set()

    def measure(self, nodeid: str, point: str, blocks: Blocks) -> Mapping[Kind, list[Quad]]:
        """Measure a case, whose `point` decides, in one replica; nothing where that is not due."""
        decides = point == SUSTAINED
        # Where no clock is known, none is known to fall.
        is_due = decides or (self._measured[nodeid] < self._turns and blocks.top_mhz > 0)
        if nodeid in self.steady or not is_due:
            return {}
        turns = AT_LENGTH if decides else self._turns
        quads = blocks.sustained(turns, has_control=decides)
        if quads is None:
            self.steady.add(nodeid)
            return {}
        self._measured[nodeid] += 1
        return quads
