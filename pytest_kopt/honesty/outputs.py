"""Checks of the results of a call: plain tensors, of no other call's memory.

Their accuracy is measured here too. One rounding is computed, not measured. A reference's gradients
come back rounded to their inputs' dtype, and a result that equals them bit for bit is no more exact
than one that is an ulp away.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_kopt.honesty.accuracy import ANOTHER_ORDER, IN_ORDER, WORSE_DB, Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.compare import compute_snr, rounding_snr, vector
from pytest_kopt.numerics.nested import address, mapped, same_bits, tensors

#: torch's own methods, bound before kernel code could replace them.
_clone, _detach = torch.Tensor.clone, torch.Tensor.detach
_PLAIN = (torch.Tensor, torch.nn.Parameter)
#: A reference that changed by less could give the same bits in a coarse output.
_MATERIAL = 0.25
SHARED = Finding(
    "output-shared",
    "two calls returned the same memory while both results were in use",
    advice="compute each result into memory of its own",
)
NARROW_REFERENCE = Finding(
    "narrow-reference",
    (
        "the reference gives another result in float64, by more than the "
        "tolerance; a result that is right by either passes"
    ),
    advice="have the reference compute in float64: x.double()",
    rejects=False,
)
#: Elements below which a result's SNR is a matter of luck: a few sums may all be near zero.
FEW = 64


def snapshots(results: Sequence[Any]) -> list[Any]:
    """Return copies of plain tensors as they are at this moment, in stream order on a GPU."""
    return [_clone(_detach(result)) if type(result) in _PLAIN else result for result in results]


def odd_findings(
    outputs: Sequence[Any], expected: Sequence[Any], inputs: Sequence[Any]
) -> list[Finding]:
    """Return a finding when outputs are no plain tensors where the inputs are."""
    devices = {tensor.device.type for tensor in tensors(inputs)}
    allowed = {*_PLAIN, *(type(result) for result in expected)}
    odd = []
    for output in outputs:
        kind = type(output)
        if not issubclass(kind, torch.Tensor):
            continue
        if kind not in allowed:
            odd.append(f"an output is a {kind.__module__}.{kind.__qualname__}, not a plain tensor")
            continue
        hidden = [name for name in vars(output) if hasattr(torch.Tensor, name)]
        if hidden:
            odd.append(f"an output overrides {', '.join(sorted(hidden))}")
        if output.layout is not torch.strided:
            odd.append(f"an output has the layout {output.layout}")
        elif devices and output.device.type not in devices:
            odd.append(f"an output is on {output.device}")
        elif _reach(output) > output.untyped_storage().nbytes():
            odd.append("an output reaches beyond its storage")
    advice = "return torch.Tensor objects that hold their values"
    return [Finding("output-type", "; ".join(odd), advice=advice, rejects=False)] if odd else []


def layout(out: object, inputs: Sequence[Any], other_results: Sequence[Any] = ()) -> str | None:
    """Return how a result lies in memory: `IN_ORDER`, or what it is else; None for no tensor.

    A lazy copy lies in its original's memory until one of them is written to. `other_results` are
    those of the same call before this one; parts of one buffer are memory of their own.
    """
    if not isinstance(out, torch.Tensor) or out.layout is not torch.strided or not out.numel():
        return None
    if address(out) in {
        address(tensor) for tensor in tensors(inputs) if tensor.layout is torch.strided
    }:
        return "in memory of an input"
    if any(
        result.layout is torch.strided
        and result.numel()
        and out.storage_offset() == result.storage_offset()
        and address(out) == address(result)
        for result in tensors(other_results)
    ):
        return "in memory of another result"
    if out.is_neg() or out.is_conj():
        return "negated or conjugated as it is read"
    steps = [step for step, size in zip(out.stride(), out.shape, strict=True) if size > 1]
    if _reach(out) // out.element_size() - out.storage_offset() < out.numel():
        return "the same memory for many elements"
    return IN_ORDER if steps == sorted(steps, reverse=True) else ANOTHER_ORDER


def layouts(
    results: Mapping[str, Any], arguments: Sequence[Any], consumes: Container[int | str]
) -> dict[str, str | None]:
    """Return how the results of a call lie in memory, by name; what is consumed may hold them.

    Call it before anything asks a lazy copy for its address, which makes the copy.
    """
    unconsumed = [x for place, x in enumerate(arguments) if place not in consumes]
    live = list(results.values())
    return {
        name: layout(out, unconsumed, live[:place])
        for place, (name, out) in enumerate(results.items())
    }


def in_order(function: Callable[..., Any], like: Any, results: Any) -> Callable[..., Any]:
    """Return a function that delivers `results` and their like in order, as those of `like` lie."""
    pairs = zip(tensors(like), tensors(results), strict=False)
    if all(
        layout(one, ()) != IN_ORDER or layout(out, ()) in (None, IN_ORDER) for one, out in pairs
    ):
        return function

    def delivered(*arguments: Any, **named: Any) -> Any:
        return mapped(
            function(*arguments, **named),
            lambda out: (
                torch.clone(out, memory_format=torch.contiguous_format)
                if layout(out, ()) not in (None, IN_ORDER)
                else out
            ),
        )

    return delivered


def shared(
    live_before: Sequence[torch.Tensor], live: Sequence[torch.Tensor], shareable: Container[int]
) -> list[Finding]:
    """Return a finding when a call hands out memory of the results before it, which are in use.

    `shareable` are the inputs' storages, of which a result may be a view.
    """
    return [SHARED] if places(live_before, shareable) & places(live, shareable) else []


def places(items: Sequence[torch.Tensor], shareable: Container[int]) -> set[int]:
    """Return where results lie that are no views of inputs; nothing for what refuses to be read."""
    try:
        addresses = {t.untyped_storage().data_ptr() for t in items if t.numel()}
    except RuntimeError:
        return set()
    return {place for place in addresses if place and place not in shareable}


def stale(
    call_name: str,
    before: Sequence[Any],
    after: Sequence[Any],
    expected_before: Sequence[Any],
    expected: Sequence[Any],
    *,
    rejects: bool = True,
) -> Iterator[Finding]:
    """Say when a result is an earlier one although its reference changed visibly.

    One number everywhere was never computed, and kept for nothing: that is a mistake. If only a few
    elements changed, the finding does not reject: a kernel without memory may ignore these.
    """
    quadruples = zip(before, after, expected_before, expected, strict=False)
    plain = (four for four in quadruples if all(type(t) in _PLAIN for t in four))
    results = [new for old, new, *refs in plain if _is_stale(old, new, *refs)]
    if results and all(map(_is_one_number, results)):
        number = float(results[0].flatten()[0])
        yield Finding(
            "constant-result",
            (
                f"{call_name or 'a call'} returned {number:g} everywhere, as the call "
                "before did for other input values"
            ),
            advice=(
                "compute the result; if a constant passes the tolerance, declare a tighter gate="
            ),
            rejects=False,
        )
    elif results:
        yield Finding(
            "stale-result",
            f"{call_name} returned the result of an earlier call, bit for bit",
            advice="compute the result in every call: a training step has new input values",
            rejects=rejects,
        )


def _is_one_number(result: torch.Tensor) -> bool:
    first = result.flatten()[0]
    return bool((result == first).all()) and (result.numel() > 1 or not first)


def _is_stale(
    old: torch.Tensor, new: torch.Tensor, old_ref: torch.Tensor, new_ref: torch.Tensor
) -> bool:
    """Say whether a result has the bits of an earlier one although it had to change visibly."""
    if not same_bits(old, new) or old_ref.shape != new_ref.shape or not old_ref.numel():
        return False
    before, after = old_ref.detach().double(), new_ref.detach().double()
    largest = torch.maximum(before.abs(), after.abs())
    scale = float(largest[torch.isfinite(largest)].max()) if bool(largest.isfinite().any()) else 0.0
    changed = (after - before).abs() > _MATERIAL * largest
    # Below this an output of a coarse dtype may round to zero both times.
    return bool((changed & (largest > 1e-3 * scale)).any())


def _reach(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def accuracy_of(
    ref: torch.Tensor,
    out: torch.Tensor,
    computed_in: torch.dtype = torch.float64,
    layout: str | None = None,
    terms: float | None = None,
) -> Accuracy:
    """Measure a result of the reference's shape; the reference was `computed_in` a dtype."""
    is_finer = torch.finfo(computed_in).eps < torch.finfo(out.dtype).eps
    is_told = is_finer and out.numel() >= FEW
    figures = compute_snr(ref, out), rounding_snr(ref, out.dtype), is_told
    return Accuracy(str(out.dtype), *figures, layout, terms)


