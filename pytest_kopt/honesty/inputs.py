"""Inputs between calls: new content at the same addresses, and what the kernel did to them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any

import numpy
import torch

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.nested import (
    bits,
    contents,
    fresh_copies,
    is_refilled,
    same_bits,
    tensors,
)

#: Share of the elements that a disturbance moves: few enough for sampled fingerprints to miss them.
_SHARE = 0.01
_LEAST, _MOST = 4, 4096
NUMBERS = (bool, int, float)
#: The bytes of the widest element whose bits are compared.
_WIDEST = 8
#: The dtypes that torch multiplies by a number.
SCALABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def activations(arguments: Sequence[Any], weights: Container[int]) -> list[torch.Tensor]:
    """Return the tensors among arguments but for those at `weights`, in order."""
    return [
        tensor
        for position, value in enumerate(arguments)
        if position not in weights
        for tensor in tensors(value)
    ]


class RestoredArguments:
    """Arguments of calls that write to some of them, at the positions in `rewritten`.

    `live` is what a call gets, `source` what it has to find there: the same objects, but for the
    rewritten ones copies of its own.
    """

    def __init__(self, arguments: Sequence[Any], rewritten: Collection[int]) -> None:
        self.live = list(arguments)
        self.rewritten = sorted(rewritten)
        self.source = list(arguments)
        copies = fresh_copies([arguments[place] for place in self.rewritten])
        for place, copy in zip(self.rewritten, copies, strict=True):
            self.source[place] = copy

    def restore(self) -> None:
        """Bring what a call has to find, also the numbers that are there now."""
        restore(self.live, self.source, self.rewritten)
        for place, value in enumerate(self.source):
            if type(value) in NUMBERS:
                self.live[place] = value


def restore(used: Sequence[Any], source: Sequence[Any], places: Iterable[int]) -> None:
    """Write what is in the source at these positions into the very tensors that calls use."""
    for place in places:
        for target, content in zip(contents(used[place]), contents(source[place]), strict=True):
            _write(target, content)


def _write(target: Any, source: Any) -> None:
    """Write behind autograd's back, and out of the graph of a call that wrote there."""
    if isinstance(target, torch.Generator):
        target.set_state(source.get_state())
        return
    if target.grad_fn is not None and not target._is_view():
        target.detach_()
    target = once(target.data)
    target.copy_(source.detach()[tuple(map(slice, target.shape))])


