"""Whether this process can still use its GPU: an illegal access takes the context along."""

from __future__ import annotations

import sys


def is_lost(kind: str) -> bool:
    """Say whether the GPU answers nothing but errors; asked after a case that failed.

    Such an error is sticky: every later call of the process fails with it, so only a fresh process
    helps.
    """
    torch = sys.modules.get("torch")
    if kind != "cuda" or torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
