"""Replicas that load anew in a process that carried one before, in whole runs of the gate."""

from __future__ import annotations

from pathlib import Path

from tests.sessions.paired import PLAIN, Gate, kernel, project_at

#: As much faster as slower than the incumbent, in turns of the replicas that load it. Before the
#: second one come a check, the first, and what tries shapes near the declared ones.
IN_TURNS = """\
import os

_loads = os.open(os.environ["TRACE"] + ".loads", os.O_RDWR | os.O_CREAT)
_number = len(os.read(_loads, 1000))
os.write(_loads, b"+")
"""
COST = "250 * (1.25 if _number > 2 and _number % 2 else 0.8)"


def test_a_long_comparison_starts_half_as_many_processes(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    project.write(PLAIN, kernel(cost=COST, who="plain new", imports=IN_TURNS))
    done = Gate(project)()
    told = done.judged["replicas"]
    assert told["processes"] + told["reloads"] == 8 and told["reloads"] >= 2, done.run.text
    assert "after 8 replicas" in done.judged["reason"], done.run.text
    both = [who for who in done.processes.values() if {"old", "plain new"} <= who]
    # One of them tries shapes near the declared ones.
    assert len(both) == told["processes"] + 1


#: Equal in its first load, in the mean; from its second on the incumbent does everything twice.
HOLDS_OTHERS_UP = """
import sys
import clock

if hasattr(sys, "_was_here"):
    # In no file of this version, which would be noticed.
    exec(
        "def spend(milliseconds, who, spend=spend):\\n"
        "    spend(milliseconds * (1 if who.endswith('new') else 2), who)",
        vars(clock),
    )
sys._was_here = True
"""


def test_who_holds_the_incumbent_up_when_loaded_again_gains_nothing(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    imports = IN_TURNS + HOLDS_OTHERS_UP
    cost = COST.replace("1.25", "1.0625").replace("0.8", "0.9375")
    project.write(PLAIN, kernel(cost=cost, who="plain new", imports=imports))
    done = Gate(project)("--kopt-gate", "improve")
    assert done.judged["decision"] in ("INCONCLUSIVE", "REJECTED_OVERFIT"), done.run.text
