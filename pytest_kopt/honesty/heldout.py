"""Shapes near the declared ones: a kernel is to be right, and fast, there as well.

A test's own parameters are moved a step, unpredictably. What a shape says is only how the candidate
differs from the incumbent there: a shape that neither supports says nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pytest_kopt.honesty.finding import Finding

#: `aligned` keeps the power of two that divides a size, `uneven` does not.
Kind = Literal["aligned", "uneven"]
KINDS: tuple[Kind, ...] = ("aligned", "uneven")
Outcome = Literal["right", "wrong", "raises"]
_GRAIN = 256
#: A declared gain above this many percent of which less than half is left nearby is flagged.
_GAIN_PCT = 10.0


@dataclass(frozen=True, slots=True)
class Tried:
    """One shape and what became of the versions there.

    `outcomes` by version's name, `what` the first line of what went wrong; `speedup` is the
    incumbent's time over the candidate's, None where it was not measured.
    """

    nodeid: str
    kind: Kind
    dims: dict[str, Any]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    what: dict[str, str] = field(default_factory=dict)
    speedup: float | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def plus(self, other: Tried) -> Tried:
        """Return what two processes found about one shape."""
        return Tried(
            self.nodeid,
            self.kind,
            self.dims,
            self.outcomes | other.outcomes,
            self.what | other.what,
            self.speedup if self.speedup is not None else other.speedup,
        )


def nearby(value: int, kind: Kind, dice: random.Random) -> int:
    """Return a size a step away from `value` (at least 1 and never `value` where that can be).

    The grain is the largest power of two, at most 256, that divides the value. An aligned step is
    one grain up or down; an uneven one an odd number below the grain, or 1 for an odd value.
    """
    grain = min(_GRAIN, value & -value)
    step = grain if kind == "aligned" else dice.randrange(1, max(grain, 2), 2)
    up = value + step
    return up if value - step < 1 or dice.random() < 0.5 else value - step


def perturbed(
    parameters: Mapping[str, Any], dims: Mapping[str, Any], kind: Kind, dice: random.Random
) -> dict[str, Any] | None:
    """Return a test's parameters with some of its sizes moved, None where it has none.

    Sizes are integers above 1, alone or in a tuple or list, that are values of the case's dims.
    Equal sizes move together: they may have to be equal. Each size is moved with probability 1/2,
    and one at least.
    """
    sizes = {value for value in dims.values() if _is_size(value)}
    movable = sorted({value for item in parameters.values() for value in _sizes(item)} & sizes)
    if not movable:
        return None
    chosen = [value for value in movable if dice.random() < 0.5] or [dice.choice(movable)]
    moved = {value: nearby(value, kind, dice) for value in chosen}
    return {name: _replaced(item, moved) for name, item in parameters.items()}


def held_out_findings(
    tried: Iterable[Tried],
    candidate: str,
    incumbent: str,
    gains_pct: Mapping[str, float | None],
) -> list[Finding]:
    """Return what the shapes say about the candidate, at most one finding a case.

    Wrong where the incumbent is right rejects; raising is a note, since a kernel may say what it
    does not support. `gains_pct` are the declared shapes' gains by node id: one that is not there
    nearby is a note.
    """
    found: dict[str, Finding] = {}
    for item in tried:
        if item.outcomes.get(incumbent) != "right" or candidate not in item.outcomes:
            continue
        finding = _finding(item, item.outcomes[candidate], item.what.get(candidate, ""))
        finding = finding or _lost_speed(item, gains_pct.get(item.nodeid))
        known = found.get(item.nodeid)
        if finding and (known is None or finding.rejects > known.rejects):
            found[item.nodeid] = finding
    return list(found.values())


def merged(tried: Iterable[Tried]) -> list[Tried]:
    """Return one entry a shape from what several processes found."""
    found: dict[tuple[str, str, str], Tried] = {}
    for item in tried:
        key = (item.nodeid, item.kind, repr(sorted(item.dims.items())))
        found[key] = found[key].plus(item) if key in found else item
    return list(found.values())


def _finding(item: Tried, outcome: Outcome, what: str) -> Finding | None:
    if outcome == "right":
        return None
    shape = ", ".join(f"{name}={value}" for name, value in item.dims.items())
    return Finding(
        "held-out-shape",
        f"{outcome} at {shape}, near the declared shape, where the incumbent is right: {what}",
        where=item.nodeid,
        advice="the declared shapes are examples: support what the incumbent supports",
        rejects=outcome == "wrong",
    )


def _lost_speed(item: Tried, declared_pct: float | None) -> Finding | None:
    if item.speedup is None or declared_pct is None or declared_pct < _GAIN_PCT:
        return None
    left = math.log(item.speedup) / math.log1p(declared_pct / 100)
    if left >= 0.5:
        return None
    shape = ", ".join(f"{name}={value}" for name, value in item.dims.items())
    return Finding(
        "held-out-speed",
        f"{declared_pct:+.1f} % at the declared shape, {(item.speedup - 1) * 100:+.1f} % at "
        f"{shape}",
        where=item.nodeid,
        advice="say in the notes which shapes the gain is for",
        rejects=False,
    )


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _sizes(item: Any) -> Sequence[int]:
    members = item if isinstance(item, tuple | list) else (item,)
    return [value for value in members if _is_size(value)]


def _replaced(item: Any, moved: Mapping[int, int]) -> Any:
    if isinstance(item, tuple | list):
        return type(item)([_replaced(member, moved) for member in item])
    return moved.get(item, item) if _is_size(item) else item