def but_for_few(
    reached: Accuracy, before: Accuracy | None, ref: torch.Tensor, out: torch.Tensor
) -> Accuracy:
    """Return the accuracy of most elements, if these are as exact as the result `before`.

    If a quantiser rounds one number the other way than the reference does, a row or a column is
    off. Arithmetic in a narrower dtype shows in all elements.
    """
    # So little below it is no finding.
    if before is None or reached.snr_db >= before.snr_db - WORSE_DB or out.numel() < FEW:
        return reached
    signal, output = vector(ref), vector(out.to(ref.device))
    noise = (output - signal).abs()
    most = noise.topk(noise.numel() - noise.numel() // 8, largest=False).indices
    snr_db = compute_snr(signal[most], output[most])
    is_like = snr_db >= min(before.snr_db, before.rounding_db) - WORSE_DB
    return replace(reached, snr_db=snr_db) if is_like else reached


def least_exact(results: Sequence[Any]) -> torch.dtype:
    """Return the coarsest floating-point dtype among results, float64 where there is none."""
    dtypes = [result.dtype for result in results if isinstance(result, torch.Tensor)]
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def most_terms(inputs: Any, results: Any, flops: float) -> float:
    """Return how many terms an element of a product may add up, of which torch counts `flops`.

    As many as the smallest of the results takes, or as one dimension has: a softmax may follow.
    """
    smallest = min(tensor.numel() for tensor in tensors(results) if tensor.numel())
    longest = max(n for tensor in tensors(inputs) for n in (1, *tensor.shape))
    return float(max(longest, flops / 2 / smallest))
