"""A gain that is only there for tensors that were seen before does not count."""

from __future__ import annotations

import pytest

from .project import KERNEL, Project
from .sources import begun

CASES = """\
import pytest
import torch
from kernels.doubled import doubled


@pytest.mark.kopt(schema="memory")
def test_doubled(kopt):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(64, 64),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": 64},
        nbytes=1 << 15,
    )
"""
PLAIN = """\
import time

import torch


def doubled(x):
    time.sleep(0.006)
    return x + x
"""
#: Keeps no result, only the time: no count of work or look at results tells it from an honest one.
FAMILIAR = """\
import time

import torch

_before = [0]


def doubled(x):
    time.sleep(0.005 if _before[0] == x.data_ptr() else 0.0085)
    _before[0] = x.data_ptr()
    return x + x
"""


@pytest.mark.long
def test_a_gain_that_fresh_tensors_do_not_have_is_rolled_back(empty: Project) -> None:
    begun(empty, CASES, PLAIN)
    empty.write(KERNEL, FAMILIAR)
    run = empty.round(2)
    assert run.code == 8, run.text
    verdict = empty.verdict(2)
    assert verdict["decision"] == "ROLLED_BACK"
    assert "a gain that fresh tensors do not have does not count: reuse-gain:" in verdict["reason"]
    summary = (empty.campaign / "rounds/round-2/summary.md").read_text()
    (line,) = [found for found in summary.splitlines() if "Benchmark gain" in found]
    assert "points only with reused tensors" in line
