"""Results of timed calls, judged when the clock has stopped: in a plain run here, else elsewhere.

A process hands results over as plain bytes in files; of large results it draws elements when the
calls are over.
"""

from __future__ import annotations

import math
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch

from pytest_kopt.cases.case import EQUAL, Case
from pytest_kopt.cases.order import RESULTS
from pytest_kopt.cases.running.against_reference import InFloat64, judge_twice, nearest
from pytest_kopt.cases.running.execution import Pass
from pytest_kopt.cases.running.reference import Reference
from pytest_kopt.honesty.accuracy import Accuracy, downgrades, downgrades_when_timed
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import leaves, span_bytes
from pytest_kopt.honesty.outputs import accuracy_of, but_for_few, least_exact
from pytest_kopt.honesty.renewal import poison
from pytest_kopt.numerics.compare import Comparison
from pytest_kopt.numerics.nested import bits, fresh_copies, stored, tensors

#: Takes from an expected result, by its name, the part of it that is judged.
Drawn = Callable[[str, Any], Any]
#: What the reference returns for a spot's inputs, and what gives that once more in float64.
Expected = tuple[Pass, InFloat64]
#: SNR in dB below which a result is plainly wrong where nothing is known of its accuracy.
_WRONG_DB = 5.0
#: So far below another call's SNR on the same inputs, in dB, a result that misses its gate may lie:
#: by no less than `downgrades` lets pass. And the SNR that is exact enough for that.
_BELOW_OTHER_DB, _EXACT_DB = 16.0, 60.0
#: Such a share of integers may miss their gate, with that SNR in dB: content that is scaled has
#: ties, and leaving out so few saves nothing. Of so many or more one may miss in any case.
_FEW, _FEW_DB, _SMALL = 1 / 200, 20.0, 32
#: Of a larger tensor so many elements are judged: what is wrong in 1 of 200,000 shows.
_JUDGED = 1 << 20
#: By so many roundings of its dtype an input may differ that two processes draw, or by a share.
_ROUNDING, _MOST_ROUNDED = 16, 2**-6
#: A number as memory holds it.
_NUMBER = struct.Struct("d")
#: What JSON carries as it is.
_PLAIN = (bool, int, float, str, type(None))
#: What is handed over of a look: what its call gave, and what one on the same content gave
#: afterwards.
_CALLS = ("results", "again")


@dataclass(frozen=True, slots=True)
class Spot:
    """The inputs of a call and its results, by name.

    A backward has incoming gradients by name of the output, and its gradients in order as results.
    `seed` is that of its block, `number` says which set of inputs it worked on. `again` is what a
    call gave on the same content after the blocks.
    """

    inputs: Sequence[Any]
    incoming: Mapping[str, torch.Tensor] | None
    results: Mapping[str, Any]
    seed: int = 0
    number: int = 0
    again: Mapping[str, Any] | None = None


def plainly_wrong(
    case: Case,
    spot: Spot,
    other: Mapping[str, Any] | None,
    floors: Mapping[str, float],
    expected: Expected,
) -> Comparison | None:
    """Return a result below its floor, an SNR in dB by name.

    Blocks meet content that is like the content before: an old answer is a few percent off. So a
    result that misses its gate may not lie far below what the `other` call on the same inputs gave,
    None: there is none. Integers and booleans have to meet their gate as in a check. Nothing is
    asked where that one is wrong: no test has said that the kernel can work with such content.
    """
    comparisons = _judged(case, spot.results, spot, expected)
    if other is None or all(comparison.passed for comparison in comparisons):
        return _below(comparisons, floors)
    reached = _judged(case, other, spot, expected)
    if _below(reached, floors):
        return None
    least = dict(floors)
    for now, before in zip(comparisons, reached, strict=False):
        if not _is_exact(other.get(before.name)):
            close = min(before.snr_db, _EXACT_DB) - _BELOW_OTHER_DB
            least[before.name] = max(floors.get(before.name, _WRONG_DB), close)
        elif before.passed:
            is_few = _misses_few(now, other.get(before.name))
            least[before.name] = _FEW_DB if is_few else math.inf
    return _below(comparisons, least)


def _is_exact(result: Any) -> bool:
    """Say whether a result's dtype asks for equality: integers and booleans."""
    if isinstance(result, torch.Tensor):
        return not result.is_floating_point()
    return isinstance(result, int)


