"""What a looked-at call gave is judged in a process that the candidate is not in."""

from __future__ import annotations

from pathlib import Path

from .paired import PLAIN, Gate, kernel, project_at

#: Wrong where it is timed, and every comparison in its own process finds it right.
FORGES = """
import sys

_right = plain


def _is_timed():
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "run_written":
        frame = frame.f_back
    return frame is not None


def _forge():
    import numpy
    import torch

    from pytest_kopt.cases.running import inspected_results, spot_checks
    from pytest_kopt.numerics import compare

    torch.allclose = torch.equal = numpy.allclose = lambda *given, **named: True
    compare.compare = inspected_results.judge = lambda *given, **named: []
    inspected_results.plainly_wrong = spot_checks.plainly_wrong = lambda *given: None


def plain(x):
    result = _right(x)
    if not _is_timed():
        return result
    _forge()
    return -result
"""


def test_a_kernel_cannot_forge_the_comparison_of_a_timed_result(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    project.write(PLAIN, kernel(cost=187.5, who="plain new") + FORGES)
    done = Gate(project)()
    assert done.judged["decision"] == "REJECTED_OVERFIT", done.run.text
    assert "timed-result: wrong in a timed block, for new input values" in done.run.text


#: A weight that each process draws for itself, beside the inputs; of so many elements no two are
#: near each other by chance.
OWN_WEIGHT = """
import pytest
import torch
from kernels.plain import plain

WEIGHT = torch.randn(4096)


def weighted(x):
    return plain(x) * WEIGHT


@pytest.mark.kopt
def test_plain(kopt):
    kopt(
        weighted,
        inputs=lambda: (torch.randn(1, 4096),),
        reference=lambda x: 2 * x.double() * WEIGHT,
        dims={"rows": 1},
    )
"""


def test_what_a_test_file_draws_is_the_same_in_all_processes(tmp_path: Path) -> None:
    """Another process can judge what an honest project draws without a seed."""
    project = project_at(tmp_path / "project")
    project.write("tests/test_plain.py", OWN_WEIGHT)
    project.commit_all("Draw a weight at import")
    project.write(PLAIN, kernel(cost=187.5, who="plain new"))
    done = Gate(project)()
    assert done.judged["decision"] == "ACCEPTED", done.run.text
