"""The GPU context of this process: waking it, and whether it can still be used."""

from __future__ import annotations

import functools
import random
import sys
import threading
from contextlib import suppress

from pytest_kopt.devices.lock import checking_lock
from pytest_kopt.devices.pinning import discover, in_use
from pytest_kopt.devices.processes import announce

_MOST_SHIFTED_MIB = 64


class _Waking:
    """A device of this process that wakes, or is awake."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._thread: threading.Thread | None = None
        #: Shifts later allocations by a random amount: forks have one layout of addresses, and
        #: buffers should not land alike in each.
        self._ballast: object = None

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._wake, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        if self._thread:
            self._thread.join()
        if self._ballast is None:
            self._ballast = _woken(self._kind)

    def _wake(self) -> None:
        # What fails here fails once more in `finish`, where somebody hears of it.
        with suppress(Exception):
            self._ballast = _woken(self._kind)


@functools.cache
def _waking(kind: str) -> _Waking:
    return _Waking(kind)


def rouse(kind: str) -> None:
    """Do what the first case would wait for, once: import torch, Triton and the matrix libraries.

    Holds the check's lock meanwhile, so that nothing is timed on the device; other processes may
    wake at the same time.
    """
    _waking(kind).finish()


def begin_to_rouse(kind: str) -> None:
    """Do so in a thread that `rouse` waits for, once more where it was done before."""
    _waking.cache_clear()
    _waking(kind).begin()


def _woken(kind: str) -> object:
    import torch

    with suppress(ImportError):
        import triton  # noqa: F401
    device = in_use(discover(kind)).uuid
    announce(device)
    with checking_lock(device):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            square = torch.ones(64, 64, dtype=dtype, device=kind)
            (square @ square).sum().item()
        del square
        torch.cuda.empty_cache()
        size = random.SystemRandom().randrange(1, _MOST_SHIFTED_MIB) << 20
        return torch.empty(size, dtype=torch.uint8, device=kind)


def is_lost(kind: str) -> bool:
    """Say whether the GPU answers nothing but errors; asked after a case that failed.

    An illegal access takes the context along: every later call of the process fails with the same
    error, so only a fresh process helps.
    """
    torch = sys.modules.get("torch")
    if kind != "cuda" or torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
