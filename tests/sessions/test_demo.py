"""`kopt demo`: the whole story, timed for real, as somebody sees it who has just installed this."""

from __future__ import annotations

import re

import pytest

from .project import Project

pytestmark = pytest.mark.long


def test_the_demo_ends_as_it_should(empty: Project) -> None:
    run = empty.kopt("demo", "campaign")
    assert run.code == 0, run.text
    decisions = re.findall(r"^round (\d), attempt (\d): ([A-Z_]+) ", run.out, re.MULTILINE)
    expected = [
        ("1", "1", "BASELINE"),
        ("2", "1", "ACCEPTED"),
        ("3", "1", "ROLLED_BACK"),
        ("4", "1", "REPAIR"),
        ("4", "2", "ACCEPTED"),
        ("5", "1", "REJECTED_OVERFIT"),
    ]
    kept = [(*at, decision.removesuffix("_WITH_NOTE")) for *at, decision in decisions]
    assert kept == expected
    assert "Combined Step GB/s | vs Baseline" in run.out, "it ends with the trend"
    for path in re.findall(r"^ +(/\S+\.(?:md|json))$", run.out, re.MULTILINE):
        assert (empty.root / path).is_file()
    assert "performance_trend.md" in run.out

    run = empty.kopt("demo", "campaign")
    assert run.code == 4 and "not empty" in run.refusal
