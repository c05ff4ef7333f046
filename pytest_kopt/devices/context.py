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
from pytest_kopt.errors import BadInput

_MOST_SHIFTED_MIB = 64
#: Held by who wakes the device.
_WAKING = threading.Lock()


def rouse(kind: str) -> None:
    """Do once, while nothing is timed, what the first case would wait for: imports, a product.

    BadInput where torch cannot begin to use the device.
    """
    with _WAKING:
        _woken(kind)


def begin_to_rouse(kind: str) -> None:
    """Do so in a thread that `rouse` waits for, once more where it was done before."""
    _woken.cache_clear()

    def wake() -> None:
        # What fails here fails once more in `rouse`, where somebody hears of it.
        with suppress(Exception):
            rouse(kind)

    threading.Thread(target=wake, daemon=True).start()


@functools.cache
def _woken(kind: str) -> object:
    """Wake a device; return memory of random size, so that forks' buffers do not land alike."""
    import torch

    with suppress(ImportError):
        import triton  # noqa: F401
    try:
        device = in_use(discover(kind)).uuid
    except (RuntimeError, AssertionError) as error:
        # Else the kernel would be blamed for a GPU that is gone.
        fix = "look whether the system still lists the GPU, and run this again"
        why = str(error).partition("\n")[0].rstrip(".")
        raise BadInput(f"torch cannot use the GPU: {why}", fix=fix) from None
    announce(device)
    with checking_lock(device):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            square = torch.ones(64, 64, dtype=dtype, device=kind)
            # compute-sanitizer takes what a product of bfloat16 wrote for unwritten memory.
            torch.matmul(square, square)
            square.sum().item()
        del square
        torch.cuda.empty_cache()
        size = random.SystemRandom().randrange(1, _MOST_SHIFTED_MIB) << 20
        return torch.empty(size, dtype=torch.uint8, device=kind)


def is_lost(kind: str) -> bool:
    """Say whether the GPU answers nothing but errors, as after an illegal access: for good."""
    torch = sys.modules.get("torch")
    if kind != "cuda" or torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
