"""A block whose results are judged: they are read as it ends, from its process's memory.

A kernel that fills a result in, or exchanges one, when the clock has stopped is too late.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_kopt.cases.order import PLACES, RESULTS
from pytest_kopt.devices.processes import Inspected, Unseen
from pytest_kopt.processes.child import Child

#: Of a larger result nothing is read.
_MOST_BYTES = 1 << 28


@dataclass(slots=True)
class SeenBlock:
    """A block one call of which is judged: `calls` are those of its forward and backward.

    `memory` is what their results were, in order; None where that could not be read, and nothing of
    a process whose memory is not looked at.
    """

    arm: str
    seed: int
    calls: list[int] = field(default_factory=list)
    memory: list[list[bytes] | None] = field(default_factory=list)

    def see(self, child: Child, places: int, call: int) -> None:
        """Read what a call of the block that has just ended gave, 0 for `places`: nothing."""
        self.calls.append(call)
        if places and (process := child.inspected):
            self.memory.append(_results(process, places, call))

    def documents(self, ways: Sequence[str], folder: Path) -> Iterator[dict[str, Any]]:
        """Yield what a verifier gets, with files of a folder that kernel code cannot write to."""
        for way, call, memory in zip(ways, self.calls, self.memory, strict=False):
            where = {"arm": self.arm, "seed": self.seed, "way": way, "call": call}
            if memory is None:
                yield {**where, "file": "", "sizes": []}
                continue
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                file.write(b"".join(memory))
            yield {**where, "file": file.name, "sizes": [*map(len, memory)]}


def _results(process: Inspected, places: int, call: int) -> list[bytes] | None:
    """Return the memory of a call's results; `places` is where its process says where they lie."""
    addresses, results = array("Q"), []
    width = PLACES * addresses.itemsize
    try:
        with process.stopped():
            addresses.frombytes(process.read(places + call * width, width))
            for number in range(1, 1 + min(addresses[0], RESULTS)):
                address, size = addresses[2 * number - 1 : 2 * number + 1]
                results.append(process.read(address, min(size, _MOST_BYTES)) if size else b"")
    except Unseen:
        return None
    return results
