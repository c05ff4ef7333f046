"""A gain that is only there for tensors that were seen before is not measured."""

from __future__ import annotations

import pytest

from .project import KERNEL, Project
from .sources import doubled_kernel

#: Keeps no result, only the time: no look at results tells it from an honest one.
FAMILIAR = "spend({ms} * (not any(x is y for y in BEFORE))); BEFORE.append(x)"


@pytest.mark.parametrize("ms", [1250.0, 0.0])
def test_a_timed_call_is_given_tensors_that_none_was_given(started: Project, ms: float) -> None:
    """With the incumbent a forward and its backward take 1250 ms, here half of it and `ms` more."""
    started.write(KERNEL, doubled_kernel(125.0, first=FAMILIAR.format(ms=ms)) + "BEFORE = []\n")
    run = started.round(2)
    code, decision = (8, "ROLLED_BACK") if ms else (0, "ACCEPTED")
    assert (run.code, started.verdict(2)["decision"]) == (code, decision), run.text
