"""The pictures of the terminal show what is printed today, in 80 columns."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import decision_picture
import operating_points_picture
from terminal_pictures import pictures

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


def test_the_picture_of_operating_points_is_drawn_from_the_kept_record() -> None:
    """Otherwise: `python benchmarks/operating_points_picture.py docs/pictures`."""
    record = json.loads(operating_points_picture.RECORD.read_text())
    drawn = operating_points_picture.picture(record)
    assert (PICTURES / operating_points_picture.NAME).read_text() == drawn


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return pictures()


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_picture_is_what_the_terminal_shows_today(name: str, drawn: dict[str, str]) -> None:
    """Otherwise: `python benchmarks/terminal_pictures.py docs/pictures`."""
    text = (PICTURES / f"terminal-{name}.svg").read_text()
    assert text == drawn[name]
    assert f"](pictures/terminal-{name}.svg)" in (PICTURES.parent / "verdicts.md").read_text()
    rows = re.findall(r"<text[^>]*>(.*?)</text>", text)
    shown = [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in rows]
    assert any(OUTCOMES[name] in row for row in shown)
    assert max(map(len, shown)) <= 80
