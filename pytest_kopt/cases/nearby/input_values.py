"""The inputs of a case with other values, and the gradients of its gradients.

Values are large, masked, constant, exact or of a wider dtype. A version may approximate the
gradients of its gradients; one that returns zero without an error is wrong.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from pytest_kopt.cases.nearby.variant import Change, Drawn, Variant, beside, differ, floating
from pytest_kopt.honesty.inputs import SCALABLE, leaves
from pytest_kopt.honesty.nearby_shapes import LARGER
from pytest_kopt.numerics.gates import snr, tolerance
from pytest_kopt.numerics.nested import bits, mapped, tensors

#: A tenth of the result may be error with such content, whatever the dtype.
PLAINLY_RIGHT_DB = 20.0
#: Formats that hold -1, 0 and 1.
_FP8 = (
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    *(torch.float8_e5m2, torch.float8_e5m2fnuz),
)
#: Memory of a wider dtype is never too small for a kernel that takes it for what it expects.
_WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
#: No rounding to a narrow dtype gets there.
_WIDE_DB = 60.0
#: Another integer than one below 192 misses it, and what bfloat16 makes of a larger one meets it.
_NEAREST_INTEGER = tolerance(rtol=2.0**-8, atol=0.25)
#: By so many times its size content is moved: the variance as a difference of squares, whose
#: rounding in float32 is then larger than it, is not plainly right, and by residuals it is.
_FAR = 2.0**12
#: A result that a few last bits of float32 in the inputs change by more is nobody's to give.
_FIRM_DB, _LAST_BITS = 40.0, 2.0**-22
#: What of a sparse tensor of integers is not zero.
_DENSE = 0.25
#: Of results that name places; narrower integers are numbers that were rounded.
_PLACES = (torch.int64, torch.int32)
#: Of what is summed up before it is differentiated; any will do that versions have in common.
_SIGNS = 20


def larger(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # A power of two: exact in every dtype, short of infinity.
    larger = x * LARGER
    if larger.ndim > 1 and len(larger) > 1:
        larger[0] = 0
    return larger


def outlier(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not x.numel():
        return x
    rows = x.reshape(-1, x.shape[-1]).clone() if x.ndim else x.reshape(1, 1).clone()
    place = torch.randint(rows.shape[1], (len(rows),), generator=generator).to(x.device)
    rows[torch.arange(len(rows), device=x.device), place] = 8 * LARGER
    return rows.reshape(x.shape)


def masked(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same with -inf from a place of every row on, as masks make it."""
    if not x.ndim or x.shape[-1] < 2:
        return x
    ends = torch.randint(1, x.shape[-1], (*x.shape[:-1], 1), generator=generator).to(x.device)
    places = torch.arange(x.shape[-1], device=x.device)
    return x.masked_fill(places >= ends, float("-inf"))


