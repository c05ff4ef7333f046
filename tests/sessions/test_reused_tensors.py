"""A gain that is only there for tensors that were seen before does not count."""

from __future__ import annotations

import pytest

from .project import KERNEL, Project
from .sources import doubled_kernel

#: Keeps no result, only the time: no count of work or look at results tells it from an honest one.
#: By the scripted clock: what single calls take by a real one says nothing on a busy machine.
FAMILIAR = "spend({ms} * (not any(x is y for y in BEFORE))); BEFORE.append(x)"


@pytest.mark.parametrize("ms", [1250.0, 0.0])
def test_a_gain_that_fresh_tensors_do_not_have_is_rolled_back(started: Project, ms: float) -> None:
    """With the incumbent a forward and its backward take 1250 ms, here half of it and `ms` more."""
    started.write(KERNEL, doubled_kernel(125.0, first=FAMILIAR.format(ms=ms)) + "BEFORE = []\n")
    run = started.round(2)
    verdict = started.verdict(2)
    if not ms:
        assert (run.code, verdict["decision"]) == (0, "ACCEPTED"), run.text
        return
    assert run.code == 8, run.text
    assert verdict["decision"] == "ROLLED_BACK"
    assert "a gain that fresh tensors do not have does not count: reuse-gain:" in verdict["reason"]
    summary = (started.campaign / "rounds/round-2/summary.md").read_text()
    (line,) = [found for found in summary.splitlines() if "Benchmark gain" in found]
    assert "points only with reused tensors" in line
