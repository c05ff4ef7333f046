"""How many blocks compare two arms of a case."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO
from pytest_kopt.paired.blocks import Blocks


class Process:
    """Runs blocks that take so many ms."""

    def __init__(self, ms: float) -> None:
        self._ms = ms

    def tell(self, kind: str, **told: Any) -> None:
        pass

    def receive(self) -> dict[str, Any]:
        spent = {"waited": self._ms, "spent": self._ms}
        return {"kind": "time", "forward": self._ms, "backward": None, "between": 0.0, **spent}


@pytest.mark.parametrize(
    ("kind", "cases", "ms", "arms", "quads"),
    [
        ("cuda", 8, 5.0, (), 6),
        ("cuda", 9, 5.0, (), 3),
        ("cuda", 8, 20.0, (), 3),
        ("cuda", 8, 5.0, ("first", "second"), 3),
        ("cpu", 1, 5.0, (), 3),
    ],
    ids=["few short ones", "many cases", "long blocks", "a race", "cpu"],
)
def test_few_short_blocks_are_compared_more_often(
    kind: str, cases: int, ms: float, arms: tuple[str, ...], quads: int
) -> None:
    process = Process(ms)
    names = (INCUMBENT, PLACEBO, *(arms or (CANDIDATE,)))
    held = cast("Any", dict.fromkeys(names, process))
    blocks = Blocks(held, random.Random(7), kind, cases)
    blocks.warm_up()
    found = blocks.quads()
    assert {*found} == {"placebo", *(arms or ("candidate",))}
    assert all(len(every) == quads for every in found.values())


def test_the_incumbent_alone_is_compared_no_more_often_for_that() -> None:
    held = cast("Any", dict.fromkeys((INCUMBENT, PLACEBO, CANDIDATE, ALONE), Process(5.0)))
    blocks = Blocks(held, random.Random(7), "cuda", 8)
    blocks.warm_up()
    assert {kind: len(quads) for kind, quads in blocks.quads().items()} == {
        "candidate": 6,
        "placebo": 6,
        "alone": 3,
    }