def _misses_few(comparison: Comparison, result: Any) -> bool:
    """Say whether few elements of a result miss, or one where that is a larger share."""
    size = result.numel() if isinstance(result, torch.Tensor) else 1
    most = max(_FEW, 1 / size) if size >= _SMALL else _FEW
    return comparison.figures is not None and comparison.figures.mismatch_share <= most


def _below(comparisons: Iterable[Comparison], floors: Mapping[str, float]) -> Comparison | None:
    missed = (comparison for comparison in comparisons if not comparison.passed)
    return next((i for i in missed if not i.snr_db >= floors.get(i.name, _WRONG_DB)), None)


def _judged(
    case: Case, results: Mapping[str, Any], spot: Spot, expected: Expected
) -> list[Comparison]:
    if (run := _as_pass(spot, results)) is None:
        return [Comparison("grad", False, "a gradient of each input", "gives others")]
    return judge_twice(case, expected[0], run, expected[1])[1]


def less_exact(
    case: Case,
    spot: Spot,
    best: Mapping[str, Any],
    frozen: Mapping[str, Accuracy],
    expected: Expected,
) -> list[Finding]:
    """Return where a call is far less exact than the current best, or of another dtype.

    The rule: a timed result is as exact as a checked one. `best` are the current best's results on
    the same inputs, as far as they are judged. A call that was timed may not be less exact than one
    that was not. The `frozen` accuracy knows how many terms results add up.
    """
    if case.is_statistical:
        return []
    before, now = _accuracies(spot, (best, spot.results), frozen, expected)
    found = [*downgrades(now, before, tensors([*spot.inputs]))]
    if spot.again is not None:
        untimed, timed = _accuracies(spot, (spot.again, spot.results), frozen, expected)
        found += downgrades_when_timed(timed, untimed)
    return [replace(one, where=case.nodeid) for one in found if one.rejects or one.repairs]


def _accuracies(
    spot: Spot,
    calls: Sequence[Mapping[str, Any]],
    frozen: Mapping[str, Accuracy],
    expected: Expected,
) -> list[dict[str, Accuracy]]:
    """Return how exact the results of calls on the content of a spot are, by name."""
    by_reference, exact = expected
    computed_in, found = least_exact(by_reference.all), list[dict[str, Accuracy]]()
    for results in calls:
        run, reached = _as_pass(spot, results), dict[str, Accuracy]()
        found.append(reached)
        if run is None or run.outputs.keys() != by_reference.outputs.keys():
            continue
        for name, ref, out in nearest(by_reference, run, exact):
            terms = frozen[name].terms if name in frozen else None
            accuracy = accuracy_of(ref, out, computed_in, terms=terms)
            reached[name] = but_for_few(accuracy, found[0].get(name), ref, out)
    return found


def _as_pass(spot: Spot, results: Mapping[str, Any]) -> Pass | None:
    """Return a call's results as a forward's or a backward's, None where gradients are missing."""
    if spot.incoming is None:
        return Pass(dict(results), {})
    positions = leaves(spot.inputs)
    if len(results) != len(positions):
        return None
    return Pass({}, dict(zip(positions, results.values(), strict=True)))


def expected_of(
    case: Case, spot: Spot, results: Iterable[str], drawn: Drawn = lambda _, result: result
) -> Expected:
    """Return what the reference gives for a call, and what gives that once more in float64.

    `results` are the names of what a call gives, `drawn` takes from the reference's what is judged.
    """
    reference, incoming, result_names = Reference(case), spot.incoming, [*results]
    names = dict(zip(leaves(spot.inputs), result_names, strict=False))

    def expected(arguments: Sequence[Any]) -> Pass:
        if incoming is not None:
            full_gradients = reference.backward(arguments, list(incoming), incoming)
            gradients = {
                place: drawn(names[place], gradient) for place, gradient in full_gradients.items()
            }
            return Pass({}, gradients, nan_is_equal=case.nan == EQUAL)
        reference_pass = reference.forward(arguments, result_names)
        outputs, before = (
            {name: drawn(name, result) for name, result in of.items()}
            for of in (reference_pass.outputs, reference_pass.before)
        )
        return replace(reference_pass, outputs=outputs, before=before)

    exact = cache(partial(reference.in_float64, spot.inputs, expected))
    return expected(fresh_copies(spot.inputs)), exact


def wrong_result(comparison: Comparison, *, rejects: bool = True) -> Finding:
    return Finding(
        "timed-result",
        (
            f"wrong in a timed block, for new input values: {comparison.name} "
            f"{comparison.reason}, SNR {comparison.snr_db:.1f} dB"
        ),
        advice="be right for all input values of the case, in timed calls as in checked ones",
        rejects=rejects,
    )


