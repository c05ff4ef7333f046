"""The walk of `kopt bisect` over histories of known speed, against a simulated gate."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.bisect.bisection import Answer
from pytest_kopt.bisect.walk import PARTS, SESSIONS, Change, Culprit, History, Pair
from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS, log_ratio
from pytest_kopt.decide.known_noise import DEVICE_TIMED, Noise
from pytest_kopt.decide.paired import decide_paired
from pytest_kopt.decide.paired_evidence import PairedCase, PairedEvidence

PRIMUS = policies.load("primus")
#: Standard deviation of a case between processes, five of which scatter by 0.11 % together
#: (docs/paired-evidence.md).
CASE_SD, CASES = 0.0025, 5


def simulated_gate(change: float, draw: random.Random, cases: int = CASES) -> Change:
    """Return what a session says of a log-ratio: through the rule that decides, look by look."""
    ratios = [[draw.gauss(change, CASE_SD) for _ in range(FINAL_LOOK)] for _ in range(cases)]
    copies = [[draw.gauss(0.0, CASE_SD) for _ in range(FINAL_LOOK)] for _ in range(cases)]
    for look in LOOKS:
        evidence = PairedEvidence(
            "step speed",
            tuple(
                PairedCase(str(i), str(i), {}, tuple(ratios[i][:look]), tuple(copies[i][:look]))
                for i in range(cases)
            ),
            noise=Noise((), DEVICE_TIMED),
        )
        verdict = decide_paired(evidence, PRIMUS)
        if verdict is not None:
            found = Answer(verdict, "").change
            return found or simulated_gate(change, draw, cases)
    raise AssertionError("the last look decides")


def walked(
    levels: list[float],
    gate: Callable[[float], Change],
    broken: Collection[int] = (),
) -> tuple[Culprit | None, History, list[Pair]]:
    """Walk versions of these log-speeds; returns what was found and which pairs were asked for."""
    asked = list[Pair]()

    def compare(pair: Pair) -> Change | None:
        asked.append(pair)
        change = levels[pair.version] - levels[pair.base]
        return None if pair.version in broken else gate(change)

    history = History(len(levels) - 1, compare)
    return history.first_slower(), history, asked


def exact(change: float) -> Change:
    return Change(change, 1e-6)


def planted(last: int, culprit: int, loss: float, gain_at: int, gain: float) -> list[float]:
    """Return the log-speeds of a history with one loss and one gain, in percent."""
    steps = [0.0] * (last + 1)
    steps[culprit] += log_ratio(-loss)
    steps[gain_at] += log_ratio(gain)
    return [sum(steps[: i + 1]) for i in range(last + 1)]


@given(
    last=st.integers(1, 64),
    data=st.data(),
    loss=st.sampled_from([1.0, 2.0, 5.0]),
)
def test_a_loss_is_found_wherever_a_smaller_gain_lies(
    last: int, data: st.DataObject, loss: float
) -> None:
    culprit = data.draw(st.integers(1, last))
    gain_at = data.draw(st.integers(1, last).filter(lambda i: i != culprit or last == 1))
    gain = 0.0 if last == 1 else loss / 2
    found, _, asked = walked(planted(last, culprit, loss, gain_at, gain), exact)
    assert found == Culprit(culprit, culprit - 1, confirmed=True)
    assert len(asked) <= 2 + max(1, last).bit_length()


@given(data=st.data(), before=st.booleans())
def test_a_loss_that_a_gain_hides_is_found_where_a_part_of_the_history_shows_it(
    data: st.DataObject, before: bool
) -> None:
    """BAD is as fast as GOOD or faster; between loss and gain lies at least a part."""
    last = 64
    early = data.draw(st.integers(1, last - PARTS - 1))
    late = data.draw(st.integers(early + last // PARTS, last))
    gain_at, culprit = (early, late) if before else (late, early)
    levels = planted(last, culprit, 2.0, gain_at, data.draw(st.sampled_from([2.5, 4.0])))
    found, _, asked = walked(levels, exact)
    assert found == Culprit(culprit, culprit - 1, confirmed=True)
    assert len(asked) <= 2 * PARTS


@given(
    last=st.integers(2, 40),
    data=st.data(),
)
def test_what_cannot_be_compared_is_stepped_over(last: int, data: st.DataObject) -> None:
    """The first slower version that can be is named, and those before it that may be meant."""
    culprit = data.draw(st.integers(1, last))
    broken = data.draw(st.sets(st.integers(1, last - 1)))
    found, history, _ = walked(planted(last, culprit, 2.0, culprit, 0.0), exact, broken)
    usable = [i for i in range(last + 1) if i not in broken]
    first = min(i for i in usable if i >= culprit)
    assert found == Culprit(first, max(i for i in usable if i < culprit), confirmed=True)
    assert history.skipped <= broken


def test_a_bad_that_cannot_be_compared_ends_the_walk() -> None:
    found, history, asked = walked([0.0] * 9, exact, broken={8})
    assert found is None and history.skipped == {8} and len(asked) == 1


@given(last=st.integers(1, 64))
def test_without_a_loss_nothing_is_named(last: int) -> None:
    found, history, asked = walked([0.0] * (last + 1), exact)
    assert found is None and len(asked) <= PARTS
    bad = history.change(last)
    assert bad is not None and bad.low > -1e-4


def test_several_sessions_are_pooled_by_their_precision() -> None:
    pooled = Change.pooled([Change(0.01, 0.001), Change(0.02, 0.002)])
    assert pooled.mean == pytest.approx(0.012) and pooled.error < 0.001
    assert Change.pooled([Change(0.01, 0.001), Change()]) == Change(), "the same code is certain"


@given(seed=st.integers(0, 2**32), loss=st.floats(0.1, 5.0))
@settings(max_examples=30)
def test_no_pair_gets_more_sessions_than_it_may(seed: int, loss: float) -> None:
    """Also where a loss is too small to be told at all."""
    draw = random.Random(seed)
    levels = planted(16, 5, loss, 9, loss / 3)
    _, _, asked = walked(levels, lambda change: Change(draw.gauss(change, 0.004), 0.004))
    assert max(asked.count(pair) for pair in asked) <= SESSIONS


@pytest.mark.parametrize("loss", [1.0, 2.0, 5.0])
def test_planted_losses_are_found_under_recorded_noise(loss: float) -> None:
    """64 commits, a gain somewhere: at least 97 % of the culprits, in few sessions."""
    draw = random.Random(round(loss))
    right, sessions = 0, 0
    for _ in range(60):
        culprit, gain_at = draw.sample(range(1, 65), 2)
        levels = planted(64, culprit, loss, gain_at, draw.uniform(0.2, 0.6) * loss)
        found, _, asked = walked(levels, lambda change: simulated_gate(change, draw))
        right += found == Culprit(culprit, culprit - 1, confirmed=True)
        sessions += len(asked)
    assert right >= 59, right
    assert sessions / 60 < 12


def test_the_same_speed_throughout_names_nobody_under_recorded_noise() -> None:
    draw, named = random.Random(1), 0
    for _ in range(60):
        found, _, _ = walked([0.0] * 65, lambda change: simulated_gate(change, draw))
        named += found is not None
    assert named == 0
