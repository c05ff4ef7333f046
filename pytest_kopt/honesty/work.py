"""The operators of a call, and the least time that it can take.

The limits are the best that this device was seen to do on the spot, with a margin that no better
kernel makes up. Only bytes and FLOPs that no kernel can save are counted.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_kopt.honesty.finding import Finding

INTERPRETER = "triton.runtime.interpreter"
#: How much faster than its best copy or product a device might be. On a GPU that product is in
#: bfloat16, and fp4 has four times its rate.
_MARGIN = 4.0
PRODUCT_MARGIN = {"cpu": 4.0, "cuda": 8.0}
#: Copies within a processor's caches, and one that outweighs a launch.
_COPY_BYTES = {"cpu": (1 << 15, 1 << 20), "cuda": (1 << 25,)}
_SIDE = {"cpu": 256, "cuda": 4096}
_SECONDS, _AGAIN = 0.004, 10


class Operator(NamedTuple):
    """One operator that torch ran, with what it was given and what it gave."""

    function: Any
    args: Any
    kwargs: Any
    result: Any


class _Listener(TorchDispatchMode):
    """A dispatch mode that torch's compiler neither refuses to work under nor is imported for."""

    #: torch.cond and its like run their operators under the mode.
    supports_higher_order_operators = True

    def __init__(self, hear: Callable[[Operator], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._hear = hear

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Have torch.compile go on as without it: it refuses to compile under a mode of users'."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say whether to hide from torch's compiler; doing so imports it, for seconds."""
        return "torch._dynamo" in sys.modules

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(func, torch._ops.OpOverload):
            self._hear(Operator(func, args, kwargs or {}, result))
        return result


def listening(hear: Callable[[Operator], object]) -> AbstractContextManager[object]:
    """Return what has every operator that torch runs heard, in order.

    It is of a new class once the compiler is loaded: torch hides then.
    """
    if "torch._dynamo" not in sys.modules:
        return _Listener(hear)

    class Hidden(_Listener):
        __torch_dispatch__ = _Listener.__torch_dispatch__

    return Hidden(hear)


def operators_of(call: Callable[[], Any]) -> tuple[Any, list[Operator]]:
    """Run `call` once; return its result and every operator that it had torch run, in order."""
    seen: list[Operator] = []
    with listening(seen.append):
        return call(), seen


def floor_ms(nbytes: float, flops: float, bytes_per_s: float, flops_per_s: float) -> float:
    """Return the least time in ms of a call that writes `nbytes` and computes `flops`."""
    return 1e3 * max(nbytes / bytes_per_s, flops / flops_per_s)


def written_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that tensors occupy; one that is there twice, or an element, counts once."""
    sizes = {}
    for tensor in tensors:
        # An expanded dim (stride 0) is one element in memory.
        extents = [
            n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or n == 0
        ]
        sizes[tensor.data_ptr(), tensor.shape] = math.prod(extents) * tensor.element_size()
    return sum(sizes.values())


def too_fast(ms: float, nbytes: float, flops: float, device: str) -> Iterator[Finding]:
    """Say when a call took less time than its output or its product can take.

    It is rule 8 of docs/honesty.md.
    """
    least = floor_ms(nbytes, flops, *ceilings(device))
    # A busy host shows less than the device can do: it is looked at again before anything is said.
    for _ in range(_AGAIN if ms < least else 0):
        least = min(least, floor_ms(nbytes, flops, *_measured(device)))
    if ms < least:
        yield Finding(
            "faster-than-physics",
            f"a call took {ms:.6g} ms; this device needs {least:.6g} ms at least for {nbytes:.4g} "
            f"bytes of output and {flops:.4g} FLOPs",
            advice="do all the work within the timed call",
        )


def _measured(device: str) -> tuple[float, float]:
    """Return bytes written and FLOPs per second that nothing on a device exceeds.

    Measured are the best of a few copies, and of a product.

    On the CPU one thread's rate counts for every core.
    """
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    workers = 1 if device == "cuda" else os.cpu_count() or 1
    rates = []
    for size in _COPY_BYTES[device]:
        source = torch.ones(size // 4, device=device)
        target = torch.empty_like(source)
        rates.append(size / _best(functools.partial(target.copy_, source), synchronize))
    side = _SIDE[device]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    left = torch.ones(side, side, device=device, dtype=dtype)
    product = 2 * side**3 / _best(functools.partial(torch.matmul, left, left), synchronize)
    return _MARGIN * workers * max(rates), PRODUCT_MARGIN[device] * workers * product


#: A device's ceilings, measured once in a process.
ceilings = functools.cache(_measured)


def _best(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Return the shortest of the times in seconds of a call, tried for a few milliseconds."""
    call()
    synchronize()
    best, begun = float("inf"), perf_counter()
    while perf_counter() - begun < _SECONDS:
        start = perf_counter()
        call()
        synchronize()
        best = min(best, perf_counter() - start)
    return best
