"""Tensors in a file of the safetensors format: a length, a header in JSON, and the bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kopt.errors import BadInput

if TYPE_CHECKING:
    import torch

#: The format's names of dtypes, and torch's.
DTYPES = {
    **{f"F{bits}": f"float{bits}" for bits in (64, 32, 16)},
    **{f"I{bits}": f"int{bits}" for bits in (64, 32, 16, 8)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "U8": "uint8",
    "BOOL": "bool",
}
_NAMES = {name: code for code, name in DTYPES.items()}


def save(tensors: Mapping[str, torch.Tensor], file: Path) -> None:
    """Write tensors by name; each is contiguous, on the CPU, and of one of DTYPES."""
    import torch

    header, pieces, end = {}, [], 0
    for name, tensor in tensors.items():
        content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": _NAMES[str(tensor.dtype).removeprefix("torch.")],
            "shape": [*tensor.shape],
            "data_offsets": [end, end + len(content)],
        }
        pieces.append(content)
        end += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(pieces))


def load(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name; BadInput for one that is no such file."""
    import torch

    try:
        content = file.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            first, end = entry["data_offsets"]
            raw = bytearray(content[start + first : start + end])
            dtype = getattr(torch, DTYPES[entry["dtype"]])
            if raw:
                flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype)
            else:
                flat = torch.empty(0, dtype=dtype)
            tensors[name] = flat.reshape(entry["shape"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(file)) from None
    return tensors
