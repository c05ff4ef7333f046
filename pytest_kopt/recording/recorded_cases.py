"""Cases from a record: inputs like those of a real run, a label, and a weight."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
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
    #: Its calls' part in the time of all recorded calls.
    weight: float
    #: As record.json has them.
    arguments: tuple[dict[str, Any], ...]
    #: By position where there are none.
    names: tuple[str, ...] | None
    #: The folder of the record.
    folder: Path

    def __str__(self) -> str:
        return self.label

    def inputs(self, device: str = "cpu") -> tuple[Any, ...] | dict[str, Any]:
        """Return fresh arguments, by name where the record has names.

        Tensors have the recorded shapes, dtypes and strides. Where the record holds contents they
        have those, else random values: normally distributed with the recorded mean and deviation,
        integers between least and largest.
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


def recorded(folder: str | Path) -> list[RecordedCase]:
    """Return the cases of a record, those that took longest first.

    BadInput for a folder without one, or a call with an argument that cannot be drawn again.
    """
    folder = Path(folder)
    try:
        document = json.loads((folder / RECORD).read_text())
        signatures, version = document["signatures"], document["schema_version"]
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"holds no record: {error}", where=str(folder)) from None
    if version != VERSION:
        what = f"record.json is of version {version}"
        raise BadInput(what, where=str(folder), legal=str(VERSION))
    name, total = document["function"].partition(":")[2], sum(s["seconds"] for s in signatures)
    cases = []
    for signature in sorted(signatures, key=lambda s: -s["seconds"]):
        arguments = signature["arguments"]
        if unknown := [a["unknown"] for a in arguments if "unknown" in a]:
            what = f"a call of {name} has an argument of the type {unknown[0]}"
            raise BadInput(
                what,
                where=str(folder),
                legal=f"tensors ({', '.join(DTYPES)}), numbers, text and None",
            )
        weight = signature["seconds"] / total if total else 1 / len(signatures)
        names = signature["names"]
        dims = _dims(arguments, names)
        label = " ".join([name, *(f"{key}={value}" for key, value in dims.items())])
        cases.append(
            RecordedCase(
                *(label, dims, signature["calls"], weight, tuple(arguments)),
                *(names and tuple(names), folder.resolve()),
            )
        )
    return cases


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
            dims[name] = f"{argument['dtype']}[{shape}]{layout}"
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
