"""The table of checks: its functions, the findings they may give, and what is said of them."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pytest_kopt.cases.running.check import check_case
from pytest_kopt.honesty import checks
from pytest_kopt.honesty.checks import ANY, TABLE, Check, Phase, ask
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.nested import tensors
from tests.builders import a_bench
from tests.checked import case_of

PAGE = Path(__file__).parents[1] / "docs" / "honesty.md"
STEADY = Check(Phase.COLLECTED, "cases.collector:never_called", notes="never-called")


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


def test_the_documentation_names_what_the_table_names() -> None:
    """And says of what does not reject that it is REPAIR or a note."""
    table = PAGE.read_text().partition("| name | what was seen")[2].partition("\n\n")[0]
    told = defaultdict(set)
    for line in table.splitlines()[2:]:
        # `a`, `b` (a note): all before the bracket, since the semicolon before.
        for part in line.split("|")[1].split(";"):
            kind = re.search(r"\((.*)\)", part)
            for name in re.findall(r"`([a-z-]+)`", part):
                told[name].add(kind.group(1) if kind else "")
    known = {name for check in TABLE for name in check.names if name != ANY}
    assert {*told} == known
    repairs = {name for check in TABLE for name in check.repairs.split()}
    rejects = {name for check in TABLE for name in check.rejects.split()}
    for name, kinds in told.items():
        said = " ".join(kinds)
        assert ("REPAIR" in said) == (name in repairs), name
        assert ("note" in said) or (name in rejects | repairs), name


def test_the_table_names_every_finding_of_the_package() -> None:
    """And none that nothing can find."""
    made, words = set(), set()
    for path in Path(checks.__file__).parents[1].rglob("*.py"):
        # The table itself, and the audit's rules, which have one of their own.
        if path.name in ("checks.py", "audit.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant):
                words.add(node.value)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                made |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
    known = {name for check in TABLE for name in check.names} - {ANY}
    assert made <= known <= words


def test_a_finding_that_the_table_does_not_allow_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = STEADY._replace(notes="another-name")
    with pytest.raises(AssertionError, match="never-called"):
        list(row.ask(silent=["t.py::test"]))
    monkeypatch.setattr(checks, "TABLE", ())
    assert ask(Phase.COLLECTED, silent=["t.py::test"]) == []


def denormal_outputs(kept: Sequence[Any], expected: Sequence[Any]) -> list[Finding]:
    """Return a finding when results hold denormal numbers where the reference's do not."""

    def count(items: Sequence[Any]) -> int:
        floating = [item for item in tensors(list(items)) if item.is_floating_point()]
        return sum(
            int(((item != 0) & (item.abs() < torch.finfo(item.dtype).tiny)).sum())
            for item in floating
        )

    if not count(kept) or count(expected):
        return []
    return [Finding("denormal-output", "a result holds denormal numbers", advice="flush them")]


def test_a_check_is_one_file_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pytest_kopt.honesty.denormal_outputs")
    module.denormal_outputs = denormal_outputs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    line = Check(Phase.CALL, "honesty.denormal_outputs:denormal_outputs", "denormal-output")
    monkeypatch.setattr(checks, "TABLE", (*TABLE, line))

    def kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.where(x < 0, 1e-40, x * w)

    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.where(x < 0, 0.0, x.double() * w.double())

    case = case_of(kernel, reference=reference)
    report = check_case(case, a_bench(case))
    assert [found.check for found in report.findings] == ["denormal-output"]
    assert report.findings[0].rejects
