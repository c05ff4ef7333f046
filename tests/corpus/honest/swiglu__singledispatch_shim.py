"""Dispatch by type with a deprecated alias, optional libraries and a timing statistic per shape."""

from __future__ import annotations

import functools
import time
import warnings
from collections import defaultdict
from typing import Any

import torch

try:  # a fused extension where it is installed
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
except ImportError:
    LigerSiLUMulFunction = None

try:
    import numpy as np
except ImportError:  # pragma: no cover
    np = None

NEEDS = "cpu"
__all__ = ["swiglu", "timings"]

#: Seconds spent in the calls of each shape: total and count.
timings: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0, 0])


def _timed(function):
    @functools.wraps(function)
    def wrapper(gate, up):
        begin = time.perf_counter()
        try:
            return function(gate, up)
        finally:
            entry = timings[tuple(gate.shape)]
            entry[0] += time.perf_counter() - begin
            entry[1] += 1

    return wrapper


@functools.singledispatch
def _apply(gate: Any, up: Any):
    raise TypeError(f"swiglu does not support {type(gate).__name__}")


@_apply.register
def _(gate: torch.Tensor, up: torch.Tensor):
    if gate.shape != up.shape:
        gate, up = torch.broadcast_tensors(gate, up)
    if LigerSiLUMulFunction is not None and gate.is_cuda:
        return LigerSiLUMulFunction.apply(gate, up)
    return torch.nn.functional.silu(gate).mul_(up)


if np is not None:

    @_apply.register
    def _(gate: np.ndarray, up: np.ndarray):
        return gate / (1 + np.exp(-gate)) * up


@_timed
def swiglu(gate, up):
    return _apply(gate, up)


def __getattr__(name: str):
    if name == "fused_swiglu":
        warnings.warn("fused_swiglu is now swiglu", DeprecationWarning, stacklevel=2)
        return swiglu
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _main() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=10)
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    gate, up = torch.randn(64, 64), torch.randn(64, 64)
    expected = torch.nn.functional.silu(gate.double()) * up.double()
    for _ in range(asked.repeat):
        torch.testing.assert_close(swiglu(gate, up).double(), expected, rtol=1e-5, atol=1e-5)
    print({shape: total / count for shape, (total, count) in timings.items()})


if __name__ == "__main__":
    _main()
