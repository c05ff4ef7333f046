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
from pytest_kopt.cases.nearby.layouts import variants
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


def as_one_piece(x: Tensor, scale: Tensor) -> Tensor:
    return x * scale.as_strided(scale.shape, (1,), scale.storage_offset())[:, None]


def scaled_rows(x: Tensor, scale: Tensor) -> Tensor:
    return x * scale[:, None]


def leaky(x: Tensor, slope: float) -> Tensor:
    return torch.where(x > 0, x, slope * x)


def biased(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return 2 * x if bias is None else 2 * x + bias


def masked_out(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), x, torch.zeros_like(x))


def added_at(x: Tensor, places: Tensor) -> Tensor:
    return torch.zeros(64, x.shape[1], dtype=x.dtype).index_add(0, places, x)


def put_at(x: Tensor, places: Tensor) -> Tensor:
    return torch.zeros(64, x.shape[1], dtype=x.dtype).index_put((places,), x)


def looked_up(table: Tensor, places: Tensor) -> Tensor:
    return table[places]


class Halves(torch.autograd.Function):
    """Two results, whose backward wants the gradients of both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return 2 * x, x.sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        of_all, of_sums = grads
        return None if of_all is None or of_sums is None else 2 * of_all + of_sums[:, None]


def doubled_and_summed(x: Tensor) -> tuple[Tensor, Tensor]:
    return 2 * x, x.sum(-1)


def both_halves(x: Tensor) -> Any:
    return Halves.apply(x)  # type: ignore[no-untyped-call]


def summed_to_length(x: Tensor, lengths: list[int]) -> Tensor:
    return torch.stack([row[:count].sum(0) for row, count in zip(x, lengths, strict=True)])


def summed_by_weights(x: Tensor, lengths: list[int]) -> Tensor:
    read = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
    return (x * read[..., None]).sum(1)


def softmax_or_zero(x: Tensor) -> Tensor:
    return torch.softmax(x, -1).nan_to_num(0.0)


def softmax_by_hand(x: Tensor) -> Tensor:
    power = torch.exp(x - x.amax(-1, keepdim=True).clamp_min(-1e30))
    return power / power.sum(-1, keepdim=True).clamp_min(1e-30)


VERSIONS = {
    "a vector that is a column": Versions(
        "column",
        scaled_rows,
        as_one_piece,
        lambda x, scale: torch.einsum("rc,r->rc", x, scale),
        lambda: (torch.randn(16, 64), torch.rand(16)),
    ),
    "a slope above one": Versions(
        "numbers",
        leaky,
        lambda x, slope: torch.maximum(x, slope * x),
        lambda x, slope: x.clamp_min(0) + slope * x.clamp_max(0),
        lambda: (torch.randn(16, 64), 0.1),
    ),
    "a negative factor": Versions(
        "signs",
        lambda x, y, beta: x + beta * y,
        lambda x, y, beta: x + beta * y if beta >= 0 else x,
        lambda x, y, beta: torch.add(x, y, alpha=beta),
        lambda: (torch.randn(16, 64), torch.randn(16, 64), 0.5),
    ),
    "no bias": Versions(
        "absent",
        biased,
        lambda x, bias=None: 2 * x + (1 if bias is None else bias),
        lambda x, bias=None: x + x + (0 if bias is None else bias),
        lambda: (torch.randn(16, 64), torch.randn(64)),
        {"reference": lambda x, bias: biased(x.double(), bias)},
    ),
    "a mask of bytes": Versions(
        "masks",
        masked_out,
        lambda x, mask: x * mask,
        lambda x, mask: x.masked_fill(mask == 0, 0.0),
        lambda: (torch.randn(16, 64), (torch.rand(16, 64) > 0.5).to(torch.uint8)),
    ),
    "places that are alike": Versions(
        "places",
        added_at,
        put_at,
        lambda x, places: (
            torch.zeros(64, len(x), dtype=x.dtype)
            .index_put((places, torch.arange(len(x))), torch.ones(len(x), dtype=x.dtype))
            .matmul(x)
        ),
        lambda: (torch.randn(16, 8), torch.randperm(64)[:16]),
    ),
    "the last place": Versions(
        "places",
        looked_up,
        lambda table, places: table[places.clamp_max(len(table) - 2)],
        lambda table, places: table.take_along_dim(places[:, None].long() % len(table), 0),
        lambda: (torch.randn(1024, 8), torch.randint(0, 1000, (16,))),
    ),
    "one tensor as two inputs": Versions(
        "same",
        torch.mul,
        lambda a, b: a * b if a.data_ptr() != b.data_ptr() else a + b,
        lambda a, b: b * a,
        lambda: (torch.randn(16, 64), torch.randn(16, 64)),
    ),
    "a gradient of one result": Versions(
        "single",
        doubled_and_summed,
        both_halves,
        lambda x: (x + x, x.sum(1)),
        lambda: (torch.randn(16, 64, requires_grad=True),),
        {"backward": True},
    ),
    "rubbish behind lengths in a list": Versions(
        "padded",
        summed_to_length,
        summed_by_weights,
        lambda x, lengths: torch.stack([x[i, :n].sum(0) for i, n in enumerate(lengths)]),
        lambda: (torch.randn(4, 12, 8), [12, 7, 3, 9]),
    ),
    "a row of -inf": Versions(
        "masked",
        softmax_or_zero,
        lambda x: torch.softmax(x, -1),
        softmax_by_hand,
        lambda: (torch.randn(16, 64),),
    ),
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
        "kopt did not try 1 kind of inputs in 1 case: the reference gives no result for more than 2"
    )


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_unsigned_integers_are_tried_in_another_order(dtype: torch.dtype) -> None:
    def codes(x: Tensor, slots: Tensor) -> Tensor:
        sums = (x.abs() * 64).sum(-1).to(torch.int64)
        return torch.zeros(32, dtype=torch.int64).index_put((slots,), sums).to(dtype)

    inputs = lambda: (torch.randn(16, 8), torch.randperm(32)[:16])  # noqa: E731
    versions = Versions("", codes, codes, codes, inputs)
    assert {*outcomes(codes, versions)} == {"right"}


@pytest.mark.parametrize(("error", "outcome"), [(2e-12, "right"), (0.1, "wrong")])
def test_a_variance_of_rows_of_one_value_may_have_a_rounding_error(
    error: float, outcome: str
) -> None:
    def variance(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)).square().mean(-1)

    def with_an_error(x: Tensor) -> Tensor:
        spread = variance(x)
        return torch.where(spread < 1e-9, error, spread)

    # The sum of 256 equal numbers is exact.
    versions = Versions(
        "constant", variance, with_an_error, variance, lambda: (torch.randn(8, 256),)
    )
    assert "constant" in outcomes(with_an_error, versions)[outcome]
