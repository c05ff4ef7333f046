"""Inputs between calls: new content at the same addresses, and what the kernel did to them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.determinism import bits, fresh_copy

#: Share of the elements that a disturbance moves: few enough for sampled fingerprints to miss them.
_SHARE = 0.01
_LEAST, _MOST = 4, 4096
#: The dtypes that torch multiplies by a number.
SCALABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def all_tensors(given: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments, those in lists and tuples included, in order."""
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, list | tuple):
        return [tensor for item in given for tensor in all_tensors(item)]
    return []


def activations(given: Sequence[Any], weights: Container[int]) -> list[torch.Tensor]:
    """Return the tensors among arguments but for those at `weights`, in order."""
    return [
        tensor
        for position, item in enumerate(given)
        if position not in weights
        for tensor in all_tensors(item)
    ]


def storages(given: Any) -> frozenset[int]:
    """Return the addresses of the memory that tensors among arguments lie in."""
    return frozenset(t.untyped_storage().data_ptr() for t in all_tensors(given))


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
    for position, (held, fresh) in enumerate(zip(old, new, strict=True)):
        if position in weights and only_activations:
            continue
        for target, source in zip(all_tensors(held), all_tensors(fresh), strict=True):
            if target.shape != source.shape:
                continue
            if position in weights:
                with torch.no_grad():
                    target.copy_(source)
            else:
                target.data.copy_(source.detach())


def disturbed(
    given: Sequence[Any], weights: Container[int], generator: torch.Generator
) -> list[Any]:
    """Return inputs in which a few elements of the activations have changed places.

    Sum, extremes, corners and nearly all elements stay as they were, so that a fingerprint of the
    content stays too; the result does not. Only floating-point tensors are disturbed: the order of
    integers can be a structure (offsets, indices).
    """
    result = [fresh_copy(item) for item in given]
    for position, item in enumerate(result):
        for tensor in all_tensors(item) if position not in weights else ():
            if has_room(tensor):
                exchange(tensor.data, places(tensor.numel(), generator))
    return result


def can_be_disturbed(given: Sequence[Any], weights: Container[int]) -> bool:
    """Say whether some activation has enough elements to change a few unnoticed."""
    return any(map(has_room, activations(given, weights)))


def has_room(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has enough elements for a few to change places."""
    return tensor.is_floating_point() and tensor.numel() >= 4 * _LEAST


def places(count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw a few places of a flat tensor of `count` elements, away from its ends: int64, CPU.

    One of each of equally long stretches, so that all differ without having been compared.
    """
    wanted = min(max(_LEAST, int(count * _SHARE)), _MOST)
    margin = count // 16
    stretch = (count - 2 * margin) // wanted
    inside = torch.randint(stretch, (wanted,), generator=generator)
    return margin + stretch * torch.arange(wanted) + inside


def exchange(tensor: torch.Tensor, places: torch.Tensor, moved: int = 1) -> None:
    """Have the elements at `places` move on by so many of them, in place, of whatever dtype."""
    flat = bits(tensor).flatten()
    flat[places] = flat[places.roll(moved)]
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))


def changed(used: Sequence[Any], pristine: Sequence[Any]) -> frozenset[int]:
    """Return the positions of the inputs that do not hold what they held before."""
    return frozenset(
        position
        for position, (item, original) in enumerate(zip(used, pristine, strict=True))
        if not all(map(_same_content, all_tensors(item), all_tensors(original)))
    )


def mutation(
    used: Sequence[Any], pristine: Sequence[Any], allowed: Container[int]
) -> list[Finding]:
    """Return a finding when a call wrote to inputs; the reference changes those of `allowed`."""
    places = sorted(place for place in changed(used, pristine) if place not in allowed)
    if not places:
        return []
    return [
        Finding(
            "input-mutated",
            f"the call changed input {', '.join(map(str, places))}, which the reference leaves "
            "alone",
            advice="write to memory of your own; callers use their tensors afterwards",
        )
    ]


def _same_content(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.stride() != other.stride():
        return False
    if one.element_size() > 8:
        return bool(torch.equal(one, other))
    return bool((bits(one) == bits(other)).all())
