"""NaN as an answer: `nan="equal"`, or NaN among the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import declare
from pytest_kopt.cases.running.against_reference import judge
from pytest_kopt.cases.running.execution import CandidateFunction, make_inputs
from pytest_kopt.cases.running.reference import Reference, observed
from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.compare import InvalidReference
from pytest_kopt.numerics.nested import fresh_copies

HOLE = torch.tensor([1.0, torch.nan, -2.0, 3.0])


def judged(
    function: Callable[..., Any], reference: Callable[..., Any], inputs: Tensor, **declared: Any
) -> list[tuple[bool, str]]:
    dims = {"n": 4}
    case = declare(
        *("t.py::t", "single", function),
        inputs=lambda: (inputs.clone(),),
        reference=reference,
        dims=dims,
        **declared,
    )
    case = observed(case, 1)
    given = make_inputs(case, 1)
    run = CandidateFunction(case, function)(fresh_copies(given), 1)
    expected = Reference(case)(fresh_copies(given), run.live, 1)
    return [(item.passed, item.reason) for item in judge(case, expected, run.copies)]


def twice(x: Tensor) -> Tensor:
    return 2 * x


def numbers(x: Tensor) -> Tensor:
    return 2 * x.nan_to_num(0.0)


def too_many(x: Tensor) -> Tensor:
    return torch.full_like(x, torch.nan)


def root(x: Tensor) -> Tensor:
    return x.sqrt()


def magnitude(x: Tensor) -> Tensor:
    return x.abs().sqrt()


NEGATIVE = torch.tensor([1.0, -1.0, 4.0, 9.0])


@pytest.mark.parametrize(
    ("function", "reference", "inputs", "declared", "passed", "said"),
    [
        (twice, twice, HOLE, {}, True, "within"),
        (numbers, twice, HOLE, {}, False, "has no NaN at 1 places"),
        (too_many, twice, HOLE, {}, False, "has 3 NaN or Inf"),
        (root, root, NEGATIVE, {"nan": "equal"}, True, "within"),
        (magnitude, root, NEGATIVE, {"nan": "equal"}, False, "has no NaN at 1 places"),
        (lambda x: x[:2].sqrt(), root, NEGATIVE, {"nan": "equal"}, False, "has shape (2,)"),
    ],
)
def test_nan_belongs_where_the_reference_has_it(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Tensor,
    declared: dict[str, Any],
    passed: bool,
    said: str,
) -> None:
    ((found, reason),) = judged(function, reference, inputs, **declared)
    assert found is passed and said in reason


def test_nan_that_nobody_declared_is_a_mistake() -> None:
    with pytest.raises(InvalidReference, match='nan="equal" in the case'):
        judged(root, root, NEGATIVE)
    with pytest.raises(BadInput, match=r"nan is 'any'.*'equal'"):
        judged(root, root, NEGATIVE, nan="any")
