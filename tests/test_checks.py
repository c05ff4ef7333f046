"""The table of checks: its functions, the findings they may give, and what is said of them."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from pytest_kopt.honesty import checks, finding
from pytest_kopt.honesty.checks import TABLE, Check, Phase
from pytest_kopt.honesty.finding import CONSEQUENCES, Consequence, Finding

PAGE = Path(__file__).parents[1] / "docs" / "honesty.md"


@pytest.mark.parametrize("check", TABLE, ids=lambda check: check.function)
def test_every_function_is_there_and_asks_for_facts_of_its_phase(check: Check) -> None:
    function = pkgutil.resolve_name(f"pytest_kopt.{check.function}")
    assert {*inspect.signature(function).parameters} <= {*check.phase.facts}


def test_all_of_them_are_loaded_before_a_kernel_is() -> None:
    """So that the guards remember them, and a fork of the warm parent need not load them."""
    program = (
        "import sys; import pytest_kopt.cases.running.runner; "
        "from pytest_kopt.honesty.checks import TABLE; "
        "print([c.function for c in TABLE if 'pytest_kopt.' + c.function.partition(':')[0] "
        "not in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_every_phase_has_a_check_and_every_fact_is_asked_for() -> None:
    for phase in Phase:
        rows = [*checks.of_phase(phase)]
        functions = [pkgutil.resolve_name(f"pytest_kopt.{check.function}") for check in rows]
        asked = {name for each in functions for name in inspect.signature(each).parameters}
        asked |= {check.only.partition(".")[0] for check in rows if check.only}
        assert {*phase.facts} == asked, phase


def test_the_documentation_says_what_follows_from_every_finding() -> None:
    """It says of what does not reject that it is REPAIR or a note."""
    table = PAGE.read_text().partition("| name | what was seen")[2].partition("\n\n")[0]
    told = defaultdict(set)
    for line in table.splitlines()[2:]:
        # `a`, `b` (a note): all before the bracket, since the semicolon before.
        for part in line.split("|")[1].split(";"):
            kind = re.search(r"\((.*)\)", part)
            for name in re.findall(r"`([a-z-]+)`", part):
                told[name].add(kind.group(1) if kind else "")
    listed = PAGE.read_text().partition("\nNotes of the audit")[2].partition("\n\nIn ")[0]
    notes = {*re.findall(r"`([a-z-]+)`", listed)}
    assert {*told} | notes == {*CONSEQUENCES}
    assert {CONSEQUENCES[name] for name in notes} == {Consequence.NOTES}
    for name, kinds in told.items():
        said = " ".join(kinds)
        assert ("REPAIR" in said) == (CONSEQUENCES[name] is Consequence.REPAIRS), name
        assert ("note" in said) or (CONSEQUENCES[name] is not Consequence.NOTES), name


def test_something_follows_from_every_finding_of_the_package() -> None:
    """And nothing from what nobody finds."""
    made, words = set(), set()
    for path in Path(checks.__file__).parents[1].rglob("*.py"):
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
