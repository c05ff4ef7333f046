"""Whether a call ran Triton kernels in Triton's interpreter, where timing means nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pytest_kopt.honesty.work import INTERPRETER
from pytest_kopt.profile_hook import profile_hook


class InterpreterWatch:
    """Set to True once a frame of Triton's interpreter has run."""

    def __init__(self) -> None:
        self.seen = False


@contextmanager
def watch_interpreter() -> Iterator[InterpreterWatch]:
    """Watch this thread for the interpreter until it is seen; costs nothing without Triton.

    A profile hook, because the kernel may reach Triton through any wrapper, and because nothing of
    Triton has to be patched for it.
    """
    watch = InterpreterWatch()
    if INTERPRETER not in sys.modules:
        yield watch
        return

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        # torch.compile asks that module for things; a launch is a call of its executor.
        where = frame.f_globals.get("__name__"), frame.f_code.co_name
        if event == "call" and where == (INTERPRETER, "__call__"):
            watch.seen = True
            put_back()

    with profile_hook(hook) as put_back:
        yield watch
