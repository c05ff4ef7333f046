"""Choosing an engine for a case, and the inputs it goes round so that the cache is cold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_kopt.errors import BadInput
from pytest_kopt.measure.device import EventsEngine, GraphEngine
from pytest_kopt.measure.engine import Block, Call, CaptureFailed, Engine
from pytest_kopt.measure.wall import InterpreterEngine, WallEngine

#: More sets than this cost more time to make than a colder cache is worth.
MOST_SETS = 64


def prepare(
    option: str,
    device: str,
    interpreted: bool,
    calls: Sequence[Call],
    cpu: WallEngine = WallEngine(),  # noqa: B008 - immutable
) -> Block:
    """Return a block timed by the engine that `option` names ("auto": the best there is).

    auto is graph replay where the calls can be captured, else a full queue; the wall clock on the
    CPU, with `cpu`. A named engine is used or fails: there is no quiet fallback. Raises
    CaptureFailed then, and BadInput for an engine that the device does not have.
    """
    if interpreted:
        return InterpreterEngine().prepare(calls)
    if device == "cpu":
        if option not in ("auto", "wall"):
            raise BadInput(f"engine {option!r} needs a GPU", where="--kopt-engine", legal="wall")
        return cpu.prepare(calls)
    if option == "auto":
        try:
            return GraphEngine().prepare(calls)
        except CaptureFailed:
            return EventsEngine().prepare(calls)
    engines: dict[str, Engine] = {
        "graph": GraphEngine(),
        "events": EventsEngine(),
        "wall": WallEngine(torch.cuda.synchronize),
    }
    if option not in engines:
        raise BadInput(f"engine {option!r} is unknown", where="--kopt-engine", legal=engines)
    return engines[option].prepare(calls)


def input_sets(make: Callable[[int], tuple[Any, ...]], device: str) -> list[tuple[Any, ...]]:
    """Return enough input sets to go round at least twice the L2 cache; one on the CPU.

    `make(i)` returns the i-th set of arguments. The pool is at least two sets on a GPU.
    """
    first = make(0)
    if device == "cpu":
        return [first]
    size = sum(x.numel() * x.element_size() for x in first if isinstance(x, torch.Tensor))
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    wanted = math.ceil(2 * cache / max(size, 1))
    return [first, *(make(i) for i in range(1, max(2, min(MOST_SETS, wanted))))]
