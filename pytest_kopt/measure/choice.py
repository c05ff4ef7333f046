"""Choosing an engine for a case."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pytest_kopt.errors import BadInput
from pytest_kopt.measure.engine import BLOCK_MS, Before, Block, Call, CaptureFailed
from pytest_kopt.measure.gpu import DoBenchBlock, EventsBlock, GraphBlock, GraphMemory
from pytest_kopt.measure.wall import WallBlock, WallEngine, interpreted_block, keep_freed_memory


def prepare(
    option: str,
    device: str,
    interpreted: bool,
    calls: Sequence[Call],
    before: Before = None,
    memory: GraphMemory | None = None,
    block_ms: float = BLOCK_MS,
) -> Block:
    """Return a block timed by the engine that `option` names ("auto": the best there is).

    auto is graph replay where the calls can be captured, its results in `memory`, else a full
    queue, both in blocks of `block_ms`. On the CPU it is the wall clock, each call once. A named
    engine is used or fails: there is no quiet fallback. Raises CaptureFailed then, and BadInput for
    an engine that the device does not have.
    """
    if interpreted:
        return interpreted_block(calls, before)
    if device == "cpu":
        if option not in ("auto", "wall"):
            raise BadInput(f"engine {option!r} needs a GPU", where="--kopt-engine", legal="wall")
        keep_freed_memory()
        return WallBlock(calls, len(calls), before=before)
    if option == "auto":
        try:
            return GraphBlock(calls, before, memory, block_ms)
        except CaptureFailed as error:
            block = EventsBlock(calls, before, block_ms)
            block.not_captured = str(error)
            return block
    engines: dict[str, Callable[[], Block]] = {
        "graph": lambda: GraphBlock(calls, before, memory, block_ms),
        "events": lambda: EventsBlock(calls, before, block_ms),
        "wall": lambda: WallEngine(torch.cuda.synchronize).prepare(calls, before),
        "do_bench": lambda: DoBenchBlock(calls),
    }
    if option not in engines:
        raise BadInput(f"engine {option!r} is unknown", where="--kopt-engine", legal=engines)
    return engines[option]()
