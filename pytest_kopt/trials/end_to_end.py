"""The worth of a kernel's gain in a whole program: the manifest's `e2e_command` for two versions.

Each version lies in a tree of its own that stands for the project. The command runs in both in
turns and prints what a run took. The figure stands next to the kernels' gain and judges nothing.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.decide.inference import SHAPE_LEVEL, Estimate, replica_ratio
from pytest_kopt.decide.verdict import EndToEnd
from pytest_kopt.libraries import session_path
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.trials.trees import Trees

#: So many turns of four runs at least and at most, and the half interval in percent that is enough.
_LEAST, _MOST, _ENOUGH_PCT = 3, 6, 0.25
_BEFORE, _NOW = "incumbent", "candidate"
#: Runs of the versions until what drifts evenly cancels.
_TURN = (_BEFORE, _NOW, _NOW, _BEFORE)


def measure(
    command: ProjectCommand, trees: Trees, before: KernelVersion, now: KernelVersion
) -> EndToEnd:
    """Return both versions' figures; NotComparable where a run fails or prints no number."""
    files: dict[str, bytes | None] = dict.fromkeys((*before.files, *now.files))
    places = {
        name: trees.tree({**files, **version.sources}, copies_sources=True)
        for name, version in ((_BEFORE, before), (_NOW, now))
    }

    def run(name: str) -> float:
        tree = places[name]
        failure, output = command.run(tree.place, {"PYTHONPATH": _python_path(*tree.copy)})
        if failure:
            raise NotComparable(failure)
        return last_number(output)

    return in_turns(command.text, run)


def in_turns(command: str, run: Callable[[str], float]) -> EndToEnd:
    """Run both versions in turns until their ratio is known well enough, or often enough.

    `run` runs the version of this name and returns what it took. A first run of each is not
    counted, as it may compile. How often is decided by the interval's width, never by where it
    lies.
    """
    for name in (_BEFORE, _NOW):
        run(name)
    turns: list[list[tuple[str, float]]] = []
    while True:
        turns.append([(name, run(name)) for name in _TURN])
        if len(turns) < _LEAST:
            continue
        ratios = [replica_ratio([turn], _NOW, _BEFORE) for turn in turns]
        estimate = Estimate.of(ratios)
        width = estimate.upper(SHAPE_LEVEL) - estimate.lower(SHAPE_LEVEL)
        if len(turns) == _MOST or width <= 2 * math.log1p(_ENOUGH_PCT / 100):
            break
    took: Mapping[str, list[float]] = {
        version: [figure for turn in turns for name, figure in turn if name == version]
        for version in (_BEFORE, _NOW)
    }
    return EndToEnd(
        command=command,
        candidate=statistics.median(took[_NOW]),
        incumbent=statistics.median(took[_BEFORE]),
        confidence=1 - 2 * SHAPE_LEVEL,
        runs=len(_TURN) // 2 * len(turns),
        **estimate.figures(SHAPE_LEVEL),
    )


def last_number(output: str) -> float:
    """Return the last line that is a number above 0, or raise NotComparable."""
    for line in reversed(output.splitlines()):
        try:
            number = float(line)
        except ValueError:
            continue
        if number > 0 and math.isfinite(number):
            return number
    raise NotComparable("it printed no line that is a number above 0")


def _python_path(root: Path, tree: Path) -> str:
    """Return where the command finds modules: in the tree whatever this process has in the root."""
    inside = [
        str(tree / path.relative_to(root))
        for path in (Path(entry).resolve() for entry in session_path() if entry)
        if path.is_relative_to(root) and "site-packages" not in path.parts
    ]
    return os.pathsep.join(
        dict.fromkeys(filter(None, (str(tree), *inside, os.environ.get("PYTHONPATH", ""))))
    )
