"""The pictures of what the terminal shows are there and fit 80 columns."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[1] / "docs/pictures"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        *[("baseline", "BASELINE"), ("accepted", "ACCEPTED"), ("rolled-back", "ROLLED_BACK")],
        *[("undecided", "INCONCLUSIVE"), ("failing", "REPAIR"), ("gate", "slower (")],
    ],
)
def test_a_picture_shows_its_outcome_in_eighty_columns(name: str, word: str) -> None:
    text = (PICTURES / f"terminal-{name}.svg").read_text()
    page = (PICTURES.parent / "verdicts.md").read_text()
    assert f"](pictures/terminal-{name}.svg)" in page
    rows = re.findall(r"<text[^>]*>(.*?)</text>", text)
    shown = [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in rows]
    assert any(word in row for row in shown)
    assert max(map(len, shown)) <= 80
