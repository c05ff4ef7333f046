"""Loading anew in the same process: what is dropped before, and what should not be the same again.

Modules of the project, and with them both versions, their kernels, graphs and buffers, come and go;
what is installed stays, and so does what the process watches itself by.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Collection
from pathlib import Path

from pytest_kopt.versions.affected_modules import project_modules
from pytest_kopt.versions.errors import NotLoadable

#: How far the first allocations on the host are shifted, at most, in pages.
_PAGES = 512
_BALLAST: list[bytearray] = []


def differ() -> None:
    """Have no two loads draw the same random numbers or put their buffers at the same places."""
    random.seed()
    for name in ("torch", "numpy.random"):
        if name in sys.modules:
            sys.modules[name].seed()
    draw = random.SystemRandom()
    _BALLAST.extend(bytearray(draw.randrange(1, 4096)) for _ in range(draw.randrange(64)))
    _BALLAST.append(bytearray(4096 * draw.randrange(1, _PAGES)))


def forget(root: Path, changed: Collection[str], lasting: Collection[str]) -> None:
    """Drop the loaded modules below `root`, and what is kept of their kernels and buffers.

    Those named in `lasting` stay: plugins of pytest's were there before any kernel, and may have
    changed others. NotLoadable where one of them is a `changed` file, by its path below `root`.
    """
    import torch

    from pytest_kopt.cases.running.compiled import forget_compiled
    from pytest_kopt.measure import cold

    for name, path in project_modules(root).items():
        if name.partition(".")[0] == "pytest_kopt":
            continue
        if name not in lasting:
            # What pytest collected from it is still there, and would keep all that it holds.
            vars(sys.modules.pop(name)).clear()
        elif str(path.relative_to(root)) in changed:
            raise NotLoadable(f"module {name!r} was loaded by a plugin")
    forget_compiled()
    cold.capture_stream.cache_clear()
    cold.flusher.cache_clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    differ()
