"""Exit codes of a kopt session."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of the process; codes not named here are pytest's own.

    A session has one verdict and returns its code: the rules of a decision ask in the order 4, 10,
    11, 1, 8, 9, 0, and the first that holds ends them.
    """

    OK = 0
    FAILED = 1
    USAGE = 4
    ROLLED_BACK = 8
    INCONCLUSIVE = 9
    NO_IDLE_GPU = 10
    INCOMPLETE = 11
