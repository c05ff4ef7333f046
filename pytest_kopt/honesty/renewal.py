"""New content and poisoned memory for calls, so that nothing a kernel kept is an answer.

A memo that compares every byte, and wakes after a dozen equal calls only, is right in every check
and answers nothing where content is new. Fresh memory is full of NaN.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from pytest_kopt.honesty import inputs
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.measure.wall import LARGEST_KEPT

#: How far from one the factors lie by which content is scaled, up or down, so that the rounding of
#: a narrow dtype does not undo it. A few elements change places as well: of a product the answer to
#: a multiple is known.
_NEAREST, _FARTHEST = 0.03, 0.125
_STEPS = 1 << 16
#: What torch.use_deterministic_algorithms calls; that one imports the compiler first, for seconds.
_set_deterministic = torch._C._set_deterministic_algorithms
#: Blocks of a size that are filled and freed, so that the allocator has them at hand.
_BLOCKS = 3
#: Right in ordinary memory, wrong where allocations hold NaN.
UNWRITTEN = Finding(
    "unwritten-output",
    ("the result is wrong if fresh memory holds NaN: the kernel does not write part of it"),
    advice="write every element of the result",
    rejects=False,
)


@functools.lru_cache(64)
def _places(seed: int, count: int, device: torch.device) -> torch.Tensor:
    """Return places of a flat tensor; all of a size share theirs, as drawing is slow."""
    # Of the size too, so that they do not depend on what else was asked for.
    generator = torch.Generator().manual_seed((seed + count) % (1 << 63))
    return inputs.places(count, generator).to(device)


class Renewal:
    """Writes content that follows from a seed into tensors, behind autograd's back."""

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        *,
        in_order: bool = False,
        in_columns: bool = False,
    ) -> None:
        """Take the floating-point ones as they are now; integers can be a structure.

        With `in_order`, and in what says everything twice, elements keep their places; with
        `in_columns` they change places with others of their column.
        """
        self._in_columns = in_columns
        floats = [inputs.once(tensor.data) for tensor in tensors if tensor.is_floating_point()]
        self._origins = [(tensor, tensor.clone()) for tensor in floats]
        self._mixed = [
            tensor
            for tensor in floats
            if not in_order and inputs.has_room(tensor) and not inputs.says_twice(tensor)
        ]

    def write(self, seed: int, places: int | None = None) -> None:
        """Write the content of a seed: the first one, scaled, with a few elements exchanged.

        Which ones the seed `places` says, by default the same one.
        """
        share = (seed >> 1) % _STEPS / _STEPS
        step = _NEAREST + share * (_FARTHEST - _NEAREST)
        factor = 1 + step if seed % 2 else 1 - step
        for tensor, origin in self._origins:
            if tensor.dtype in inputs.SCALABLE:
                torch.mul(origin, factor, out=tensor)
            else:
                tensor.copy_(origin)
        for tensor in self._mixed:
            drawn = _places(seed if places is None else places, tensor.numel(), tensor.device)
            if self._in_columns and tensor.ndim > 1:
                drawn = inputs.in_columns(drawn, tensor.shape[-1])
            inputs.exchange(tensor, drawn)


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


@functools.cache
def poison(dtype: torch.dtype) -> torch.Tensor:
    """Return the element, shape (1,), that `poisoned_allocations` fills memory with."""
    with poisoned_allocations():
        return torch.empty(1, dtype=dtype)


@contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Have torch fill everything that it allocates uninitialised: NaN, or the largest integer.

    torch does so in deterministic mode only, which therefore is on meanwhile, with its warnings
    about other operators silenced. Compiled functions are compiled again for that mode.
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
