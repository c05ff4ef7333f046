"""What a call leaves behind: a result that is not there yet, a process that does not rest."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pytest_kopt.cases.running.checking import LONG_SECONDS, Checking
from pytest_kopt.honesty import outputs
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.watching import background
from pytest_kopt.numerics.nested import tensors


def aftermath(checking: Checking) -> Iterator[Finding]:
    """See whether a result is there at the return, and whether the process comes to rest."""
    end = time.perf_counter() + LONG_SECONDS

    def call() -> None:
        if checking.is_short and time.perf_counter() < end:
            checking.call_unjudged()

    if checking.device == "cpu" and checking.is_short:
        yield from outputs.read_late(lambda: tensors(checking.call_unjudged()))
    yield from background.still_busy(call)