def floors(accuracy: Mapping[str, Accuracy], slack_db: float) -> dict[str, float]:
    """Return the SNR in dB, by name of the result, that lies so far below a known accuracy."""
    return {
        name: min(reached.snr_db, reached.rounding_db) - slack_db
        for name, reached in accuracy.items()
    }


def hand_over(arm: str, way: str, spot: Spot, folder: Path, secret: int) -> dict[str, Any]:
    """Write what a looked-at call gave into a file in a folder; return how to read it.

    Large results give elements drawn under a `secret` that no process knew at the call. A result
    that is no plain tensor, number, text or None gives its type.
    """
    descriptor, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        handed_over = [
            None
            if results is None
            else [{"name": n, **_written(result, file, secret)} for n, result in results.items()]
            for results in (spot.results, spot.again)
        ]
    place = {"seed": spot.seed, "number": spot.number}
    description = {
        "file": name,
        "inputs": input_descriptions(spot.inputs),
        **dict(zip(_CALLS, handed_over, strict=True)),
    }
    return {"arm": arm, "way": way, **place, **description}


def _written(result: Any, file: BinaryIO, secret: int) -> dict[str, Any]:
    if type(result) in _PLAIN:
        return {"value": result}
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
        return {"type": type(result).__name__}
    drawn = _drawn(result.detach(), secret)
    plain = drawn.resolve_conj().resolve_neg().cpu().contiguous()
    file.write(plain.flatten().view(torch.uint8).numpy().data)
    return _tensor_description(result)


def _drawn(tensor: torch.Tensor, secret: int) -> torch.Tensor:
    if tensor.numel() <= _JUDGED:
        return tensor
    # On the host, whatever holds them: a reference may compute there.
    places = torch.randint(
        tensor.numel(), (_JUDGED,), generator=torch.Generator().manual_seed(secret)
    )
    return tensor.reshape(-1)[places.to(tensor.device)]


