"""Kernels that are wrong for inputs that their case does not draw, and honest ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.nearby.near_inputs import TRANSFORMATIONS, variants
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.running.heldout import try_variant
from pytest_kopt.cases.running.reference import observed
from pytest_kopt.honesty.nearby_shapes import AXES, Kind, Tried, held_out_findings
from pytest_kopt.numerics.gates import snr

Function = Callable[..., Any]


@dataclass(frozen=True)
class Versions:
    """One operation and the `kind` of inputs for which `wrong` is wrong.

    `inputs` are drawn anew by each call; `honest` computes the same as `incumbent` in another way.
    """

    kind: str
    incumbent: Function
    wrong: Function
    honest: Function
    inputs: Callable[[], Any]
    changes: dict[str, Any] = field(default_factory=dict)


def case_of(function: Function, versions: Versions, **changes: Any) -> Case:
    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    declared: dict[str, Any] = {
        "inputs": versions.inputs,
        "reference": lambda *inputs: versions.incumbent(*map(wide, inputs)),
        "dims": {"case": 1},
        "nbytes": 4096,
    }
    case = declare("t.py::t", "memory", function, **(declared | versions.changes | changes))
    return observed(case, 3)


def trials_of(
    function: Function, versions: Versions, *, only: Kind | None = None, **changes: Any
) -> list[Tried]:
    """Return what becomes of a version of the operation where the incumbent is right."""
    both = {INCUMBENT: versions.incumbent, CANDIDATE: function}
    near = variants(case_of(function, versions, **changes), 7)
    wanted = [v for v in near if not v.untried and only in (None, v.kind)]
    trials = [try_variant(variant, both, "cpu", 7) for variant in wanted]
    return [trial for trial in trials if trial and trial.outcomes.get(INCUMBENT) == "right"]


def leaky(x: Tensor, slope: float) -> Tensor:
    return torch.where(x > 0, x, slope * x)


def normed(x: Tensor, eps: Any) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def group_norm(x: Tensor, groups: int) -> Tensor:
    return torch.nn.functional.group_norm(x, groups)


def group_norm_by_hand(x: Tensor, groups: int) -> Tensor:
    parts = x.reshape(len(x), groups, math.prod(x.shape[1:]) // groups)
    centred = parts - parts.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled.reshape(x.shape)


def biased(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return 2 * x if bias is None else 2 * x + bias


def masked_out(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), x, torch.zeros_like(x))


def softmax_or_zero(x: Tensor) -> Tensor:
    return torch.softmax(x, -1).nan_to_num(0.0)


def softmax_by_hand(x: Tensor) -> Tensor:
    power = torch.exp(x - x.amax(-1, keepdim=True).clamp_min(-1e30))
    return power / power.sum(-1, keepdim=True).clamp_min(1e-30)


def over_kept(x: Tensor, keep: Tensor) -> Tensor:
    return x.masked_fill(~keep, -torch.inf).softmax(-1)


def summed_to_length(x: Tensor, lengths: list[int]) -> Tensor:
    return torch.stack([row[:count].sum(0) for row, count in zip(x, lengths, strict=True)])


def summed_by_weights(x: Tensor, lengths: list[int]) -> Tensor:
    read = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
    return (x * read[..., None]).sum(1)


def last_token(values: Tensor, lengths: Tensor) -> Tensor:
    rows = values[torch.arange(len(values)), lengths.clamp_min(1) - 1]
    return rows * (lengths > 0)[:, None]


def pooled(values: Tensor, offsets: Tensor) -> Tensor:
    parts = [values[a:b] for a, b in itertools.pairwise(offsets.tolist())]
    return torch.stack([part.sum(0) / max(len(part), 1) for part in parts])


def pooled_by_sums(values: Tensor, offsets: Tensor) -> Tensor:
    total = torch.nn.functional.pad(values.double().cumsum(0), (0, 0, 1, 0))[offsets]
    return (total.diff(dim=0) / offsets.diff()[:, None]).to(values.dtype)


def best(x: Tensor) -> tuple[Tensor, Tensor]:
    top = x.topk(4, -1)
    return top.values, top.indices


def by_tiles(x: Tensor) -> tuple[Tensor, Tensor]:
    values, place = x.view(len(x), -1, 4).max(-1)
    top, tile = values.topk(2, -1)
    return top, 4 * tile + place.gather(-1, tile)


def standardised(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def by_squares(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def product_in_fp8(a: Tensor, b: Tensor) -> Tensor:
    return a.to(torch.float8_e4m3fn).float() @ b.to(torch.float8_e4m3fn).float()


def attend(q: Tensor, k: Tensor, v: Tensor, after: int | None = None) -> Tensor:
    first = k.shape[-2] - q.shape[-2] if after is None else after
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(first)
    scores = (q @ k.transpose(-1, -2)).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v


def in_memory_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Read a tensor's memory as that of a dtype, as what is handed an address does."""
    memory = torch.empty(0, dtype=dtype).set_(x.untyped_storage())
    return memory[: x.numel()].view(x.shape)


