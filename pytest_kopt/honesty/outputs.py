"""What a call hands back: plain tensors, complete at return, that nobody else writes to."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import all_tensors
from pytest_kopt.numerics.determinism import bits

#: torch's own methods, bound before kernel code could replace them.
_clone, _detach = torch.Tensor.clone, torch.Tensor.detach
_PLAIN = (torch.Tensor, torch.nn.Parameter)
#: A reference that changed by less could give the same bits in a coarse output.
_MATERIAL = 0.25


def taken(results: Sequence[Any]) -> list[Any]:
    """Return copies of plain tensors as they are at this moment, in stream order on a GPU."""
    return [_clone(_detach(item)) if type(item) in _PLAIN else item for item in results]


def _oddities(outputs: Sequence[Any], expected: Sequence[Any], given: Sequence[Any]) -> list[str]:
    devices = {item.device.type for item in all_tensors(given)}
    allowed = {*_PLAIN, *(type(item) for item in expected)}
    odd = []
    for item in outputs:
        kind = type(item)
        if not issubclass(kind, torch.Tensor):
            continue
        if kind not in allowed:
            odd.append(f"an output is a {kind.__module__}.{kind.__qualname__}, no plain tensor")
            continue
        hidden = [name for name in vars(item) if hasattr(torch.Tensor, name)]
        if hidden:
            odd.append(f"an output brings its own {', '.join(sorted(hidden))}")
        if item.layout is not torch.strided:
            odd.append(f"an output has the layout {item.layout}")
        elif devices and item.device.type not in devices:
            odd.append(f"an output lies on {item.device}")
        elif _reach(item) > item.untyped_storage().nbytes():
            odd.append("an output reaches beyond its storage")
    return odd


def odd_findings(
    outputs: Sequence[Any], expected: Sequence[Any], given: Sequence[Any]
) -> list[Finding]:
    """Return a finding when outputs are no plain tensors where the inputs are."""
    odd = _oddities(outputs, expected, given)
    advice = "return torch.Tensor objects that hold their values"
    return [Finding("output-type", "; ".join(odd), advice=advice)] if odd else []


def overwritten(
    earlier: Sequence[torch.Tensor], kept: Sequence[torch.Tensor], held: Container[int]
) -> list[Finding]:
    """Return a finding when results handed out earlier are not what they were (`kept`).

    A tensor that refuses to be read, as those of torch.compile's CUDA graphs do after the next
    call, has not been changed behind anybody's back; a view of an input changes with it (`held`
    are the inputs' storages).
    """
    try:
        intact = all(
            _equal_bits(item, copy)
            for item, copy in zip(earlier, kept, strict=True)
            if item.untyped_storage().data_ptr() not in held
        )
    except RuntimeError:
        return []
    if intact:
        return []
    return [
        Finding(
            "output-overwritten",
            "a later call changed the result of an earlier one",
            advice="cached memory is for scratch; hand out memory that is allocated in the call",
        )
    ]


def shared(
    earlier: Sequence[torch.Tensor], later: Sequence[torch.Tensor], held: Container[int]
) -> list[Finding]:
    """Return a finding when two calls handed out the same memory while both results live."""

    def places(items: Sequence[torch.Tensor]) -> set[int]:
        return {t.untyped_storage().data_ptr() for t in items if t.numel()}

    try:
        common = {place for place in places(earlier) & places(later) if place not in held}
    except RuntimeError:
        return []
    if not common - {0}:
        return []
    return [
        Finding(
            "output-shared",
            "two calls returned the same memory while both results were in use",
            advice="a result belongs to its call: compute it into memory of its own",
            bucket="W2",
        )
    ]


#: The result was wrong when the call returned and right soon after.
LATE = Finding(
    "late-result",
    "the result was not there yet when the call returned",
    advice="join every thread and stream that works on a result before returning it",
)


#: Wrong in tensors that were seen before, right for the same content in others, time after time.
REMEMBERED = Finding(
    "remembered-tensor",
    "new content in tensors that it has seen gives a wrong result, and the same content in others "
    "a right one: something is kept of what they held",
    advice="a tensor is not its content: compute everything from what the arguments hold",
    bucket="W2",
)


def stale(what: str) -> Finding:
    """Return the finding that a call gave an earlier result again."""
    return Finding(
        "stale-result",
        f"{what} gave an earlier result, bit for bit",
        advice="a cache that serves one content for another serves no real step: compute it",
        bucket="W2",
    )


def any_stale(
    old: Sequence[Any], new: Sequence[Any], old_refs: Sequence[Any], new_refs: Sequence[Any]
) -> bool:
    """Say whether some result is an earlier one although its reference changed visibly."""
    found = zip(old, new, old_refs, new_refs, strict=False)
    return any(_is_stale(*four) for four in found if all(type(t) in _PLAIN for t in four))


def _is_stale(
    old: torch.Tensor, new: torch.Tensor, old_ref: torch.Tensor, new_ref: torch.Tensor
) -> bool:
    """Say whether a result has the bits of an earlier one although it had to change visibly."""
    if old.shape != new.shape or old.dtype != new.dtype or not _equal_bits(old, new):
        return False
    if old_ref.shape != new_ref.shape or not old_ref.numel():
        return False
    before, after = old_ref.detach().double(), new_ref.detach().double()
    largest = torch.maximum(before.abs(), after.abs())
    scale = float(largest[torch.isfinite(largest)].max()) if bool(largest.isfinite().any()) else 0.0
    changed = (after - before).abs() > _MATERIAL * largest
    # Below this an output of a coarse dtype may round to zero both times.
    return bool((changed & (largest > 1e-3 * scale)).any())


def _equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_complex() or one.element_size() > 8:
        return bool((one == other).all())
    return bool((bits(one) == bits(other)).all())


def _reach(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()
