"""A case that takes the GPU's context along costs its own row and a process, nothing else.

The GPU's answer is emulated: after the "illegal access" every call of the process fails.
"""

from __future__ import annotations

import os
from pathlib import Path

from .project import KERNEL, SCRIPT, Project
from .sources import doubled_kernel
from .test_crashes import ERROR_CELLS, is_a_repair, rows

STICKY = """
_unharmed = doubled
lost = False


def doubled(x):
    global lost
    lost = lost or x.shape[0] == 2
    if lost:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return _unharmed(x)
"""

EMULATED = """
import sys

from pytest_kopt.devices import context


def is_lost(kind):
    gone = sys.modules["kernels.doubled"].lost
    if gone:
        with open("measured/lost.log", "a") as log:
            print("lost", file=log)
    return gone


context.is_lost = is_lost
"""


def test_a_sticky_error_costs_one_case(
    started: Project, mode: tuple[str, ...], tmp_path: Path
) -> None:
    """Its row is ERROR and stands, it is not run again, and the rest is measured elsewhere."""
    version = doubled_kernel() + STICKY
    started.write(KERNEL, version)
    # Outside of the project: what stands in it is part of the harness.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "emulated.py").write_text(EMULATED)
    run = started.pytest(
        *("--kopt-round", "2", *mode),
        PYTHONPATH=f"{elsewhere}:{os.environ.get('PYTHONPATH', '')}",
        PYTEST_PLUGINS=f"{Path(SCRIPT).stem},emulated",
    )
    is_a_repair(started, run, version)
    gone, healthy = rows(started)
    assert gone == f"doubled rows=2 columns=8,2,8,{ERROR_CELLS}"
    assert healthy.startswith("doubled rows=4 columns=8,4,8,PASS,16.0,0.0,8.0,0.0,")
    assert "illegal memory access" in started.evidence(2)["results"][0]["diagnosis"]
    assert started.read("measured/lost.log").split() == ["lost"], "it was run once"
    session = started.evidence(2)["session"]
    assert session["lost"] == [] and session["dead"] == {}
