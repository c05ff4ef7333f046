"""The determinism and the multi-GPU suite: skipped, or run alone on request."""

from __future__ import annotations

import re

import pytest

from .project import TWO_WORKERS, Project
from .sources import SETTINGS

SUITES = """\
import pytest


@pytest.mark.deterministic
def test_bits(kopt):
    pass


@pytest.mark.multigpu
def test_ring(kopt):
    pass


def test_plain(kopt):
    pass
"""
#: What a project has of its own: other tests, with markers of the same names.
FOREIGN = """

@pytest.mark.deterministic
def test_own_bits():
    pass


@pytest.mark.multigpu
def test_own_ring():
    pass


def test_own():
    pass
"""


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ((), "test_plain"),
        (("--kopt-deterministic-only",), "test_bits"),
        (("--kopt-dist-only",), "test_ring"),
        (("--kopt-deterministic-only", *TWO_WORKERS), "test_bits"),
        (("--kopt-dist-only", *TWO_WORKERS), None),
    ],
    ids=["standard", "deterministic", "multigpu", "deterministic-n2", "multigpu-n2"],
)
def test_special_suites_run_alone_and_on_request(
    empty: Project, words: tuple[str, ...], runs: str | None
) -> None:
    """Multi-GPU tests are skipped under xdist even when they are asked for."""
    empty.write("pyproject.toml", SETTINGS)
    empty.write("tests/test_suites.py", SUITES)
    run = empty.pytest("-v", "-rs", "--strict-markers", *words)
    assert run.code == 0, run.text
    passed = set(re.findall(r"::(test_\w+) PASSED|PASSED tests/test_suites.py::(\w+)", run.out))
    assert {name for pair in passed for name in pair if name} == ({runs} if runs else set())
    assert f"{3 - bool(runs)} skipped" in run.out


def test_a_suite_is_of_the_tests_that_use_kopt(empty: Project, mode: tuple[str, ...]) -> None:
    """Those of the project's own run whether a suite is asked for or not."""
    empty.write("tests/test_suites.py", SUITES + FOREIGN)
    for words in ((), ("--kopt-deterministic-only",)):
        run = empty.pytest(*words, *mode)
        assert run.code == 0 and "4 passed, 2 skipped" in run.out, run.text


def test_markers_of_a_project_without_a_case_are_not_known(empty: Project) -> None:
    """With `--strict-markers` a project hears of markers that it forgot to register."""
    empty.write("tests/test_own.py", "import pytest\n" + FOREIGN)
    run = empty.pytest("--strict-markers")
    assert run.code == 2 and "'deterministic' not found in `markers`" in run.out, run.text
    assert "3 passed" in empty.pytest().out


def test_a_skipped_suite_says_how_to_run_it(empty: Project) -> None:
    empty.write("tests/test_suites.py", SUITES)
    run = empty.pytest("-rs")
    assert "--kopt-deterministic-only" in run.out and "--kopt-dist-only" in run.out


def test_both_special_suites_at_once_are_refused(empty: Project, mode: tuple[str, ...]) -> None:
    empty.write("tests/test_suites.py", SUITES)
    run = empty.pytest("--kopt-deterministic-only", "--kopt-dist-only", *mode)
    assert run.code == 4
    assert "--kopt-deterministic-only and --kopt-dist-only" in run.refusal
    assert "passed" not in run.out