def takes_masks(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Say whether infinities stay where an input has them, if anywhere: else none is a mask.

    A blur spreads it, and an average of two tensors has it where either does.
    """
    masks = [x.isinf() for x in tensors(given) if x.dtype in SCALABLE]
    results = [out for out in tensors(expected) if out.is_floating_point()]
    return all(
        any(torch.equal(mask, ~out.isfinite()) for mask in masks)
        for out in results
        if not out.isfinite().all()
    )


def _masked_row(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same with -inf alone in one row of several."""
    if x.ndim < 2 or len(x) < 2:
        return x
    return torch.cat([torch.full_like(x[:1], -math.inf), x[1:]])


def _infinite(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same with inf in the first place of every row."""
    if not x.ndim or not x.numel():
        return x
    return torch.cat([torch.full_like(x[..., :1], math.inf), x[..., 1:]], -1)


def infinities(drawn: Drawn) -> Iterator[Variant]:
    for where, change, counts in (
        ("at the end of rows", masked, takes_masks),
        ("a whole row", _masked_row, takes_masks),
        ("above all", _infinite, _hands_on_infinities),
    ):
        case = drawn.everywhere(floating(change), gate=snr(PLAINLY_RIGHT_DB))
        yield Variant(case, where, counts=counts)


def _hands_on_infinities(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Say whether results have infinities, and those of the inputs: nobody masks with inf."""
    results = [out for out in tensors(expected) if out.is_floating_point()]
    return takes_masks(given, expected) and any(bool(out.isinf().any()) for out in results)


def lopsided(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return rows of different size, one larger than all together, and every n-th element large."""
    if not x.ndim or not x.numel():
        return x
    rows = x[..., :1].numel()
    steps = torch.randint(-2, 3, (rows,), generator=generator)
    # A sum of squares over half of the rows, doubled, is then another sum; two inputs differ.
    place, more = (int(torch.randint(n, (), generator=generator)) for n in (rows, 3))
    steps[place] = 2 + math.ceil(math.log2(rows) / 2) + more
    scaled = x * torch.exp2(steps.view(*x.shape[:-1], 1).float()).to(x)
    scaled[..., :: 2 ** int(torch.randint(1, 7, (), generator=generator))] *= 16
    return scaled


def dominant(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same with one row of several 2**24 times as large, or less in float16."""
    if x.ndim < 2 or x[..., :1].numel() < 2:
        return x
    rows = x.reshape(-1, x.shape[-1]).clone()
    room = torch.finfo(x.dtype).max / (64 * max(1.0, float(x.abs().max())))
    # What runs over all rows carries it on to those that follow.
    place = torch.randint(len(rows) // 2, (), generator=generator)
    rows[place] *= 2.0 ** min(24, math.floor(math.log2(room)))
    return rows.reshape(x.shape)


def _in_a_row(least: float) -> Change:
    """Return the change to numbers of either sign, the next of its format for every one.

    They keep their order over the whole tensor, so that it does not matter along which dimension
    they are compared.
    """

    def change(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        integers = bits(x).dtype
        # Zero has two signs, and is left out.
        first = max(1, int(x.new_full((), least).view(integers)))
        if first + x.numel() > int(x.new_full((), torch.finfo(x.dtype).max).view(integers)):
            return x
        rank = x.flatten().argsort().argsort() - x.numel() // 2
        size = (first + torch.where(rank < 0, -1 - rank, rank)).to(integers).view(x.dtype)
        return torch.where(rank < 0, -size, size).view(x.shape)

    return change


def _huge(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return rows whose largest element's square is just finite."""
    if not x.ndim or not x.numel():
        return x
    place = x.abs().argmax(-1, keepdim=True)
    factor = math.sqrt(torch.finfo(x.dtype).max) / 64
    return x.scatter(-1, place, x.gather(-1, place) * factor)


def close_together(drawn: Drawn) -> Iterator[Variant]:
    """Ask for the right places among values that a coarser number holds for equal."""
    if not any(x.dtype in _PLACES for x in drawn.results(drawn.case) or ()):
        return
    for where, change in (
        ("in the last bit", _in_a_row(1.0)),
        ("denormal", _in_a_row(0.0)),
        ("one huge element a row", _huge),
    ):
        yield Variant(drawn.everywhere(floating(change), backward=False), where)


def _far(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same around a mean that is far from zero, in its own dtype."""
    moved = x + _FAR * x.float().square().mean().sqrt().to(x) if x.numel() else x
    return moved if bool(moved.isfinite().all()) else x


def _nudged(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return that with other last bits, in float32 at least."""
    far = _far(x, generator)
    wide = far if far.dtype is torch.float64 else far.float()
    own = beside(x, generator)
    signs = torch.randint(2, x.shape, generator=own, device=x.device).to(wide) * 2 - 1
    return wide * (1 + signs * _LAST_BITS)


def far_from_zero(drawn: Drawn) -> Iterator[Variant]:
    """Move the mean of all inputs far from zero, where the result is firm there."""
    case = drawn.everywhere(floating(_far), gate=snr(PLAINLY_RIGHT_DB), backward=False)
    results = drawn.results(case)
    nudged = drawn.results(drawn.everywhere(floating(_nudged)))
    if results and nudged and not differ(results, nudged, _FIRM_DB):
        yield Variant(case)


def _says_something(x: torch.Tensor) -> bool:
    return x.dtype not in SCALABLE or not x.numel() or bool(x.any())


def _filled(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if _says_something(x):
        return x
    return torch.randn(x.shape, generator=beside(x, generator), device=x.device).to(x)


def where_zeros_are(drawn: Drawn) -> Iterator[Variant]:
    if not all(map(_says_something, tensors(drawn.inputs))):
        yield Variant(drawn.everywhere(floating(_filled), weights=True, gate=snr(PLAINLY_RIGHT_DB)))


def _small_integers(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return -1, 0 and 1, mostly zeros: every format holds them, and every sum of a few of them."""
    if not x.ndim:
        return torch.ones_like(x)
    own = beside(x, generator)
    signs = torch.randint(2, x.shape, generator=own, device=x.device) * 2 - 1
    integers = signs * (torch.rand(x.shape, generator=own, device=x.device) < _DENSE)
    # No row is zeros, of which a scale cannot be made, and the last element of each counts.
    integers[..., -1:] = 1
    return integers.to(x)


def _exactly(x: Any, generator: torch.Generator) -> Any:
    """Return integers for all floating-point tensors, those of 8 bits too."""
    is_fp8 = isinstance(x, torch.Tensor) and x.dtype in _FP8
    return (_small_integers if is_fp8 else floating(_small_integers))(x, generator)


def _are_integers(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    return all(torch.equal(out, out.round()) for out in tensors(expected) if out.dtype in SCALABLE)


def exact(drawn: Drawn) -> Iterator[Variant]:
    """Ask for exact results of small integers: what a coarse tolerance hides shows there.

    Many elements that err a little show in the SNR, and one that is another integer for itself.
    """
    for where, gate in (("as a whole", snr(_WIDE_DB)), ("each element", _NEAREST_INTEGER)):
        case = drawn.everywhere(_exactly, weights=True, gate=gate, backward=False)
        yield Variant(case, where, counts=_are_integers)


def _wider(x: Any, generator: torch.Generator) -> Any:
    """Widen tensors, and a dtype among the arguments."""
    if isinstance(x, torch.dtype):
        return _WIDER.get(x, x)
    return floating(lambda x, _: x.to(_WIDER.get(x.dtype, x.dtype)))(x, generator)


def all_wider(drawn: Drawn) -> Iterator[Variant]:
    yield Variant(drawn.everywhere(_wider, weights=True, gate=snr(_WIDE_DB)))


def of_numbers(change: Change) -> Callable[[Drawn], Iterator[Variant]]:
    """Return the generator of the case with all floating-point activations changed."""

    def once(drawn: Drawn) -> Iterator[Variant]:
        case = drawn.everywhere(floating(change), gate=snr(PLAINLY_RIGHT_DB))
        yield Variant(case)

    return once


def as_drawn(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x


def tiny(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x / 2**12


def constant(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x[..., :1].expand_as(x).clone() if x.ndim else x


def twice(drawn: Drawn) -> Iterator[Variant]:
    """Have versions and reference say which gradients of their gradients are not zero."""
    case = drawn.case
    if case.backward:
        changed = replace(
            case,
            reference=_differentiated(case.reference),
            backward=False,
            writes=(),
            owed=(),
            consumes=(*case.consumes, *case.writes),
            gate=snr(PLAINLY_RIGHT_DB),
        )
        yield Variant(
            changed, of=_differentiated, counts=lambda _, out: any(map(torch.any, tensors(out)))
        )


def of_one_result(drawn: Drawn) -> Iterator[Variant]:
    """Have one of several results alone get a gradient: where a loss, say, reads no other."""
    case = drawn.case
    if not case.backward or case.writes:
        return
    results: list[torch.Tensor] = []
    with suppress(Exception):
        results = tensors(case.positional(case.reference)(*case.arguments()))
    differentiable = [number for number, x in enumerate(results) if x.requires_grad]
    for number in differentiable if len(differentiable) > 1 else ():
        alone = functools.partial(_detached_but, number)
        changed = replace(case, reference=alone(case.reference))
        yield Variant(changed, f"result {number}", of=alone)


def _detached_but(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results but one, counted in order, autograd knows nothing of."""

    @functools.wraps(function)
    def detached(*given: Any, **keywords: Any) -> Any:
        places = itertools.count()
        return mapped(
            function(*given, **keywords),
            lambda x: x if next(places) == number else x.detach(),
            (torch.Tensor,),
        )

    return detached


def _differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what says, by 1 or 0, which second derivatives of a function are not zero."""

    @functools.wraps(function)
    def second(*given: Any, **keywords: Any) -> list[torch.Tensor]:
        wanted = list(leaves([*given, *keywords.values()]).values())
        results = [x for x in tensors(function(*given, **keywords)) if x.requires_grad]
        # torch's once_differentiable refuses only where these ask for a gradient as well.
        incoming = [_signs(x).requires_grad_() for x in results]
        first = torch.autograd.grad(results, wanted, incoming, create_graph=True, allow_unused=True)
        followed = [x for x in first if x is not None and x.requires_grad]
        asked = [*wanted, *incoming]
        for x in asked:
            x.grad = None
        # Not by `grad`, which takes a refusal for no dependence.
        torch.autograd.backward(followed, list(map(_signs, followed)))
        return [torch.tensor(float(x.grad is not None and bool(x.grad.any()))) for x in asked]

    return second


def _signs(x: torch.Tensor) -> torch.Tensor:
    """Return -1 and 1 on a tensor's device, the same for all of a shape there, in its dtype."""
    # A host draws and sends as many as a GPU holds in a second and more.
    generator = torch.Generator(x.device).manual_seed(_SIGNS)
    drawn = torch.randint(2, x.shape, generator=generator, device=x.device, dtype=torch.int8)
    return (2 * drawn - 1).to(x)
