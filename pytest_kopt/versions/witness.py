"""The proof that a version ran its own code: one call under a profile hook.

Whatever a loader does, this is what makes its result trustworthy. Triton's kernels are not Python
frames when they run; their launcher is, and it names the function it launches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_kopt.versions.errors import NotLoadable

_EXTENSIONS = frozenset(Path(suffix).suffix for suffix in EXTENSION_SUFFIXES)


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


def check_untouched(call: Callable[[], object], changed: set[str]) -> None:
    """Raise NotLoadable when `call` runs code of a changed file after all."""
    touched = sorted(files_run(call) & changed)
    if touched:
        raise NotLoadable(f"the function reaches the changed {touched[0]}, though not by an import")


def check_moved(call: Callable[[], object], root: Path, changed: Iterable[str]) -> None:
    """Raise NotLoadable when a process that runs in a copy of `root` uses the original's code.

    An editable install, for one, leads back to it whatever sys.path says.
    """
    check_untouched(call, {str(root / path) for path in changed})
    for name, module in list(sys.modules.items()):
        file = Path(str(getattr(module, "__file__", None) or ""))
        if (
            file.suffix in _EXTENSIONS
            and root in file.parents
            and "site-packages" not in file.parts
        ):
            raise NotLoadable(f"{name!r} is the candidate's compiled {file.name}")


def check(call: Callable[[], object], own: set[str], other: set[str], who: str) -> None:
    """Raise NotLoadable unless `call` runs code of its own version and none of the other's."""
    seen = files_run(call)
    foreign = sorted(seen & other)
    if foreign:
        raise NotLoadable(f"the {who} ran the other version's {foreign[0]}")
    if not seen & own:
        raise NotLoadable(f"the {who} ran none of its own files")
