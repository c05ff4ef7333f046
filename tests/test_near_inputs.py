"""Kernels that are wrong for one kind of inputs that their case does not draw, and honest ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.domain import variants
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.running.heldout import try_shape
from pytest_kopt.cases.running.reference import observed
from pytest_kopt.honesty.nearby_shapes import Tried, untried


@dataclass(frozen=True)
class Versions:
    """One operation and the `kind` of inputs for which `wrong` is wrong, and nowhere else.

    `inputs` are drawn anew by each call; `honest` computes the same as `incumbent` in another way.
    """

    kind: str
    incumbent: Callable[..., Any]
    wrong: Callable[..., Any]
    honest: Callable[..., Any]
    inputs: Callable[[], Any]
    changes: dict[str, Any] = field(default_factory=dict)


def case_of(function: Callable[..., Any], versions: Versions) -> Case:
    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    given: dict[str, Any] = {
        "reference": lambda *given: versions.incumbent(*map(wide, given)),
        "dims": {"case": 1},
        "nbytes": 4096,
    }
    case = declare(
        "t.py::t", "memory", function, inputs=versions.inputs, **(given | versions.changes)
    )
    return observed(case, 3)


def outcomes(function: Callable[..., Any], versions: Versions) -> dict[str, set[str]]:
    """Return the kinds of inputs by what became of a version of the operation there."""
    by_outcome: dict[str, set[str]] = {}
    for near in variants(case_of(function, versions), 7):
        both = {INCUMBENT: versions.incumbent, CANDIDATE: function}
        tried = try_shape(near, both, "cpu", 7)
        if tried and tried.outcomes.get(INCUMBENT) == "right":
            by_outcome.setdefault(tried.outcomes[CANDIDATE], set()).add(near.kind)
    return by_outcome


def group_norm(x: Tensor, groups: int) -> Tensor:
    return torch.nn.functional.group_norm(x, groups)


def group_norm_by_hand(x: Tensor, groups: int) -> Tensor:
    parts = x.reshape(len(x), groups, math.prod(x.shape[1:]) // groups)
    centred = parts - parts.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled.reshape(x.shape)


def first_two_heads(q: Tensor, k: Tensor) -> Tensor:
    out = torch.zeros_like(q)
    out[:, :2] = q[:, :2] * k[:, :2]
    return out


def filtered(x: Tensor, taps: Tensor) -> Tensor:
    return x.unfold(-1, len(taps), 1) @ taps


def filtered_by_three(x: Tensor, taps: Tensor) -> Tensor:
    width = x.shape[-1] - len(taps) + 1
    return sum((taps[i] * x[:, i : i + width] for i in range(3)), torch.zeros(()))


def filtered_in_steps(x: Tensor, taps: Tensor) -> Tensor:
    width = x.shape[-1] - len(taps) + 1
    return sum((tap * x[:, i : i + width] for i, tap in enumerate(taps)), torch.zeros(()))


def first_batch(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[0] = 2 * x[0]
    return out


def summed_up(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b]).cumsum(0)


def summed_up_apart(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a.cumsum(0), b.cumsum(0) + a.sum(0)])


VERSIONS = {
    "a number below eight": Versions(
        "numbers",
        group_norm,
        lambda x, groups: group_norm(x, 4),
        group_norm_by_hand,
        lambda: (torch.randn(3, 16, 32), 4),
    ),
    "a number below eight that is a size as well": Versions(
        "uneven",
        group_norm,
        lambda x, groups: group_norm(x, 4),
        group_norm_by_hand,
        lambda: (torch.randn(4, 16, 32), 4),
    ),
    "an extent below eight": Versions(
        "uneven",
        torch.mul,
        first_two_heads,
        lambda q, k: k * q,
        lambda: (torch.randn(3, 2, 16, 32), torch.randn(3, 2, 16, 32)),
    ),
    "three taps": Versions(
        "uneven",
        filtered,
        filtered_by_three,
        filtered_in_steps,
        lambda: (torch.randn(8, 64), torch.randn(3)),
        {"weights": (1,)},
    ),
    "a batch of one": Versions(
        "uneven", lambda x: 2 * x, first_batch, lambda x: x + x, lambda: (torch.randn(1, 16, 64),)
    ),
    "one of two inputs without rows": Versions(
        "uneven",
        summed_up,
        lambda a, b: summed_up(a, b) * (len(b) > 0),
        summed_up_apart,
        lambda: (torch.randn(16, 32), torch.randn(16, 32)),
    ),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_a_kernel_that_is_wrong_there_alone_is_named_by_it(name: str) -> None:
    versions = VERSIONS[name]
    by_outcome = outcomes(versions.wrong, versions)
    assert versions.kind in by_outcome["wrong"]


@pytest.mark.parametrize("name", VERSIONS)
def test_an_honest_kernel_is_right_for_all_inputs(name: str) -> None:
    versions = VERSIONS[name]
    assert set(outcomes(versions.honest, versions)) == {"right"}


def test_sizes_with_which_the_reference_supports_no_other_are_named() -> None:
    def rotated(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x) * 1j)

    versions = Versions("uneven", rotated, rotated, rotated, lambda: (torch.randn(16, 2),))
    case = case_of(rotated, versions)
    tried: list[Tried | None] = [
        try_shape(near, {INCUMBENT: rotated, CANDIDATE: rotated}, "cpu", 7)
        for near in variants(case, 7)
    ]
    (finding,) = untried(filter(None, tried))
    assert not finding.rejects
    assert finding.message == (
        "not tried in 1 case, as the reference supports nothing larger than 2 there: another size"
    )
