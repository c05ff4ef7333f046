"""torch.compile between cases: each case begins as in a process of its own."""

from __future__ import annotations

import sys


def forget_compiled() -> None:
    """Have torch.compile forget what it made: of one function it makes eight versions, no more."""
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()


def keep_graphs() -> None:
    """Have torch.compile let a backward run again on one graph, as loops here do."""
    from torch._functorch import config

    config.donated_buffer = False
