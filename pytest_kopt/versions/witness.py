"""The proof that a version ran its own code: one call under a profile hook.

Whatever a loader does, this is what makes its result trustworthy. Triton's kernels are not Python
frames when they run; their launcher is, and it names the function it launches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from pytest_kopt.versions.errors import NotLoadable


def files_run(call: Callable[[], object]) -> set[str]:
    """Return the source files whose code ran during `call`, Triton's kernels included."""
    seen: set[str] = set()

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        seen.add(frame.f_code.co_filename)
        if str(frame.f_globals.get("__name__", "")).startswith("triton."):
            launched = getattr(frame.f_locals.get("self"), "fn", None)
            code = getattr(launched, "__code__", None)
            if code is not None:
                seen.add(code.co_filename)

    previous = sys.getprofile()
    sys.setprofile(hook)
    try:
        call()
    finally:
        sys.setprofile(previous)
    return seen


def check(call: Callable[[], object], own: set[str], other: set[str], who: str) -> None:
    """Raise NotLoadable unless `call` runs code of its own version and none of the other's."""
    seen = files_run(call)
    foreign = sorted(seen & other)
    if foreign:
        raise NotLoadable(f"the {who} ran the other version's {foreign[0]}")
    if not seen & own:
        raise NotLoadable(f"the {who} ran none of its own files")
