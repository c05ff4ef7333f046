"""Memory that holds no earlier answer: fresh memory is full of NaN, results are wiped out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import once
from pytest_kopt.measure.wall import LARGEST_KEPT
from pytest_kopt.numerics.nested import storages, tensors

#: What torch.use_deterministic_algorithms calls; that one imports the compiler first, for seconds.
_set_deterministic = torch._C._set_deterministic_algorithms
#: Blocks of a size that are filled and freed, so that the allocator has them at hand.
_BLOCKS = 3


def poison_freed(like: Iterable[torch.Tensor]) -> None:
    """Leave freed blocks full of NaN for the allocator to hand out, of these tensors' sizes.

    Works where allocators reuse blocks: always in CUDA's caching allocator, mostly on the CPU,
    whose large blocks go back to the system.
    """
    for tensor in {(t.dtype, t.device, t.numel()): t for t in like}.values():
        if tensor.device.type == "cpu" and tensor.nbytes >= LARGEST_KEPT:
            continue
        count = max(1, tensor.numel() * tensor.element_size() // 4)
        blocks = [torch.full((count,), math.nan, dtype=torch.float32, device=tensor.device)]
        blocks += [blocks[0].clone() for _ in range(_BLOCKS - 1)]
        del blocks


def wipe(results: Any, kept: Sequence[Any]) -> None:
    """Write zeros over tensors, but for those that share memory with what is `kept`."""
    memory = storages(kept)
    with torch.inference_mode():
        for tensor in tensors(results):
            if tensor.layout is torch.strided and not storages(tensor) & memory:
                once(tensor).zero_()


@contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Have torch fill everything that it allocates uninitialised: NaN, or the largest integer.

    torch does so in deterministic mode only, which therefore is on meanwhile, with its warnings
    about other operators silenced. Compiled functions are compiled anew for that mode.
    """
    fill: Any = torch.utils.deterministic
    mode = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = fill.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _set_deterministic(True, warn_only=True)
        fill.fill_uninitialized_memory = True
        try:
            yield
        finally:
            fill.fill_uninitialized_memory = filled
            _set_deterministic(mode, warn_only=warn_only)


#: Right in ordinary memory, wrong where allocations hold NaN.
UNWRITTEN = Finding(
    "unwritten-output",
    "the result is wrong when fresh memory holds NaN: part of it is never written",
    advice="write every element: fresh memory may hold anything",
    rejects=False,
)
