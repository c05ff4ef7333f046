"""A run that does not use kopt pays next to nothing for it."""

from __future__ import annotations

import json
import sys

import pytest

from ..nursery import FRESH
from .project import NO_XDIST, SERIAL, TWO_WORKERS, Project

HEAVY = ("torch", "triton", "numpy", "pandas", "git", "yaml", "jinja2", "pydantic")

NOT_OURS = f"""\
import json
import sys

import pytest


@pytest.mark.parametrize("n", range(3))
def test_something_else(n):
    found = sorted(set({HEAVY!r}) & set(sys.modules))
    with open("imported.log", "a") as log:
        print(json.dumps(found), file=log)
"""

AT_THE_END = f"""\
import json
import sys


def pytest_unconfigure():
    found = sorted(set({HEAVY!r}) & set(sys.modules))
    with open("imported.log", "a") as log:
        print(json.dumps(found), file=log)
"""


@pytest.mark.parametrize(
    "words",
    [SERIAL, TWO_WORKERS, pytest.param(NO_XDIST, marks=pytest.mark.long)],
    ids=["serial", "n2", "no-xdist"],
)
def test_nothing_heavy_is_imported(empty: Project, words: tuple[str, ...]) -> None:
    """Neither in the main process nor in a worker, while tests run nor when all is over."""
    empty.write("tests/test_else.py", NOT_OURS)
    empty.write("tests/conftest.py", AT_THE_END)
    # Plugins of others import what they like: hypothesis brings numpy when it is there.
    run = empty.pytest("-p", "no:hypothesispytest", *words, **FRESH)
    assert run.code == 0, run.text
    lines = [json.loads(line) for line in empty.read("imported.log").splitlines()]
    assert len(lines) == 3 + (3 if words == TWO_WORKERS else 1)
    assert all(found == [] for found in lines), lines
    assert "kopt:" not in run.out and "= kopt =" not in run.out, "silent when inactive"


def test_importing_the_package_is_free(empty: Project) -> None:
    code = f"import sys, pytest_kopt; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    run = empty.run(sys.executable, "-c", code)
    assert run.out.strip() == "[]", run.text
