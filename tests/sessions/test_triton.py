"""A Triton kernel on a machine without a GPU: checked in Triton's interpreter, never judged."""

from __future__ import annotations

import re

import pytest

from .project import CAMPAIGN, KERNEL, TWO_WORKERS, Project
from .sources import SETTINGS

pytest.importorskip("triton")

ADDED = """\
import torch
import triton
import triton.language as tl


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, inside) + {factor} * tl.load(y + at, inside)
    tl.store(out + at, total, inside)


def added(x, y):
    out = torch.empty_like(x)
    _add[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
    return out
"""

ADDED_CASES = """\
import pytest
import torch
from kernels.doubled import added


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("n", [16, 24])
def test_added(kopt, n):
    kopt(
        added,
        inputs=lambda: (torch.randn(n), torch.randn(n)),
        reference=lambda x, y: x.double() + y.double(),
        dims={"n": n},
        nbytes=12 * n,
    )
"""

MEANINGLESS = re.compile(r"interpreter.*mean(ingless|s? nothing)", re.IGNORECASE)


def test_rounds_in_the_interpreter_check_but_never_decide(empty: Project) -> None:
    """Nobody has to set anything up, and no clear gain or loss there counts for anything."""
    empty.write("pyproject.toml", SETTINGS)
    empty.write(KERNEL, ADDED.format(factor=1))
    empty.write("tests/test_added.py", ADDED_CASES)
    empty.write(".gitignore", "__pycache__/\n")
    empty.commit_all()
    words = ("--op", "added", "--kernel", KERNEL, "--gpu", "cpu", "--backend")
    run = empty.kopt("init", CAMPAIGN, *words, "TRITON")
    assert run.code == 4 and "exit code 11" in run.text, run.text
    run = empty.kopt("init", CAMPAIGN, *words, "TORCH")
    assert run.code == 0, run.text

    run = empty.round(1)
    assert run.code == 0, run.text
    assert MEANINGLESS.search(run.out)
    results = empty.evidence(1)["results"]
    assert [(result["check"], result["evidence"]["engine"]) for result in results] == [
        ("PASS", "interpreter")
    ] * 2
    told = (empty.campaign / "baseline.md").read_text().partition("## Roofline")[2]
    assert MEANINGLESS.search(told), told

    changed = ADDED.format(factor=1) + "VERSION = 2\n"
    empty.write(KERNEL, changed)
    head = empty.head()
    run = empty.round(2, *TWO_WORKERS)
    assert run.code == 11, run.text
    assert MEANINGLESS.search(run.out)
    verdict = empty.verdict(2)
    assert verdict["decision"] == "INCOMPLETE" and "nterpreter" in verdict["reason"]
    assert empty.read(KERNEL) == changed and empty.head() == head

    empty.write(KERNEL, ADDED.format(factor=2))
    run = empty.round(2)
    assert run.code == 1, run.text
    assert empty.verdict(2)["decision"] == "REPAIR", "a wrong result is wrong anywhere"


OTHERS = """\
import os


def test_environment():
    assert "TRITON_INTERPRET" not in os.environ
"""


def test_a_run_that_does_not_use_kopt_keeps_its_triton(empty: Project) -> None:
    empty.write("tests/test_others.py", OTHERS)
    run = empty.pytest()
    assert run.code == 0, run.text
