"""Results that one process hands over to another: plain bytes in files, and how to read them.

Of large results it is elements that are drawn when the calls are over.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch

from pytest_kopt.cases.order import RESULTS
from pytest_kopt.cases.running.inspected_results import Drawn, Spot
from pytest_kopt.numerics.nested import tensors

#: Of a larger tensor so many elements are judged: what is wrong in 1 of 200,000 shows.
_JUDGED = 1 << 20
#: What JSON carries as it is.
_PLAIN = (bool, int, float, str, type(None))
#: What is handed over of a look: what its call gave, and what calls on the same content and on the
#: case's own gave afterwards.
_CALLS = ("results", "again", "own")


class Unjudged(Exception):
    """What was looked at cannot be judged in another process; the message says why."""


def hand_over(arm: str, way: str, spot: Spot, folder: Path, secret: int) -> dict[str, Any]:
    """Write what a looked-at call gave into a file in a folder; return how to read it.

    Of what is large, elements drawn under a `secret` that nobody knew when it was called; of what
    is no plain tensor, number, text or None, its type.
    """
    descriptor, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        handed_over = [
            None
            if results is None
            else [{"name": n, **_written(result, file, secret)} for n, result in results.items()]
            for results in (
                spot.results,
                spot.again,
                spot.own_content.results if spot.own_content else None,
            )
        ]
    incoming = [
        {"name": n, **_tensor_description(gradient)}
        for n, gradient in (spot.incoming or {}).items()
    ]
    place = {"seed": spot.seed, "number": spot.number, "call": spot.call}
    description = {
        "file": name,
        "inputs": input_descriptions(spot.inputs),
        "incoming": incoming,
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
                raise Unjudged(f"{description['name']} is a {description['type']}")
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
    look: Mapping[str, Any], memory: Mapping[str, Any], secret: int
) -> dict[str, Any] | None:
    """Return a call's results as its process's memory held them, None where it did not.

    What is no tensor is as it was handed over.
    """
    if not memory["file"] or look["number"] != memory["call"]:
        return None
    data, start = numpy.fromfile(memory["file"], numpy.uint8), 0
    sizes = iter(memory["sizes"])
    results: dict[str, Any] = {}
    for description in look["results"] or ():
        if "value" in description or "type" in description:
            continue
        size = next(sizes, None)
        if size is None:
            # More results than are written down.
            return results if len(memory["sizes"]) == RESULTS else None
        dtype = getattr(torch, description["dtype"])
        part = torch.from_numpy(data[start : start + size // dtype.itemsize * dtype.itemsize])
        start += size
        try:
            tensor = (
                part.clone().view(dtype).as_strided(description["shape"], description["strides"])
            )
        except RuntimeError:
            return None
        results[description["name"]] = (
            _drawn(tensor, secret) if tensor.numel() > _JUDGED else tensor
        )
    return results


def judged_elements(look: Mapping[str, Any], secret: int) -> Drawn:
    """Return what takes from an expected result the elements that were handed over."""
    shapes = {description["name"]: description.get("shape") for description in look["results"]}

    def drawn(name: str, expected: Any) -> Any:
        # A result of another shape is held against the whole, and so is wrong.
        if isinstance(expected, torch.Tensor) and shapes.get(name) == [*expected.shape]:
            return _drawn(expected, secret)
        return expected

    return drawn
