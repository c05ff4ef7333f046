"""How often a plain run calls a slow kernel, and what for (docs/honesty-evidence.md)."""

from __future__ import annotations

import functools
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_kopt.cases.running import check, run_case, timing
from pytest_kopt.cases.running.steps import contents
from pytest_kopt.cases.running.switches import switches_kept
from tests.scripted import Clock
from tests.test_check_only import case_of, plain_bench

PAGE = Path(__file__).parents[1] / "docs" / "honesty-evidence.md"
PARTS: dict[str, list[tuple[Any, str]]] = {
    "answers": [
        (check, "fresh_content"),
        (contents, "same_addresses"),
        (contents, "few_of_a_weight"),
        (contents, "after_many_calls"),
    ],
    "equal calls": [(check, "equal_calls")],
    "clock": [(timing, "sets_on_cpu")],
    "samples": [(timing, "samples_of"), (run_case, "wrong_results")],
}


def told(seconds: str) -> dict[str, int]:
    """Return the table's column for a kernel that takes so long."""
    lines = PAGE.read_text().partition("| calls at most")[2].splitlines()
    column = [cell.strip() for cell in lines[0].split("|")].index(seconds)
    rows = [[cell.strip() for cell in line.split("|")] for line in lines[2 : 2 + len(PARTS)]]
    return {row[1]: int(row[column + 1]) for row in rows}


@contextmanager
def counting(patch: pytest.MonkeyPatch, parts: list[str]) -> Iterator[None]:
    """Have `parts` hold what is going on, the innermost last."""
    for part, places in PARTS.items():
        for owner, name in places:
            wrap(patch, owner, name, part, parts)
    yield
    patch.undo()


def wrap(patch: pytest.MonkeyPatch, owner: object, name: str, part: str, parts: list[str]) -> None:
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def noted(*args: object, **kwargs: object) -> object:
        parts.append(part)
        try:
            found = inner(*args, **kwargs)
            # A generator calls nothing before it is asked.
            return list(found) if isinstance(found, Iterator) else found
        finally:
            parts.pop()

    patch.setattr(owner, name, noted)


def counted(
    patch: pytest.MonkeyPatch, clock: Clock, seconds: float, only_checks: bool = False
) -> Counter[str]:
    """Return how often a plain run calls a kernel that takes so long, by part of the run."""
    parts = ["none of the parts"]
    calls: Counter[str] = Counter()

    def kernel(x: torch.Tensor) -> torch.Tensor:
        calls[parts[-1]] += 1
        clock.spend(seconds)
        return 2 * x

    with counting(patch, parts):
        result, _, _ = run_case.run_case(case_of(kernel), plain_bench(only_checks=only_checks))
    assert result.check == "PASS", result.diagnosis
    return calls


@pytest.mark.parametrize(
    ("text", "seconds", "only_checks"),
    [
        ("60 ms", 0.06, False),
        ("0.35 s", 0.35, True),
        ("0.35 s", 0.35, False),
    ],
)
def test_the_table_of_calls(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, text: str, seconds: float, only_checks: bool
) -> None:
    calls = counted(monkeypatch, clock, seconds, only_checks)
    most = told(text)
    assert most.keys() == PARTS.keys()
    assert all(calls[part] <= most[part] for part in most), calls
    assert calls["answers"] == most["answers"]
    timed = {"clock", "samples"} if only_checks else set()
    assert calls.keys() == {part for part in most if most[part]} - timed


def test_it_holds_in_a_process_with_threads_and_children_of_others(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Of other tests, that is: those that run sessions leave processes that fork them."""
    with switches_kept(), subprocess.Popen(["sleep", "600"]) as child:
        torch.set_num_threads(torch.get_num_threads() + 2)
        try:
            calls = counted(monkeypatch, clock, 0.06)
        finally:
            child.kill()
    assert calls.keys() == PARTS.keys()
