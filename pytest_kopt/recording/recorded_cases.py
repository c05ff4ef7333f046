"""Cases from a record: inputs like those of a real run, a label, and a weight."""

from __future__ import annotations

import functools
import json
import math
from bisect import bisect
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_kopt.errors import BadInput
from pytest_kopt.recording.recorder import CONTENTS, DTYPES, RECORD, VERSION, safetensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RecordedCase:
    """One signature of a recorded function."""

    #: The function and its tensors' shapes.
    label: str
    #: Sizes and numbers of the arguments by name.
    dims: dict[str, int | float | str | bool]
    #: How often it was called.
    calls: int
    #: The part of the recorded time that it stands for, calls times the median; all add up to 1.
    weight: float
    #: As record.json has them.
    arguments: tuple[dict[str, Any], ...]
    #: By position where there are none.
    names: tuple[str, ...] | None
    #: The folder of the record.
    folder: Path

    def __str__(self) -> str:
        return self.label

    @property
    def backward(self) -> bool:
        """Whether a gradient was asked for."""
        return any(argument.get("requires_grad") for argument in self.arguments)

    def inputs(self, device: str = "cpu") -> tuple[Any, ...] | dict[str, Any]:
        """Return fresh arguments, by name where the record has names.

        Tensors have the recorded shapes, dtypes and strides. They have the contents of the record
        if it holds any, else random values: normally distributed with the recorded mean and
        deviation, integers between least and largest.
        """
        values = tuple(self._drawn(argument, device) for argument in self.arguments)
        return dict(zip(self.names, values, strict=True)) if self.names else values

    def _drawn(self, argument: dict[str, Any], device: str) -> Any:
        if "value" in argument:
            return argument["value"]
        import torch

        dtype = getattr(torch, argument["dtype"])
        stride = argument["stride"]
        if 0 in stride:
            # An expanded tensor has one element for many places; a copy into it would not do.
            stride = None
        key = argument.get("contents")
        if key:
            drawn = _contents(self.folder)[key].to(device, copy=True)
        else:
            drawn = _random(argument, dtype, device)
        if stride is not None:
            strided = torch.empty_strided(argument["shape"], stride, dtype=dtype, device=device)
            drawn = strided.copy_(drawn)
        return drawn.requires_grad_(argument["requires_grad"])


def recorded(folder: str | Path, most: int | None = None) -> list[RecordedCase]:
    """Return the cases of a record, those that stand for most of the time first.

    If there are more signatures than `most`, some are taken, evenly by the time of smaller and
    larger ones, and stand for the others. Sequences that grow have one signature a length. BadInput
    for a folder without a record or without calls, or a call with an argument that cannot be drawn
    again.
    """
    folder = Path(folder)
    try:
        document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        signatures, version = document["signatures"], document["schema_version"]
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"holds no record: {error}", where=str(folder)) from None
    if version != VERSION:
        what = f"record.json is of version {version}"
        raise BadInput(what, where=str(folder), legal=str(VERSION))
    name = document["function"].partition(":")[2]
    if not signatures:
        raise BadInput(f"{name} was not called", where=str(folder))
    signatures = sorted(signatures, key=_elements)
    # Not what calls took altogether: a kernel is compiled in one, and another waits for the system.
    weights = _weights([s["median_seconds"] * s["calls"] for s in signatures], most)
    cases = []
    for place in sorted(weights, key=lambda place: -weights[place]):
        signature = signatures[place]
        arguments = signature["arguments"]
        if unknown := [a["unknown"] for a in arguments if "unknown" in a]:
            what = f"a call of {name} has an argument of the type {unknown[0]}"
            legal = f"tensors ({', '.join(DTYPES)}), numbers, text and None"
            raise BadInput(what, where=str(folder), legal=legal)
        names = signature["names"]
        dims = _dims(arguments, names)
        label = " ".join([name, *(f"{key}={value}" for key, value in dims.items())])
        cases.append(
            RecordedCase(
                *(label, dims, signature["calls"], weights[place], tuple(arguments)),
                *(names and tuple(names), folder.resolve()),
            )
        )
    return cases


def _elements(signature: dict[str, Any]) -> int:
    return sum(math.prod(a["shape"]) for a in signature["arguments"] if "shape" in a)


def _weights(seconds: list[float], most: int | None) -> dict[int, float]:
    """Return parts of a whole time by place: all, or `most` equal ones at even distances in it."""
    total = sum(seconds)
    if most is None or len(seconds) <= most:
        return {place: part / total for place, part in enumerate(seconds)}
    ends = [*accumulate(seconds)]
    places = [bisect(ends, total * (number + 0.5) / most) for number in range(most)]
    return {place: count / most for place, count in Counter(places).items()}


def _dims(
    arguments: list[dict[str, Any]], names: list[str] | None
) -> dict[str, int | float | str | bool]:
    dims: dict[str, int | float | str | bool] = {}
    for place, argument in enumerate(arguments):
        name = names[place] if names else f"x{place}"
        if "value" in argument:
            dims[name] = "None" if argument["value"] is None else argument["value"]
        else:
            shape = "x".join(map(str, argument["shape"])) or "1"
            dense = argument["stride"] == _dense(argument["shape"])
            layout = "" if dense else f" stride {argument['stride']}"
            gradient = " grad" if argument["requires_grad"] else ""
            dims[name] = f"{argument['dtype']}[{shape}]{layout}{gradient}"
    return dims


def _dense(shape: list[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def _random(argument: dict[str, Any], dtype: torch.dtype, device: str) -> torch.Tensor:
    import torch

    known, shape = argument["statistics"], argument["shape"]
    drawn: torch.Tensor
    if dtype is torch.bool:
        drawn = torch.rand(shape, device=device) < known["mean"]
    elif dtype.is_floating_point:
        drawn = torch.randn(shape, device=device) * known["std"] + known["mean"]
        drawn = drawn.clamp(known["min"], known["max"]).to(dtype)
    else:
        least, most = int(known["min"]), int(known["max"])
        drawn = torch.randint(least, most + 1, shape, device=device).to(dtype)
    return drawn


@functools.lru_cache(maxsize=8)
def _contents(folder: Path) -> dict[str, torch.Tensor]:
    file, load = folder / CONTENTS, safetensors().load_file
    from safetensors import SafetensorError

    try:
        tensors: dict[str, torch.Tensor] = load(file)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(file)) from None
    return tensors
