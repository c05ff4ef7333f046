"""The work of a call, counted and not timed, and the least time that it can take.

The limits are the best that this device was seen to do on the spot, with a margin that no better
kernel makes up. Only bytes and FLOPs that no kernel can save are counted.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.nested import tensors
from pytest_kopt.profile_hook import profile_hook

INTERPRETER = "triton.runtime.interpreter"
_LAUNCHERS = {
    "triton.runtime.jit": "run",
    INTERPRETER: "__call__",
    "torch._inductor.runtime.triton_heuristics": "run",
}
#: Operators that move no data: views, metadata, and allocations.
_FREE = ("view", "alias", "detach", "slice", "select", "expand", "permute", "transpose", "t", "as_")
_FEWER_CALLS = 0.7
_ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
#: How much faster than its best copy or product a device might be. On a GPU that product is in
#: bfloat16, and fp4 has four times its rate.
_MARGIN = 4.0
PRODUCT_MARGIN = {"cpu": 4.0, "cuda": 8.0}
#: Copies within a processor's caches, and one that outweighs a launch.
_COPY_BYTES = {"cpu": (1 << 15, 1 << 20), "cuda": (1 << 25,)}
_SIDE = {"cpu": 256, "cuda": 4096}
_SECONDS, _AGAIN = 0.004, 10


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one call.

    `ops` are dispatched ATen operators that compute or move data (views and allocations left out),
    `launches` starts of Triton kernels, `nbytes` the bytes of the operators' tensor arguments and
    results. `calls` are C functions called from Python (numpy's and compiled ones are seen nowhere
    else; 0 where Triton's interpreter ran). `code` holds the code objects of all Python functions
    that ran.
    """

    ops: int
    launches: int
    nbytes: int
    calls: int
    code: frozenset[CodeType] = field(default=frozenset(), repr=False)

    @property
    def is_compiling(self) -> bool:
        """Whether the compiler of torch ran, which it does at first calls only."""
        return any("torch/_dynamo/convert_frame" in code.co_filename for code in self.code)


class Operator(NamedTuple):
    """One operator that torch ran, with what it was given and what it gave."""

    function: Any
    args: Any
    kwargs: Any
    result: Any


class QuietMode(TorchDispatchMode):
    """A dispatch mode that torch's compiler neither refuses to work under nor is imported for."""

    #: torch.cond and its like run their operators under the mode.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Have torch.compile go on as without it: it refuses to compile under a mode of users'."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say whether to hide from torch's compiler; doing so imports it, for seconds."""
        return "torch._dynamo" in sys.modules


class _Counter(QuietMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops = 0
        self.nbytes = 0
        self.seen: list[Operator] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(func, torch._ops.OpOverload):
            return result
        if self.seen is not None:
            self.seen.append(Operator(func, args, kwargs or {}, result))
        name = func.name().partition("::")[2].partition(".")[0]
        if not func.is_view and name not in _ALLOCATIONS and not name.startswith(_FREE):
            self.ops += 1
            moved = tensors([args, kwargs or {}, result])
            self.nbytes += sum(t.numel() * t.element_size() for t in moved)
        return result


def _counter() -> _Counter:
    """Return a counter, of a new class once the compiler is loaded: torch hides then."""
    if "torch._dynamo" not in sys.modules:
        return _Counter()

    class Hidden(_Counter):
        __torch_dispatch__ = _Counter.__torch_dispatch__

    return Hidden()


def work_of(call: Callable[[], object]) -> Work:
    """Run `call` once and return what it did; whatever it raises is passed on.

    A compiled function runs its compiled code, of which only the calls are counted.
    """
    counter = _counter()
    launches = calls = 0
    interpreted = False
    code: set[CodeType] = set()
    # Whether a line of Triton's own modules begins a launcher. Its interpreter calls a hundred
    # thousand functions for a launch, and to read a frame's code or an id is an audit event.
    lines: dict[tuple[str, int], bool] = {}

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal launches, calls, interpreted
        if event == "c_call":
            calls += 1
        elif event == "call":
            home = str(frame.f_globals.get("__name__"))
            where = home, frame.f_lineno
            starts = lines.get(where)
            if starts is None:
                code.add(frame.f_code)
                starts = _LAUNCHERS.get(home) == frame.f_code.co_name
                interpreted |= home == INTERPRETER
                if home.startswith("triton."):
                    lines[where] = starts
            # A function that a kernel calls, which the interpreter runs, is no launch.
            if starts and type(frame.f_locals.get("self")).__name__ != "InterpretedFunction":
                launches += 1

    with counter, profile_hook(hook):
        call()
    # What Triton's interpreter calls depends on the content: on a mask, or on the size of a group.
    calls = 0 if interpreted else calls
    return Work(counter.ops, launches, counter.nbytes, calls, frozenset(code))


def operators_of(call: Callable[[], Any]) -> tuple[Any, list[Operator]]:
    """Run `call` once; return its result and every operator that it had torch run, in order."""
    counter = _counter()
    counter.seen = []
    with counter:
        result = call()
    return result, counter.seen


def saves(repeated: Work, fresh: Work) -> bool:
    """Say whether a call on known content did less than one on fresh content.

    Trading one kind of work for another saves nothing. Operators, launches and bytes are exact. C
    functions are counted where a kernel computes by other means (numpy, an extension), and only a
    large difference says something: finalisers call some too.
    """
    if repeated.is_compiling or fresh.is_compiling:
        return False
    pair = (repeated.ops, repeated.launches, repeated.nbytes)
    against = (fresh.ops, fresh.launches, fresh.nbytes)
    if not all(a <= b for a, b in zip(pair, against, strict=True)):
        return False
    return pair != against or repeated.calls < _FEWER_CALLS * fresh.calls


@dataclass(frozen=True, slots=True)
class PhysicalLimits:
    """Bytes written and FLOPs per second that nothing on a device exceeds; 0 where not known."""

    bytes_per_s: float
    flops_per_s: float


def floor_ms(nbytes: float, flops: float, ceilings: PhysicalLimits) -> float:
    """Return the least time in ms of a call that writes `nbytes` and computes `flops`."""
    written = nbytes / ceilings.bytes_per_s if ceilings.bytes_per_s else 0.0
    computed = flops / ceilings.flops_per_s if ceilings.flops_per_s else 0.0
    return 1e3 * max(written, computed)


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
    """Say when a call took less time than its output or its product can take."""
    least = floor_ms(nbytes, flops, ceilings(device))
    # A busy host shows less than the device can do: it is looked at again before anything is said.
    for _ in range(_AGAIN if ms < least else 0):
        least = min(least, floor_ms(nbytes, flops, _measured(device)))
    if ms < least:
        yield Finding(
            "faster-than-physics",
            f"a call took {ms:.6g} ms; this device needs {least:.6g} ms at least for {nbytes:.4g} "
            f"bytes of output and {flops:.4g} FLOPs",
            advice="do all the work within the timed call",
        )


def _measured(device: str) -> PhysicalLimits:
    """Measure a device's ceilings: the best of a few copies, and of a product.

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
    flops_per_s = PRODUCT_MARGIN[device] * workers * product
    return PhysicalLimits(_MARGIN * workers * max(rates), flops_per_s)


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