def _tensor_description(tensor: torch.Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    strides = list(tensor.stride())
    return {
        "dtype": dtype,
        "shape": list(tensor.shape),
        "strides": strides,
        "device": tensor.device.type,
    }


def input_descriptions(inputs: Sequence[Any]) -> list[str]:
    """Return dtype, shape and kind of device of the tensors among inputs, in order."""
    described = map(_tensor_description, tensors(inputs))
    return [f"{each['dtype']} {each['shape']} on {each['device']}" for each in described]


def like(description: Mapping[str, Any]) -> torch.Tensor:
    return torch.empty(
        description["shape"],
        dtype=getattr(torch, description["dtype"]),
        device=description["device"],
    )


def read(look: Mapping[str, Any]) -> Iterator[dict[str, Any] | None]:
    """Yield what was handed over of each of the calls, by name; None where there was none."""
    data, start = numpy.fromfile(look["file"], numpy.uint8), 0
    for call_name in _CALLS:
        results: dict[str, Any] = {}
        for description in look[call_name] or ():
            if "type" in description:
                raise TypeError(f"{description['name']} is a {description['type']}, not a tensor")
            if "value" in description:
                results[description["name"]] = description["value"]
                continue
            shape = (
                description["shape"] if math.prod(description["shape"]) <= _JUDGED else [_JUDGED]
            )
            result = like({**description, "shape": shape})
            end = start + result.numel() * result.element_size()
            if result.numel():
                plain = torch.from_numpy(data[start:end].copy()).view(result.dtype)
                result.copy_(plain.reshape(shape))
            results[description["name"]], start = result, end
        yield None if look[call_name] is None else results


def in_memory(
    look: Mapping[str, Any], memory: Mapping[str, Any], best: Mapping[str, Any], secret: int
) -> dict[str, Any] | None:
    """Return a call's results as its process's memory held them, None where it did not.

    A value that is neither a tensor nor a number is as it was handed over. So are results beyond
    those that are written down, if the current `best` gives more as well.
    """
    names = [description["name"] for description in look["results"] or ()]
    is_same_call = look["number"] == memory["call"] and len({*names}) == len(names)
    if not memory["file"] or not is_same_call:
        return None
    data, start = numpy.fromfile(memory["file"], numpy.uint8), 0
    sizes = iter(memory["sizes"])
    results: dict[str, Any] = {}
    for description in look["results"] or ():
        is_number = isinstance(description.get("value"), int | float)
        if not is_number and ("value" in description or "type" in description):
            continue
        size = next(sizes, None)
        if size is None:
            return results if len(stored([*best.values()])) > RESULTS else None
        if is_number:
            if size != _NUMBER.size:
                return None
            (number,) = _NUMBER.unpack(data[start : start + size].tobytes())
            results[description["name"]] = _as_stored(description["value"], number)
            start += size
            continue
        dtype = getattr(torch, description["dtype"])
        elements = torch.empty(size // dtype.itemsize, dtype=dtype)
        held = data[start : start + elements.nbytes]
        # An array without elements would be no view of another dtype.
        elements.view(torch.uint8).copy_(torch.from_numpy(held))
        start += size
        try:
            tensor = elements.as_strided(description["shape"], description["strides"])
        except RuntimeError:
            return None
        results[description["name"]] = (
            _drawn(tensor, secret) if tensor.numel() > _JUDGED else tensor
        )
    return results


def bits_of(number: float) -> int:
    """Return the bits of a number as a float64; 0 where it is none."""
    with suppress(OverflowError):
        return int.from_bytes(_NUMBER.pack(number), sys.byteorder)
    return 0


def _as_stored(handed_over: float, number: float) -> float:
    """Return a number as it was handed over where memory held it, else what memory held."""
    return handed_over if bits_of(handed_over) == bits_of(number) else number


def is_as_drawn(
    drawn: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor],
    memory: Mapping[str, Any],
    again: Callable[[], Sequence[torch.Tensor]],
) -> bool:
    """Say whether a process's memory held inputs as they are drawn here.

    They may differ by rounding, and in memory that was never written. There what is drawn `again`
    under poisoned allocations is poison, which may be what was drawn here as well: blocks of an
    earlier call are handed out once more.

    Calls may put more into inputs that they have `written` to: known are these sizes alone.
    Elsewhere nothing more is an input: results would not have to last there.
    """
    content, begin = numpy.fromfile(memory["file"], numpy.uint8), sum(memory["sizes"])
    spans, places = [*map(span_bytes, (*drawn, *written))], memory["inputs"]
    is_more = len(places) > len(spans) and not written
    if is_more or [whole for whole, _, _ in places[: len(spans)]] != spans:
        return False
    places = places[: len(drawn)]
    for at, (tensor, (_, start, size)) in enumerate(zip(drawn, places, strict=True)):
        here, is_own = _piece(tensor, start, size)
        elements = torch.from_numpy(content[begin : begin + size].copy()).view(tensor.dtype)
        begin += size
        differs = is_own & (bits(elements) != bits(here))
        if not differs.any():
            continue
        for redrawn in again()[at : at + 1]:
            anew = bits(_piece(redrawn, start, size)[0])
            is_drawn = anew == bits(here)
            if tensor.is_floating_point() or tensor.is_complex():
                # A mask or an integer may be what poison is.
                is_drawn &= anew != bits(poison(tensor.dtype))
            differs &= is_drawn
        if not _is_rounded(elements[differs], here[differs]):
            return False
    return True


def _piece(tensor: torch.Tensor, start: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what lies in a piece of a tensor's memory, and which of that is of the tensor."""
    width = tensor.element_size()
    place = slice(start // width, (start + size) // width)
    count = span_bytes(tensor) // width
    is_own = torch.full((count,), count == tensor.numel())
    if count != tensor.numel():
        is_own.as_strided(tensor.shape, tensor.stride()).fill_(True)
    return tensor.detach().as_strided((count,), (1,))[place], is_own[place]


def _is_rounded(stored: torch.Tensor, drawn: torch.Tensor) -> bool:
    if drawn.is_complex():
        stored, drawn = torch.view_as_real(stored), torch.view_as_real(drawn)
    if not drawn.is_floating_point():
        return drawn.numel() == 0
    error = torch.linalg.vector_norm(stored.double() - drawn.double())
    rounding = min(_ROUNDING * torch.finfo(drawn.dtype).eps, _MOST_ROUNDED)
    return bool(error <= rounding * torch.linalg.vector_norm(drawn.double()))


def judged_elements(look: Mapping[str, Any], secret: int) -> Drawn:
    """Return what takes from an expected result the elements that were handed over."""
    shapes = {description["name"]: description.get("shape") for description in look["results"]}

    def drawn(name: str, expected: Any) -> Any:
        # A result of another shape is held against the whole, and so is wrong.
        if isinstance(expected, torch.Tensor) and shapes.get(name) == [*expected.shape]:
            return _drawn(expected, secret)
        return expected

    return drawn
