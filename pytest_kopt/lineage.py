"""A process that runs kernels ends with the one that started it."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress

#: Of Linux's prctl(2).
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the system end this process with its parent, however that ends.

    A case that hangs would otherwise keep the device for as long as it may take. Strictly it is the
    thread that started this process whose end counts: each of ours outlives what it has started.
    """
    # Linux's alone; elsewhere its pipes end it, when it looks at them next.
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
