"""What checks of honesty find: what follows from it, and what is said of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pytest_kopt.honesty import finding
from pytest_kopt.honesty.finding import CONSEQUENCES, Consequence, Finding

PACKAGE = Path(finding.__file__).parents[1]
PAGE = PACKAGE.parent / "docs" / "findings.md"


def test_the_documentation_says_what_follows_from_every_finding() -> None:
    page = PAGE.read_text()
    sections = re.findall(r"^### ([a-z-]+)\n\n- Consequence: (.*)\.$", page, re.MULTILINE)
    told = dict(sections)
    assert len(told) == len(sections), "each has one section"
    of_audit = page.partition("\n## Flags of the audit")[2].partition("\n## ")[0]
    notes = {*re.findall(r"`([a-z0-9-]+)`", of_audit)}
    assert {*told} | notes == {*CONSEQUENCES}
    assert {CONSEQUENCES[name] for name in notes} == {Consequence.NOTES}
    words = {
        Consequence.REJECTS: "REJECTED_OVERFIT",
        Consequence.REPAIRS: "REPAIR",
        Consequence.NOTES: "a flag",
    }
    for name, consequence in told.items():
        assert consequence.startswith(words[CONSEQUENCES[name]]), name


def test_something_follows_from_every_finding_of_the_package() -> None:
    """And nothing from what nobody finds."""
    made, words = set(), set()
    for path in PACKAGE.rglob("*.py"):
        if path == Path(finding.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant):
                words.add(node.value)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                made |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
    assert made <= {*CONSEQUENCES} <= words


def test_a_finding_from_which_nothing_follows_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="another-name"):
        Finding("another-name", "what was seen")


@pytest.mark.parametrize("name", CONSEQUENCES)
def test_a_finding_that_is_only_ever_a_note_does_not_reject(name: str) -> None:
    found = Finding(name, "what was seen")
    assert found.rejects == (CONSEQUENCES[name] is not Consequence.NOTES)
    assert found.repairs == (CONSEQUENCES[name] is Consequence.REPAIRS)
    assert not Finding(name, "what was seen", rejects=False).rejects
