"""A row's result in one batch and in another: `batch_invariant=True`."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.errors import BadInput
from tests.checked import check
from tests.corpus.through_plugin import HERE
from tests.sessions.project import Project

CASES = """\
import pytest
from ops import OPS
from rmsnorm__split_by_width import rmsnorm as by_width
from rmsnorm__split_when_few import rmsnorm as when_few

OP = OPS["rmsnorm"]


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize(
    "kernel, declared", [(when_few, True), (when_few, False), (by_width, True), (by_width, False)]
)
def test_rmsnorm(kopt, kernel, declared):
    dims = OP.shapes[0]
    kopt(
        kernel,
        inputs=lambda: OP.make_inputs(dims, kopt.device),
        reference=OP.reference,
        dims={**dims, "kernel": kernel.__module__, "declared": int(declared)},
        weights=OP.weights,
        nbytes=OP.nbytes(dims),
        batch_invariant=declared,
    )
"""


def reference(x: Tensor, w: Tensor) -> Tensor:
    return x.double() @ w.double()


def row_by_row(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([(row[:, None] * w).sum(0) for row in x])


def split_when_few(x: Tensor, w: Tensor) -> Tensor:
    """Split K in two for small batches, as a GEMM does that has too few tiles."""
    if len(x) > 8:
        return row_by_row(x, w)
    half = x.shape[1] // 2 + 1
    return row_by_row(x[:, half:], w[half:]) + row_by_row(x[:, :half], w[:half])


def last_row_apart(x: Tensor, w: Tensor) -> Tensor:
    out = row_by_row(x, w)
    out[-1] = split_when_few(x[-1:], w)[0]
    return out


def pairs_of_rows(x: Tensor, w: Tensor) -> Tensor:
    if len(x) % 2:
        raise ValueError("an even number of rows")
    return row_by_row(x, w)


def checked(kernel: Callable[..., Any], **declared: Any) -> Any:
    return check(
        kernel,
        inputs=lambda: (torch.randn(24, 96), torch.randn(96, 24)),
        reference=reference,
        **({"batch_invariant": True, "weights": (1,)} | declared),
    )


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (row_by_row, None),
        (split_when_few, r"out has other bits in 1 rows for row 0 alone, of a batch of 24"),
        (last_row_apart, r"for (the first 12|row 0 alone|the rows in another place),"),
        (pairs_of_rows, r"raises ValueError for row 0 alone"),
    ],
)
def test_rows_depend_on_no_other_rows(kernel: Callable[..., Any], message: str | None) -> None:
    report = checked(kernel)
    assert report.check == ("FAIL" if message else "PASS")
    assert [finding.check for finding in report.findings] == ["batch-variant"] * bool(message)
    for finding in report.findings:
        assert message and re.search(message, finding.message)
    assert checked(kernel, batch_invariant=False).check == "PASS"


def test_a_baseline_owes_it_too() -> None:
    (finding,) = checked(split_when_few, freezes=True).findings
    assert "a baseline has to be batch-invariant too" in finding.message


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"weights": (0, 1)}, "every tensor of inputs\\(\\) is a weight"),
        ({"weights": (0,)}, "no result has the batch of 96 rows"),
        ({"batch_invariant": 1}, "batch_invariant is 1"),
    ],
)
def test_without_a_batch_it_cannot_be_asked_for(declared: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        checked(row_by_row, **declared)


def test_a_split_by_the_number_of_rows_fails_where_it_is_declared_only(tmp_path: Path) -> None:
    """Kernels of the corpus in a session; in rounds they are in `test_honesty_corpus.py`."""
    project = Project(tmp_path)
    project.write("ops.py", (HERE / "ops.py").read_text())
    for name in ("rmsnorm__split_when_few", "rmsnorm__split_by_width"):
        project.write(f"{name}.py", (HERE / f"honest/{name}.py").read_text())
    project.write("test_rmsnorm.py", CASES)
    run = project.pytest("-p", "no:cacheprovider", "--kopt-check-only", "--summary-csv", "rows.csv")
    assert run.code == 1, run.text
    rows = [*csv.DictReader(project.read("rows.csv").splitlines())]
    assert [row["Check"] for row in rows] == ["FAIL", "PASS", "PASS", "PASS"], run.text
    assert run.text.count("batch-variant: not batch-invariant: out has other bits in") == 1
