"""A process that takes longer than it may ends itself and shows its stacks; waiting is free."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, time
from pytest_kopt.processes.limit import TimeLimit

limit = TimeLimit(0.5, 2)


def work(seconds):
    time.sleep(seconds)


with limit.waiting():
    pass
with limit.watching():
{body}
work(1.0)
"""


@pytest.mark.parametrize(
    ("body", "survives"),
    [
        ("    work(0.05)", True),
        ("    work(30)", False),
        ("    while True: pass", False),
        ("    with limit.waiting(): work(1.0)", True),
        ("    with limit.waiting(): work(1.0)\n    work(30)", False),
        ("    work(0.3)\n    with limit.waiting(): work(0.5)\n    work(0.4)", False),
        ("    with limit.waiting(): work(0.3)\n    work(0.3)", True),
    ],
)
def test_only_a_process_s_own_time_counts(body: str, survives: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if survives:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 1
        assert done.stderr.startswith("Timeout (") and "most recent call first" in done.stderr


def test_an_exception_ends_the_watch() -> None:
    body = "    raise SystemExit(7)"
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(body=body)], check=False)
    assert done.returncode == 7
