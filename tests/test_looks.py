"""Which processes a paired comparison measures: all cases, then those alone that are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from pytest_kopt import policies
from pytest_kopt.decide.inference import ALONE_LEVEL, LOOKS, SHAPE_LEVEL, Estimate, log_ratio
from pytest_kopt.decide.known_noise import HOST_TIMED, Noise
from pytest_kopt.decide.paired import ALONE_FROM, ALONE_LOOKS, InterimLooks
from pytest_kopt.decide.paired_evidence import PairedCase, PairedEvidence
from pytest_kopt.decide.verdict import Decision, Verdict

PRIMUS = policies.load("primus")
GATE = -log_ratio(PRIMUS.shape_gate_pct)


@dataclass
class Played:
    """A comparison of cases whose log-ratios are there already."""

    ratios: Sequence[Sequence[float]]
    placebo: Sequence[Sequence[float]]
    gate: Literal["improve", "no-regression"] = "improve"
    noise: Noise | None = None
    asked: dict[int, frozenset[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def look_at(
        self, look: int, alone: frozenset[str]
    ) -> tuple[list[PairedEvidence], list[PairedEvidence]]:
        missing = look - max(self.asked, default=0)
        self.asked[look] = alone
        cases = []
        for i, (ratios, placebo) in enumerate(zip(self.ratios, self.placebo, strict=True)):
            name = str(i)
            self.counts[name] += missing if not alone or name in alone else 0
            own = self.counts[name]
            cases.append(PairedCase(name, name, {}, tuple(ratios[:own]), tuple(placebo[:own])))
        return [PairedEvidence("step", tuple(cases), self.gate, noise=self.noise)], []

    def decide(self) -> Verdict:
        looks = InterimLooks(PRIMUS)
        return next(
            verdict
            for look in looks.counts
            if (verdict := looks.decide(look, *self.look_at(look, looks.alone)))
        )


def restless(dice: Random) -> Played:
    """Three cases whose processes are sometimes far off, as on a busy CPU."""

    def drawn(mean: float) -> list[float]:
        return [mean + dice.gauss(0, dice.choice([0.01, 0.01, 0.06])) for _ in range(16)]

    changes = (-0.04, 0.0, 0.0)
    return Played(
        [drawn(change) for change in changes],
        [drawn(0.0) for _ in changes],
        "no-regression",
        Noise((), HOST_TIMED),
    )


def test_who_is_measured_alone_is_chosen_once() -> None:
    """Others chosen later left a number of common processes that is no look."""
    dice, chosen = Random(24), 0
    for _ in range(300):
        played = restless(dice)
        played.decide()
        sets = {alone for alone in played.asked.values() if alone}
        assert len(sets) <= 1
        assert all(look > ALONE_FROM for look, alone in played.asked.items() if alone)
        chosen += len(sets)
    assert chosen > 30


def quiet_copies(count: int) -> list[list[float]]:
    """Return the A/A controls of cases that nothing disturbs."""
    return [[0.001 * (-1) ** i for i in range(16)] for _ in range(count)]


def test_beyond_the_last_look_the_level_is_stricter() -> None:
    """A case is looked at more often then: one at the gate would pass more often."""
    quiet = [[0.05 + 0.001 * (-1) ** i for i in range(16)] for _ in range(4)]
    # The bound passes the gate at 16 processes at a case's usual level only.
    wide = [0.02 * (-1) ** i for i in range(16)]
    lower = Estimate.of(wide, wide)
    mean = GATE - (lower.lower(SHAPE_LEVEL) + lower.lower(ALONE_LEVEL)) / 2
    played = Played([*quiet, [mean + value for value in wide]], [*quiet_copies(4), wide])
    verdict = played.decide()
    assert list(played.asked) == [*LOOKS, *ALONE_LOOKS]
    assert played.asked[16] == {"4"}
    assert (
        verdict.decision is Decision.INCONCLUSIVE
        and "in case '4' cannot be excluded" in verdict.reason
    )
    low = verdict.shapes[4].low_pct
    assert low is not None and log_ratio(low) < GATE < Estimate.of(played.ratios[4], wide).lower(
        SHAPE_LEVEL
    )