def by_stride_of_first(x: Tensor, y: Tensor) -> Tensor:
    return x + y.as_strided(y.shape, x.stride(), y.storage_offset())


def by_rows_or_columns(x: Tensor, y: Tensor) -> Tensor:
    """Tell a transposed matrix by its last stride, as what calls a BLAS does."""
    pitch = y.stride(1)
    return x + (y if pitch == 1 else y.as_strided(y.shape, (1, pitch), y.storage_offset()))


def from_the_beginning(x: Tensor, y: Tensor) -> Tensor:
    y = y.contiguous()
    return x + y.as_strided(y.shape, y.stride(), 0)


def scaled_into(x: Tensor, out: Tensor) -> Tensor:
    return out.copy_(x / x.abs().sum(-1, keepdim=True))


def scaled_in_steps(x: Tensor, out: Tensor) -> Tensor:
    out.copy_(x)
    return out.div_(x.abs().sum(-1, keepdim=True) if out is not x else x.sum(-1, keepdim=True))


class Scaled(torch.autograd.Function):
    """A product of two tensors, with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class Forgetful(Scaled):
    """Keeps what the weight's gradient needs only where the input has one, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x if x.requires_grad else torch.ones_like(x), w)
        return x * w


class Joint(torch.autograd.Function):
    """A product of three tensors, whose backward leaves out a lone gradient's last factor."""

    @staticmethod
    def forward(ctx: Any, *factors: Tensor) -> Tensor:
        ctx.save_for_backward(*factors)
        return math.prod(factors[1:], start=factors[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y, z = ctx.saved_tensors
        z = z if sum(ctx.needs_input_grad) > 1 else 1
        return grad * y * z, grad * x * z, grad * x * y


class InPlace(Scaled):
    """Writes its gradient over what it has saved."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        of_w = (grad * x.detach()).sum(0)
        ctx.saved = getattr(ctx, "saved", w.detach().clone())
        result = grad * ctx.saved
        ctx.saved.zero_()
        return result, of_w


class SquaresInBackward(torch.autograd.Function):
    """A standardisation whose backward computes the variance anew, in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return standardised(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(by_squares(x), x, grad)


class FlatGradients(Scaled):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.as_strided(grad.shape, (grad.shape[1], 1))
        return Scaled.backward(ctx, grad)


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


def scaled(x: Tensor, w: Tensor) -> Tensor:
    return x * w


def only_without_grad_mode(x: Tensor, w: Tensor) -> Tensor:
    return x * w if torch.is_grad_enabled() else x * 1.0


def by(function: Any) -> Function:
    return lambda *inputs: function.apply(*inputs)


def pair(*rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(*rows), torch.randn(*rows)


def trained() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 64, requires_grad=True), torch.randn(64, requires_grad=True)


BACKWARD = {"backward": True}
GRADIENTS: dict[str, Any] = {"honest": by(Scaled), "inputs": trained, "changes": BACKWARD}

VERSIONS = {
    "the tail of a row": Versions(
        "size",
        lambda x: x.sum(-1),
        lambda x: x[:, : x.shape[1] // 32 * 32].sum(-1),
        lambda x: torch.einsum("rc->r", x),
        lambda: (torch.randn(16, 64),),
    ),
    "no rows": Versions(
        "size",
        lambda x: x.sum(0) / max(len(x), 1),
        lambda x: x.sum(0) / len(x),
        lambda x: x.mean(0) if len(x) else x.sum(0),
        lambda: (torch.randn(16, 64),),
    ),
    "one row": Versions(
        "size",
        lambda x: x.sum(0) / len(x),
        lambda x: x.sum(0) / max(len(x), 2),
        lambda x: x.mean(0),
        lambda: (torch.randn(16, 64),),
    ),
    "rows of sorted segments": Versions(
        "size",
        lambda x, to: x.new_zeros(12, 8).index_add(0, to, x),
        lambda x, to: x.new_zeros(12, 8).index_add(0, to[:40], x[:40]),
        lambda x, to: torch.segment_reduce(x, "sum", lengths=torch.bincount(to, minlength=12)),
        lambda: (torch.randn(40, 8), torch.randint(12, (40,)).sort().values),
        {"domain": "declared order"},
    ),
    "sorted edges": Versions(
        "size",
        lambda x, edges: (x[:, None] >= edges).sum(-1),
        lambda x, edges: (x[:, None] >= edges[:40]).sum(-1),
        lambda x, edges: torch.searchsorted(edges.contiguous(), x.contiguous(), right=True),
        lambda: (torch.randn(64), torch.randn(40).sort().values),
        {"domain": "declared order, declared signs"},
    ),
    "fewer queries than keys": Versions(
        "alone",
        attend,
        lambda q, k, v: attend(q, k, v, 0),
        lambda q, k, v: attend(q[None], k[None], v[None])[0],
        lambda: tuple(torch.randn(3, 2, 16, 8).unbind()),
    ),
    "no maximum": Versions(
        "values",
        lambda x: x.softmax(-1),
        lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        softmax_by_hand,
        lambda: (torch.randn(16, 64),),
    ),
    "a mask that fills with -10000": Versions(
        "values",
        over_kept,
        lambda x, keep: x.masked_fill(~keep, -1e4).softmax(-1),
        lambda x, keep: softmax_by_hand(x.masked_fill(~keep, -torch.inf)),
        lambda: (torch.randn(16, 64), torch.rand(16, 64) > 0.3),
        {"domain": "declared masks, finite"},
    ),
    "squares that cancel": Versions(
        "values",
        standardised,
        by_squares,
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        lambda: (torch.randn(8, 256),),
    ),
    "squares that cancel in a gradient": Versions(
        "values",
        standardised,
        by(SquaresInBackward),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        lambda: (torch.randn(8, 256, requires_grad=True),),
        BACKWARD,
    ),
    "the tail of a sum in fp8": Versions(
        "exact",
        product_in_fp8,
        lambda a, b: product_in_fp8(a[:, :-4], b[:-4]),
        lambda a, b: product_in_fp8(b.T, a.T).T,
        lambda: (torch.randn(16, 2052), torch.randn(2052, 16)),
        {"reference": lambda a, b: a.double() @ b.double(), "gate": snr("e4m3"), "weights": (1,)},
    ),
    "a row of -inf": Versions(
        "infinite",
        softmax_or_zero,
        lambda x: torch.softmax(x, -1),
        softmax_by_hand,
        lambda: (torch.randn(16, 64),),
    ),
    "NaN behind lengths": Versions(
        "unread",
        summed_to_length,
        summed_by_weights,
        lambda x, lengths: torch.stack([x[i, :n].sum(0) for i, n in enumerate(lengths)]),
        lambda: (torch.randn(4, 12, 8), [12, 7, 3, 9]),
    ),
    "negative values": Versions(
        "signs",
        lambda x: x.abs().log1p() * x.sign(),
        torch.log1p,
        lambda x: torch.where(x > 0, x.abs().log1p(), -x.abs().log1p()),
        lambda: (torch.rand(16, 64),),
    ),
    "a negative factor": Versions(
        "signs",
        lambda x, y, beta: x + beta * y,
        lambda x, y, beta: x + beta * y if beta >= 0 else x,
        lambda x, y, beta: torch.add(x, y, alpha=beta),
        lambda: (*pair(16, 64), 0.5),
    ),
    "two factors of one sign": Versions(
        "signs",
        torch.mul,
        lambda x, y: x.abs() * y.abs(),
        lambda x, y: y * x,
        lambda: (torch.rand(16, 64), torch.rand(16, 64)),
    ),
    "places from the end": Versions(
        "signs",
        lambda table, at: table[at],
        lambda table, at: table[at.clamp_min(0)],
        lambda table, at: table[at % len(table)],
        lambda: (torch.randn(500, 16), torch.randint(499, (64,))),
    ),
    "best values that lie in one part": Versions(
        "order",
        lambda x: tuple(x.topk(2, -1)),
        by_tiles,
        lambda x: tuple(part[:, :2] for part in x.sort(-1, descending=True)),
        lambda: (torch.randn(8, 64),),
    ),
    "a maximum that comes last": Versions(
        "order",
        lambda x: x.cummax(-1).values,
        lambda x: x.cummax(-1).values.minimum(x[:, -2:-1]),
        lambda x: torch.stack([x[:, : n + 1].amax(-1) for n in range(x.shape[1])], -1),
        lambda: (torch.randn(8, 64).sort(-1, descending=True).values,),
    ),
    "rows of one place": Versions(
        "ends",
        lambda x, at: x.new_zeros(32, 8).index_add(0, at, x),
        lambda x, at: x.new_zeros(32, 8).index_put((at,), x),
        lambda x, at: x.new_zeros(32, 8).index_put((at,), x, accumulate=True),
        lambda: (torch.randn(16, 8), torch.randperm(32)[:16]),
    ),
    "the last place": Versions(
        "ends",
        lambda table, at: table[at],
        lambda table, at: table[at.clamp_max(len(table) - 2)],
        lambda table, at: table.take_along_dim(at[:, None].long() % len(table), 0),
        lambda: (torch.randn(500, 8), torch.randint(400, (64,))),
    ),
    "an epsilon": Versions(
        "numbers",
        normed,
        lambda x, eps: normed(x, 1e-5),
        lambda x, eps: x / (x.square().mean(-1, keepdim=True) + eps).sqrt(),
        lambda: (torch.randn(8, 64), 1e-5),
    ),
    "a slope above one": Versions(
        "numbers",
        leaky,
        lambda x, slope: torch.maximum(x, slope * x),
        lambda x, slope: x.clamp_min(0) + slope * x.clamp_max(0),
        lambda: (torch.randn(16, 64), 0.1),
    ),
    "a switch": Versions(
        "numbers",
        lambda x, causal: x.tril() if causal else x * 1.0,
        lambda x, causal: x.tril(),
        lambda x, causal: x * torch.ones_like(x).tril(0 if causal else len(x.T)),
        lambda: (torch.randn(16, 64), True),
        {"domain": "finite"},
    ),
    "groups": Versions(
        "numbers",
        group_norm,
        lambda x, groups: group_norm(x, 4),
        group_norm_by_hand,
        lambda: (torch.randn(3, 16, 32), 4),
    ),
    "a far larger number": Versions(
        "numbers",
        lambda x, places: (x * 2**places).round(),
        lambda x, places: (x * 2 ** min(places, 8)).round(),
        lambda x, places: torch.ldexp(x, torch.tensor(places)).round(),
        lambda: (torch.randn(16, 64), 3),
    ),
    "an index that is left out": Versions(
        "numbers",
        lambda x, at, left_out: x[at.clamp_min(0)] * (at != left_out)[:, None],
        lambda x, at, left_out: x[at.clamp_min(0)],
        lambda x, at, left_out: x[at.clamp_min(0)].masked_fill((at == left_out)[:, None], 0),
        lambda: (torch.randn(40, 8), torch.randint(40, (64,)), -100),
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
        {"domain": "finite"},
    ),
    "a bias of -inf": Versions(
        "masks",
        lambda x, bias: (x + bias).softmax(-1).nan_to_num(0.0),
        lambda x, bias: (x + bias.clamp_min(-1e30)).softmax(-1),
        lambda x, bias: softmax_by_hand(x + bias),
        lambda: (
            torch.randn(8, 64),
            torch.zeros(8, 64).masked_fill(torch.rand(8, 64) < 0.3, -torch.inf),
        ),
    ),
    "a length of zero": Versions(
        "counts",
        last_token,
        lambda values, lengths: values[torch.arange(len(values)), lengths - 1],
        lambda values, lengths: (
            values.take_along_dim((lengths.long() - 1).clamp_min(0)[:, None, None], 1)[:, 0]
            * (lengths > 0)[:, None]
        ),
        lambda: (torch.randn(8, 12, 4), torch.randint(1, 12, (8,))),
    ),
    "a length of zero in a column": Versions(
        "counts",
        lambda values, lengths: last_token(values, lengths[:, 0]),
        lambda values, lengths: values[torch.arange(len(values)), lengths[:, 0] - 1],
        lambda values, lengths: last_token(values, lengths.select(1, 0)),
        lambda: (torch.randn(8, 12, 4), torch.randint(1, 12, (8, 1))),
    ),
    "a part without rows": Versions(
        "counts",
        pooled,
        pooled_by_sums,
        lambda values, offsets: torch.stack(
            [
                values[a:b].mean(0) if a < b else 0 * values[0]
                for a, b in itertools.pairwise(offsets.tolist())
            ]
        ),
        lambda: (torch.randn(24, 16), torch.tensor([0, 5, 11, 24])),
    ),
    "a factor of zeros": Versions(
        "filled",
        lambda x, a, b: x @ a + x @ b,
        lambda x, a, b: x @ a,
        lambda x, a, b: x @ (a + b),
        lambda: (torch.randn(4, 8), torch.randn(8, 8), torch.zeros(8, 8)),
        {"weights": (1, 2)},
    ),
    "another row pitch": Versions(
        "layout", torch.add, by_stride_of_first, lambda x, y: y + x, lambda: pair(8, 64)
    ),
    "a storage offset": Versions(
        "layout", torch.add, from_the_beginning, lambda x, y: y + x, lambda: pair(8, 64)
    ),
    "every second column": Versions(
        "layout", torch.add, by_rows_or_columns, lambda x, y: y + x, lambda: pair(8, 64)
    ),
    "channels last": Versions(
        "layout",
        lambda x: x.sum((2, 3)),
        lambda x: x.sum((2, 3)) if x.stride(1) != 1 else x.sum((1, 2)).sum(-1, keepdim=True) * 0,
        lambda x: x.flatten(2).sum(-1),
        lambda: (torch.randn(2, 3, 8, 8),),
    ),
    "an incoming gradient with gaps": Versions("layout", scaled, by(FlatGradients), **GRADIENTS),
    "a result into the input": Versions(
        "aliased",
        scaled_into,
        scaled_in_steps,
        lambda x, out: torch.div(x, x.abs().sum(-1, keepdim=True), out=out),
        lambda: (torch.randn(8, 64), torch.empty(8, 64)),
        {
            "reference": lambda x, out: x.double() / x.double().abs().sum(-1, keepdim=True),
            "writes": (1,),
        },
    ),
    "one tensor as two inputs": Versions(
        "same",
        torch.mul,
        lambda a, b: a * b if a.data_ptr() != b.data_ptr() else a + b,
        lambda a, b: b * a,
        lambda: pair(16, 64),
    ),
    "one input without a gradient": Versions("gradients", scaled, by(Forgetful), **GRADIENTS),
    "one gradient of three": Versions(
        "gradients",
        lambda x, y, z: x * y * z,
        by(Joint),
        lambda x, y, z: z * y * x,
        lambda: tuple(torch.randn(3, 16, 64).requires_grad_().unbind()),
        BACKWARD,
    ),
    "no_grad": Versions("gradients", scaled, only_without_grad_mode, **GRADIENTS),
    "a gradient of one result": Versions(
        "gradients",
        lambda x: (2 * x, x.sum(-1)),
        by(Halves),
        lambda x: (x + x, x.sum(1)),
        lambda: (torch.randn(16, 64, requires_grad=True),),
        BACKWARD,
    ),
}
#: Wrong in another use than the case's: a note, unless the case declares that use.
OTHER_USES = {
    "one row for all": Versions(
        "broadcast",
        torch.add,
        lambda x, y: x + y.as_strided(x.shape, x.stride(), y.storage_offset()),
        lambda x, y: y + x,
        lambda: pair(8, 64),
        {"domain": "contiguous"},
    ),
    "a second backward": Versions("again", scaled, by(InPlace), **GRADIENTS),
    "a weight of another dtype": Versions(
        "dtypes",
        lambda x, w: (x * w).to(x.dtype),
        lambda x, w: x * in_memory_of(w, x.dtype),
        lambda x, w: (x.float() * w.float()).to(x.dtype),
        lambda: (torch.randn(8, 64).bfloat16(), torch.randn(64).bfloat16()),
        {"weights": (1,), "domain": "equal sizes, contiguous"},
    ),
    "autocast": Versions(
        "autocast",
        lambda x: x * 2,
        lambda x: x * (2 if not torch.is_autocast_enabled("cpu") else 3),
        lambda x: x + x,
        lambda: (torch.randn(8, 64),),
    ),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_a_kernel_that_is_wrong_along_an_axis_is_to_be_repaired(name: str) -> None:
    versions = VERSIONS[name]
    trials = trials_of(versions.wrong, versions)
    assert versions.kind in {t.kind for t in trials if t.outcomes[CANDIDATE] == "wrong"}
    (finding,) = held_out_findings(trials, CANDIDATE, INCUMBENT, {})
    assert finding.rejects and finding.repairs


@pytest.mark.parametrize("name", OTHER_USES)
def test_wrong_in_another_use_is_a_note_unless_the_case_declares_it(name: str) -> None:
    versions = OTHER_USES[name]
    trials = trials_of(versions.wrong, versions)
    assert {trial.kind for trial in trials if trial.outcomes[CANDIDATE] == "wrong"} == {
        versions.kind
    }
    (finding,) = held_out_findings(trials, CANDIDATE, INCUMBENT, {})
    assert finding.check == AXES[versions.kind].check and not finding.rejects
    words = versions.changes.get("domain", "").split(", ")
    domain = ", ".join(filter(None, (*words, AXES[versions.kind].declared_by)))
    trials = trials_of(versions.wrong, versions, domain=domain)
    (finding,) = held_out_findings(trials, CANDIDATE, INCUMBENT, {})
    assert finding.rejects and f"domain={AXES[versions.kind].declared_by!r}" not in str(finding)


@pytest.mark.parametrize("name", [*VERSIONS, *OTHER_USES])
def test_an_honest_kernel_is_right_for_all_inputs(name: str) -> None:
    versions = (VERSIONS | OTHER_USES)[name]
    trials = trials_of(versions.honest, versions)
    assert len(trials) > 5
    not_right = [t for t in trials if t.outcomes[CANDIDATE] != "right"]
    assert not not_right


def test_every_axis_has_a_kernel_that_is_wrong_along_it() -> None:
    kinds = {versions.kind for versions in (*VERSIONS.values(), *OTHER_USES.values())}
    assert kinds == TRANSFORMATIONS.keys() - {"twice"}
    assert TRANSFORMATIONS.keys() | {"aligned"} == AXES.keys()
