"""Python's hook on calls, for the length of a block."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Hook = Callable[[FrameType, str, Any], None]


@contextmanager
def profile_hook(hook: Hook) -> Iterator[Callable[[], None]]:
    """Have this thread's frames told to `hook`; yields what puts the profiler before it back early.

    That may be cProfile (`pytest --profile`, `python -m cProfile`), which is itself no function and
    goes on by being enabled again.
    """
    previous: Any = sys.getprofile()

    def put_back() -> None:
        if sys.getprofile() is hook:
            sys.setprofile(previous if callable(previous) else None)
            if previous is not None and not callable(previous):
                previous.enable()

    sys.setprofile(hook)
    try:
        yield put_back
    finally:
        put_back()
