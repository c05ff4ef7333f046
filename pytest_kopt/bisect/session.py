"""One comparison of two commits: a session of the PR gate in a tree of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import NormalDist
from types import ModuleType

import pytest
from pydantic import ValidationError

from pytest_kopt.bisect.walk import Change
from pytest_kopt.decide.inference import log_ratio
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import CannotFinish
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options.declare import LOADED_BEFORE, STEP
from pytest_kopt.process_tree import end_with_parent

#: A runner's files are about the run as a whole, not about one of its comparisons.
_NOT_INHERITED = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
_RUN = "from pytest_kopt.bisect.session import main; main()"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a session said: the verdict, or why there is none."""

    verdict: Verdict | None
    reason: str

    @property
    def change(self) -> Change | None:
        """The change of the geometric mean, None where nothing was compared or can be."""
        verdict = self.verdict
        refused = verdict and verdict.decision is Decision.REJECTED_OVERFIT
        if verdict is None or verdict.decision.leaves_open or refused:
            return None
        total = verdict.aggregate
        if total is None:
            return Change()
        low, high, confidence = total.low_pct, total.high_pct, total.confidence
        assert total.change_pct is not None and low is not None and high is not None
        assert confidence is not None
        # The few processes of a session make its intervals wider than this; that errs on the side
        # of asking again.
        width = 2 * NormalDist().inv_cdf((1 + confidence) / 2)
        return Change(log_ratio(total.change_pct), (log_ratio(high) - log_ratio(low)) / width)

    @property
    def may_be_chance(self) -> bool:
        return self.verdict is not None and self.verdict.decision is Decision.INCOMPLETE


def compare(tree: Path, root: Path, base: str, words: Sequence[str], output: Path) -> Answer:
    """Compare `tree`, another work tree of `root`, with its ancestor `base` by the PR check.

    `words` go to pytest, which prints to `output`. CannotFinish: there is no idle GPU.
    """
    directory = tree / Path.cwd().resolve().relative_to(root)
    if not directory.is_dir():
        return Answer(None, f"it has no folder {directory.relative_to(tree)}")
    verdict_file = output.with_suffix(".json")
    verdict_file.unlink(missing_ok=True)
    check = ("--kopt-base", base, "--kopt-gate", "improve", "--kopt-allow-removed")
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN, *check, f"--kopt-verdict={verdict_file}", *words],
            cwd=directory,
            env=_environment(root, tree),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        code = process.wait()
    except KeyboardInterrupt as interrupt:
        # At a terminal it was interrupted as well. It ends in order.
        if interrupt.args:
            os.kill(process.pid, signal.SIGTERM)
        process.wait()
        raise
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    reason = _last_words(output)
    if code == ExitCode.NO_IDLE_GPU:
        raise CannotFinish(reason)
    try:
        verdict = Verdict.model_validate_json(verdict_file.read_text())
    except (OSError, ValidationError):
        return Answer(None, reason)
    return Answer(verdict, verdict.reason)


def main() -> None:
    """Run pytest as `python -m pytest` does, and end with the process that started it."""
    end_with_parent()
    sys.path[0] = os.getcwd()
    sys.exit(pytest.main([*sys.argv[1:], *LOADED_BEFORE], plugins=[ModuleType(STEP)]))


def _environment(root: Path, tree: Path) -> dict[str, str]:
    """Return this process's environment, its imports led from the project into its other tree."""
    env = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    variable = env.get("PYTHONPATH", "").split(os.pathsep)
    paths = {text: Path(text).resolve() for text in (*variable, *sys.path, *_editable()) if text}
    moved = {
        text: str(tree / path.relative_to(root))
        for text, path in paths.items()
        if path.is_dir()
        and path.is_relative_to(root)
        # An environment that lies in the project is no part of it.
        and not path.is_relative_to(Path(sys.prefix).resolve())
    }
    python_path = [moved.get(text, text) for text in paths if text in variable or text in moved]
    # A source of the same size may follow within the second that caches go by.
    return env | {"PYTHONPATH": os.pathsep.join(python_path), "PYTHONDONTWRITEBYTECODE": "1"}


def _editable() -> Iterator[str]:
    """Yield the folders of packages that were installed as editable: a path entry comes first."""
    for distribution in metadata.distributions():
        if '"editable": true' not in (distribution.read_text("direct_url.json") or ""):
            continue
        for name in (distribution.read_text("top_level.txt") or "").split():
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin:
                file = Path(spec.origin)
                yield str(file.parents[1] if spec.submodule_search_locations else file.parent)


def _last_words(log: Path) -> str:
    """Return the refusal in a session's output, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    refusal = next((line for line in lines if line.startswith("ERROR: ")), "")
    return refusal.removeprefix("ERROR: ") or (lines[-1].strip("= ") if lines else "no output")
