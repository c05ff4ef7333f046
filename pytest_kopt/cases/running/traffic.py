"""For a case's roofline: the least bytes it has to move, and the dtype it computes in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pytest_kopt.honesty.physics import written_bytes
from pytest_kopt.numerics.gates import Gate, Snr
from pytest_kopt.numerics.nested import tensors

#: What a gate says of a kernel that is named after a format.
_FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "fp4": "float4_e2m1fn_x2"}


def io_bytes(
    given: Sequence[Any],
    outputs: Sequence[Any],
    gradients: Iterable[torch.Tensor | None],
    written: int = 0,
) -> dict[str, int]:
    """Return the compulsory bytes of a forward, and of a backward where there are gradients.

    Forward: inputs read, outputs written. Backward: inputs and incoming gradients (of the outputs'
    size) read, gradients written. A tensor counts once, an expanded dim as one element. `written`
    bytes of memory that the caller gave count as outputs; what else is in it need not be read.
    """
    inputs, results = (
        written_bytes(tensors(list(given))),
        written_bytes(tensors(list(outputs))) + written,
    )
    found = {"forward": inputs + results}
    made = written_bytes(item for item in gradients if item is not None)
    if made:
        found["backward"] = inputs + results + made
    return found


def computing_dtype(given: Sequence[Any], gate: Gate | None) -> str | None:
    """Return torch's name of the dtype that products are taken in, for the roofline.

    That of the gate's format, as kernels that quantise wider inputs themselves have it; else the
    one that most bytes of the floating or int8 inputs have.
    """
    if isinstance(gate, Snr) and gate.format in _FORMATS:
        return _FORMATS[gate.format]
    sizes: dict[str, int] = {}
    for item in tensors(list(given)):
        if item.is_floating_point() or item.dtype is torch.int8:
            name = str(item.dtype).removeprefix("torch.")
            sizes[name] = sizes.get(name, 0) + item.numel() * item.element_size()
    return max(sizes, key=lambda name: sizes[name]) if sizes else None
