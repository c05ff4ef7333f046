"""How much work a call does, counted and not timed: the same content must cost the same twice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


@dataclass(frozen=True, slots=True)
class Work:
    """What one call did.

    `ops` are dispatched ATen operators that compute or move data (views and allocations left out),
    `launches` starts of Triton kernels, `nbytes` the bytes of the operators' tensor arguments and
    results, `calls` C functions called from Python (numpy's and compiled ones are seen nowhere
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
    """Return a counter, of a class made anew where the compiler is loaded: torch hides then."""
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
            launches += starts and not _is_inlined(frame)

    with counter, profile_hook(hook):
        call()
    # What Triton's interpreter calls depends on the content: on a mask, or on the size of a group.
    calls = 0 if interpreted else calls
    return Work(counter.ops, launches, counter.nbytes, calls, frozenset(code))


def _is_inlined(frame: FrameType) -> bool:
    """Say whether the interpreter runs a function that a kernel calls, which is no launch."""
    return type(frame.f_locals.get("self")).__name__ == "InterpretedFunction"


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
