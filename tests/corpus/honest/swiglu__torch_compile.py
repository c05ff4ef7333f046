"""One compiled function per mode and dynamism, made when first asked for; eager if that fails."""

from __future__ import annotations

import functools
import os
import warnings

import torch
import torch.nn.functional as F

NEEDS = "cpu"
REQUIRES = "g++"

MODE = os.environ.get("SWIGLU_COMPILE_MODE", "default")


def _eager(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


@functools.cache
def _compiled(mode: str, dynamic: bool | None):
    try:
        return torch.compile(_eager, mode=mode, dynamic=dynamic, fullgraph=True)
    except RuntimeError as error:
        warnings.warn(f"torch.compile is not available: {error}", stacklevel=2)
        return _eager


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():
        return _eager(gate, up)
    return _compiled(MODE, False)(gate, up)
