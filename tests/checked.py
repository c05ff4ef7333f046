"""A small case of a kernel, and what a check of it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.running.check import CheckedCase, check_case
from tests.builders import a_bench

ROWS, COLUMNS = 24, 64


def reference(x: Tensor, w: Tensor) -> Tensor:
    return (x.double() * w.double()).tanh()


def honest(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).tanh()


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)


def case_of(function: Callable[..., Any], **changes: Any) -> Case:
    given: dict[str, Any] = {
        "inputs": inputs,
        "reference": reference,
        "dims": {"rows": ROWS, "columns": COLUMNS},
        "weights": (1,),
        "nbytes": 8 * ROWS * COLUMNS,
    }
    return declare("tests/test_it.py::test_it", "memory", function, **(given | changes))


def check(function: Callable[..., Any], **changes: Any) -> CheckedCase:
    """Check a case, in a session that has no baseline where it is the `first`."""
    first = changes.pop("first", False)
    asked = {
        name: changes.pop(name)
        for name in ("freezes", "accuracy", "seed", "bitwise_stable")
        if name in changes
    }
    case = case_of(function, **changes)
    bench = a_bench(case, **asked)
    return check_case(case, replace(bench, expected=None) if first else bench)


def names(report: CheckedCase) -> set[str]:
    return {found.check for found in report.findings if found.rejects}