def plain_inputs(
    arguments: Sequence[Any],
    weights: Container[int],
    rewritten: Container[int],
    gradients: Sequence[Any] = (),
    *,
    are_consumed: bool = False,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors in memory that a call finds: activations, weights, and all others.

    The first two are plain. The others are those that it may write to, and what is not plain. A
    backward is given incoming `gradients` as well.
    """
    kinds: tuple[list[torch.Tensor], ...] = [], [], []
    activations, weight_tensors, others = kinds
    for place, argument in enumerate(arguments):
        kind = 2 if place in rewritten else place in weights
        for tensor in filter(_is_stored, tensors(argument)):
            kinds[kind if _is_plain(tensor) else 2].append(tensor)
    incoming = others if are_consumed else activations
    for tensor in filter(_is_stored, tensors(gradients)):
        (incoming if _is_plain(tensor) else others).append(tensor)
    return activations, weight_tensors, others


def _is_stored(tensor: torch.Tensor) -> bool:
    """Say whether a tensor's elements lie in memory of this process as its strides say."""
    is_own = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_nested
    is_here = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return is_own and is_here and tensor.numel() > 0


def _is_plain(tensor: torch.Tensor) -> bool:
    """Say whether the bits of a tensor that is stored are its numbers."""
    is_odd = tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    return not is_odd and tensor.element_size() <= _WIDEST


def span_bytes(tensor: torch.Tensor) -> int:
    """Return how many bytes there are from a tensor's first element to its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def leaves(arguments: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Return the positional inputs that ask for a gradient, by place."""
    return {
        i: value
        for i, value in enumerate(arguments)
        if isinstance(value, torch.Tensor) and value.requires_grad
    }


def says_twice(tensor: torch.Tensor) -> bool:
    """Say whether all rows are of two equal halves, as in tables of angles.

    The first row is asked before the others: it tells of nearly every tensor that it is none.
    """
    half = tensor.shape[-1] // 2 if tensor.ndim and tensor.numel() else 0
    if half < 2:
        return False
    first = tensor[(slice(0, 1),) * (tensor.ndim - 1)]
    return all(torch.equal(part[..., :half], part[..., half:]) for part in (first, tensor))


def once(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of an expanded tensor that holds every element once."""
    for dimension, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def overwrite(
    old: Sequence[Any],
    new: Sequence[Any],
    weights: Container[int],
    *,
    only_activations: bool = False,
) -> None:
    """Write new content into the very tensors of `old`.

    Activations are written behind autograd's back, without a step of `_version`: every real step
    brings new ones, and what keys on their version keys on an accident. Weights are updated as an
    optimiser does it, or left alone.
    """
    for position, (used, fresh) in enumerate(zip(old, new, strict=True)):
        if position in weights and only_activations:
            continue
        pairs: Iterable[tuple[Any, Any]] = zip(contents(used), contents(fresh), strict=True)
        for target, source in pairs:
            if getattr(target, "shape", None) != getattr(source, "shape", None):
                continue
            if position in weights and isinstance(target, torch.Tensor):
                with torch.no_grad():
                    target.copy_(source)
            else:
                _write(target, source)


def can_be_updated(weight: torch.Tensor) -> bool:
    """Say whether a few elements of a weight can change places and leave it what it is."""
    return has_room(weight) and not says_twice(weight)


def updated(
    arguments: Sequence[Any],
    weights: Container[int],
    generator: torch.Generator,
    most: int | None = None,
) -> list[Any]:
    """Return inputs in which a few elements of the weights, `most` at most, changed places."""
    result = fresh_copies(arguments)
    for position, value in enumerate(result):
        for tensor in tensors(value) if position in weights else ():
            if can_be_updated(tensor):
                drawn = places(tensor.numel(), generator)
                chosen = torch.randperm(len(drawn), generator=generator)[:most]
                exchange(tensor.data, drawn[chosen])
    return result


def has_room(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has enough elements for a few to change places."""
    return tensor.is_floating_point() and tensor.numel() >= 4 * _LEAST


def places(count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw a few places of a flat tensor of `count` elements, away from its ends: int64, CPU.

    One of each of equally long stretches, so that all differ without having been compared.
    """
    stretch, begins = _stretches(count)
    return torch.randint(stretch, begins.shape, generator=generator).add_(begins)


def in_columns(places: torch.Tensor, width: int) -> torch.Tensor:
    """Return places of rows of a width, each pair of them moved into one column."""
    first, second = places[: len(places) // 2 * 2].view(2, -1)
    return torch.cat([first, second - second % width + first % width])


@functools.lru_cache(64)
def _stretches(count: int) -> tuple[int, torch.Tensor]:
    """Return the length of the stretches of a flat tensor, and where each of them begins."""
    number = min(max(_LEAST, int(count * _SHARE)), _MOST)
    margin = count // 16
    stretch = (count - 2 * margin) // number
    return stretch, margin + stretch * torch.arange(number)


def exchange(tensor: torch.Tensor, places: torch.Tensor) -> None:
    """Swap elements at `places` in pairs, in place, of whatever dtype.

    Zeros stay where they are: they can be a structure (a triangular matrix, a mask), and what a
    zero meets on a diagonal is not defined.

    On the CPU without an operator of torch's: what is told of each of them must not see the content
    of a timed call before its clock starts.
    """
    flat = bits(tensor).flatten()
    pairs_of_places = places[: len(places) // 2 * 2].view(2, -1)
    if flat.device.type == "cpu":
        elements, order = flat.numpy(), pairs_of_places.numpy()
        pairs = elements[order]
        elements[order] = numpy.where((pairs != 0).all(0), pairs[::-1], pairs)
    else:
        exchanged = flat[pairs_of_places]
        swaps = (exchanged != 0).all(0)
        flat[pairs_of_places] = torch.where(swaps, exchanged.flip(0), exchanged)
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))


def changed(used: Sequence[Any], pristine: Sequence[Any]) -> frozenset[int]:
    """Return the positions of the inputs that do not hold what they held before."""
    return frozenset(
        position
        for position, (value, original) in enumerate(zip(used, pristine, strict=True))
        if is_refilled(value, original)
        or not all(
            before.stride() == after.stride() and same_bits(before, after)
            for before, after in zip(tensors(original), tensors(value), strict=False)
        )
    )


def undeclared(
    used: Sequence[Any],
    pristine: Sequence[Any],
    writes: Sequence[int],
    consumes: Sequence[int],
) -> Iterator[Finding]:
    """Say when a call wrote to inputs that the case does not declare."""
    if places := sorted(changed(used, pristine).difference(writes, consumes)):
        several = "inputs" if len(places) > 1 else "input"
        yield _undeclared_write(
            f"the call writes to {several} {', '.join(map(str, places))}",
            f"writes={(*writes, *places)!r} if it holds a result, "
            f"consumes={(*consumes, *places)!r} if it may hold anything afterwards",
        )


def undeclared_gradients(
    incoming: tuple[Sequence[Any], Sequence[Any]],
    consumes: Sequence[int],
    consumes_incoming: bool,
) -> Iterator[Finding]:
    """Say when the last backward wrote over what it was given.

    `incoming` are the incoming gradients, and what they held.
    """
    if not consumes_incoming and changed(*incoming):
        problem = "the backward writes over the incoming gradient"
        yield _undeclared_write(problem, f"consumes={(*consumes, 'grad_out')!r}")


def elsewhere(moved: Sequence[int]) -> Iterator[Finding]:
    """Say when a call left inputs in other memory than they had."""
    if moved:
        yield Finding(
            "input-moved",
            (
                f"the call gives input {', '.join(map(str, moved))} other memory instead "
                "of writing to its own: a view or an address of that input does not see "
                "the result"
            ),
            advice="write into the tensor: copy_() or an out= argument",
            rejects=False,
        )


def undrawn(
    used: Sequence[Any], pristine: Sequence[Any], drawn: Sequence[Any]
) -> Iterator[Finding]:
    """Say when a call left a generator where it was, and the reference did not.

    `pristine` is what both found, `used` and `drawn` what call and reference left.
    """
    for place, items in enumerate(zip(used, pristine, drawn, strict=True)):
        # A call that puts tensors into a list leaves more there than it found.
        generators = ([x for x in contents(i) if isinstance(x, torch.Generator)] for i in items)
        for three in zip(*generators, strict=False):
            left, start, expected = (generator.get_state() for generator in three)
            if same_bits(left, start) and not same_bits(expected, start):
                yield Finding(
                    "generator-left",
                    (
                        f"the call does not advance the generator in input {place}: the next call "
                        "would draw the same numbers"
                    ),
                    advice="draw from the generator itself, as the reference does",
                    rejects=False,
                )


def _undeclared_write(problem: str, line: str) -> Finding:
    """Return the finding about a write that needs this line in the case."""
    return Finding(
        "input-mutated",
        f"{problem}, and neither the reference nor the case allows it",
        advice=f"write to memory of your own, or add to the call of kopt(): {line}",
        rejects=False,
    )
