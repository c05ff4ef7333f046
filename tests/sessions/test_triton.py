"""A Triton kernel on a machine without a GPU: checked in Triton's interpreter, never judged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .paired import OLD, PLAIN, SAME, SLOWER, Gate, kernel, project_at
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

MEANINGLESS = re.compile(
    r"interpreter.*(mean(ingless|s? nothing)|do not count|cannot compare)", re.IGNORECASE
)


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


LAZY = """\


from pathlib import Path

from clock import spend

_by_value = added


def added(x, y):
    from importlib import import_module

    spend(1.0, "added")
    Path(__file__).with_name("factor.json").read_text()
    return import_module("kernels.late").same(_by_value(x, y))
"""


def gate_at(root: Path) -> Gate:
    """Return the gate of a project with a case of torch's and two in Triton's interpreter."""
    project = project_at(root)
    project.write("kernels/doubled.py", ADDED.format(factor=1) + LAZY)
    project.write("kernels/late.py", "def same(x):\n    return x\n")
    project.write("kernels/factor.json", "1")
    project.write("tests/test_added.py", ADDED_CASES)
    project.commit_all("The base")
    return Gate(project)


def test_an_interpreted_case_that_a_change_does_not_reach_stops_no_gate(tmp_path: Path) -> None:
    gate = gate_at(tmp_path / "project")
    gate.project.write(PLAIN, kernel(SLOWER, "new"))
    done = gate()
    assert done.run.code == 8, done.run.text
    shapes = {str(shape["nodeid"]).partition("::")[2]: shape for shape in done.judged["shapes"]}
    assert shapes["test_plain"]["change_pct"] == pytest.approx(100 * (OLD / SLOWER - 1))
    assert shapes["test_added[16]"]["same"] == "source", shapes


LATE = ("kernels/late.py", "def same(x):\n    return 1 * x\n")
READ = ("kernels/factor.json", "2")
CONFTEST = "tests/conftest.py"


@pytest.mark.parametrize(
    ("path", "content", "also"),
    [
        (*LATE, CONFTEST),
        pytest.param(*READ, "", marks=pytest.mark.long),
        pytest.param(*LATE, "", marks=pytest.mark.long),
        pytest.param(*READ, CONFTEST, marks=pytest.mark.long),
    ],
    ids=["late, conftest", "read", "late", "read, conftest"],
)
def test_interpreted_cases_that_a_change_reaches_are_named(
    tmp_path: Path, path: str, content: str, also: str
) -> None:
    """By an import while the call runs, or by a file that the kernel opens."""
    gate = gate_at(tmp_path / "project")
    gate.project.write(PLAIN, kernel(SAME, "new"))
    if also:
        gate.project.write(also, "MORE = 1\n")
    gate.project.write(path, content)
    done = gate()
    assert done.run.code == 11, done.run.text
    assert done.judged["decision"] == "INCOMPLETE"
    assert "2 case(s) not judged, tests/test_added.py::test_added[16]" in done.judged["reason"]
    shapes = {str(shape["nodeid"]).partition("::")[2]: shape for shape in done.judged["shapes"]}
    assert shapes["test_plain"]["change_pct"] is not None
    assert shapes["test_added[16]"]["same"] is None, shapes


OTHERS = """\
import os


def test_environment():
    assert "TRITON_INTERPRET" not in os.environ
"""


def test_a_run_that_does_not_use_kopt_keeps_its_triton(empty: Project) -> None:
    empty.write("tests/test_others.py", OTHERS)
    run = empty.pytest()
    assert run.code == 0, run.text
