"""Python's hooks on calls: one for the length of a block, and those that a call leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

Hook = Callable[[FrameType, str, Any], None]
#: So many tools can use `sys.monitoring`, since Python 3.12.
_TOOLS = 6
#: Makes calls from C, of which Python tells no hook: one that a call leaves is seen before it can
#: do its work and be gone.
FROM_C: Callable[[Any], Any] = partial.__call__


def hooks() -> list[Callable[[], object]]:
    """Return what tells which of its calls, C's among them, or lines Python tells to whom."""
    found: list[Callable[[], object]] = [partial(sys.getprofile), partial(sys.gettrace)]
    if monitoring := getattr(sys, "monitoring", None):
        found += [partial(monitoring.get_tool, i) for i in range(_TOOLS)]
        used = [i for i in range(_TOOLS) if monitoring.get_tool(i)]
        found += [partial(monitoring.get_events, i) for i in used]
    return found


def watched_call(call: Callable[[], Any]) -> tuple[Any, bool]:
    """Call; return what that gives, and whether it leaves a hook that was not there."""
    asks = hooks()
    before = [*map(FROM_C, asks)]
    result, *after = map(FROM_C, (partial(call), *asks))
    return result, any(now not in (then, None) for then, now in zip(before, after, strict=True))


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
