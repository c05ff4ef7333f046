"""The pictures of the terminal show what is printed today, in 80 columns."""

from __future__ import annotations

import html
import math
import re
import sys
from pathlib import Path
from statistics import fmean

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import decision_picture
from benchmarks.pictures import pictures
from pytest_kopt.decide.inference import LOOKS, SHAPE_LEVEL, student_quantile

PICTURES = Path(__file__).parents[1] / "docs/pictures"
OUTCOMES = {
    "baseline": "BASELINE",
    "accepted": "ACCEPTED",
    "rolled-back": "ROLLED_BACK",
    "undecided": "INCONCLUSIVE",
    "failing": "REPAIR",
    "gate": "slower (",
}


def test_the_picture_of_a_decision_is_drawn_from_the_kept_rounds() -> None:
    """Otherwise: `python benchmarks/decision_picture.py`."""
    assert decision_picture.PICTURE.read_text() == decision_picture.drawn()


@pytest.mark.parametrize("number", decision_picture.ROUNDS)
def test_the_formula_of_the_page_gives_the_interval_that_is_drawn(number: int) -> None:
    """As docs/paired.md writes it, with its letters."""
    noise = decision_picture.verdict_of(number)["noise"]
    x, a = (decision_picture.of_all(number, name) for name in ("candidate", "placebo"))
    n, m, b, alpha = len(x), fmean(x), fmean(a), LOOKS[len(x)]
    d, d0 = 2 * (n - 1), noise["freedom"]
    s0, k = math.log1p(noise["sd_pct"] / 100), noise["excess"]
    s2 = (sum((r - m) ** 2 for r in x) + sum((r - b) ** 2 for r in a)) / d
    g = min(0.1 * abs(m), 0.01)
    v = (d * s2 + d0 * (k * s0**2 + g**2)) / (d + d0)
    half = student_quantile(d + d0, 1 - alpha) * math.sqrt(v / n)
    bounds = (m, min(m, m - b) - half, max(m, m - b) + half)
    estimate, _ = decision_picture.estimates(number)
    drawn = decision_picture.figures(estimate, alpha)
    assert drawn == pytest.approx([100 * math.expm1(bound) for bound in bounds])
    assert drawn[0] == pytest.approx(
        decision_picture.verdict_of(number)["aggregate"]["change_pct"]
    ), "as the round showed it"


def test_the_rounds_that_are_drawn_show_each_reason() -> None:
    """Whose words the picture has: they are about the intervals, not copied from a verdict."""
    found = {}
    for number in decision_picture.ROUNDS:
        estimate, cases = decision_picture.estimates(number)
        _, low, high = decision_picture.figures(estimate, decision_picture.level_of(number))
        decision = decision_picture.verdict_of(number)["decision"]
        found[decision] = "above" if low > 0 else "below" if high < 0 else "contains"
        # A loss of 5 % of time is a change of speed of -4.76 %.
        lows = [decision_picture.figures(case, SHAPE_LEVEL)[1] for case in cases.values()]
        assert min(lows) > 100 * (1 / 1.05 - 1)
    assert found == {"ACCEPTED": "above", "ROLLED_BACK": "below", "INCONCLUSIVE": "contains"}
    assert all(word in decision_picture.DECISIONS[key][1] for key, word in found.items())


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return pictures()


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_picture_is_what_the_terminal_shows_today(name: str, drawn: dict[str, str]) -> None:
    """Otherwise: `python -m benchmarks.pictures`."""
    text = (PICTURES / f"terminal-{name}.svg").read_text()
    assert text == drawn[name]
    assert f"](pictures/terminal-{name}.svg)" in (PICTURES.parent / "verdicts.md").read_text()
    rows = re.findall(r"<text[^>]*>(.*?)</text>", text)
    shown = [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in rows]
    assert any(OUTCOMES[name] in row for row in shown)
    assert max(map(len, shown)) <= 80
