"""Exit codes of a kopt session and which one wins when several hold."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns; codes not named here are pytest's own."""

    OK = 0
    FAILED = 1
    USAGE = 4
    ROLLED_BACK = 8
    INCONCLUSIVE = 9
    NO_IDLE_GPU = 10
    INCOMPLETE = 11


PRECEDENCE = (
    ExitCode.USAGE,
    ExitCode.NO_IDLE_GPU,
    ExitCode.INCOMPLETE,
    ExitCode.FAILED,
    ExitCode.ROLLED_BACK,
    ExitCode.INCONCLUSIVE,
    ExitCode.OK,
)


def strongest(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the code of `codes` that comes first in `PRECEDENCE` (OK when there is none)."""
    return min(codes, key=PRECEDENCE.index, default=ExitCode.OK)
