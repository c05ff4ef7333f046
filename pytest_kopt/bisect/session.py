"""One comparison of two commits: a session of the PR gate in a tree of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import NormalDist

import pytest
from pydantic import ValidationError

from pytest_kopt.bisect.walk import Change
from pytest_kopt.decide.inference import load_student, log_ratio
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.devices.visible import choose, interpreter_environment
from pytest_kopt.errors import CannotFinish
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options.declare import LOADED_BEFORE, STEP, device_of
from pytest_kopt.process_tree import end_with_parent
from pytest_kopt.processes.launcher import Launcher, hand_over

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


class Step:
    """A process that has imported what takes long, and waits for the two commits to compare."""

    def __init__(self, root: Path, tree: Path, words: Sequence[str]) -> None:
        """Start it for sessions in `tree`, another work tree of `root`, with pytest's `words`."""
        reading, writing = os.pipe()
        self._orders = os.fdopen(writing, "w")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN, str(reading)],
            cwd=tree,
            env=_environment(root, tree),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[reading],
        )
        os.close(reading)
        self._tell([str(tree / Path.cwd().resolve().relative_to(root)), *words])

    @property
    def has_ended(self) -> bool:
        try:
            self._process.wait(0)
        except subprocess.TimeoutExpired:
            return False
        return True

    def compare(self, base: str, output: Path) -> Answer:
        """Hold the tree against an ancestor in a session of the gate; CannotFinish: no idle GPU."""
        written = output.with_suffix(".json")
        written.unlink(missing_ok=True)
        output.write_bytes(b"")
        gate = ("--kopt-base", base, "--kopt-gate", "improve", "--kopt-allow-removed")
        try:
            self._tell([str(output), *gate, f"--kopt-verdict={written}"])
            code = self._process.wait()
        except KeyboardInterrupt as interrupt:
            # At a terminal it was interrupted as well. It ends in order.
            if interrupt.args:
                os.kill(self._process.pid, signal.SIGTERM)
            self._process.wait()
            raise
        finally:
            self._orders.close()
        if code == pytest.ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        said = _last_words(output)
        if code == ExitCode.NO_IDLE_GPU:
            raise CannotFinish(said)
        try:
            verdict = Verdict.model_validate_json(written.read_text())
        except (OSError, ValidationError):
            return Answer(None, said)
        return Answer(verdict, verdict.reason)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._orders.close()

    def _tell(self, words: Sequence[str]) -> None:
        with suppress(BrokenPipeError):
            self._orders.write(json.dumps(words) + "\n")
            self._orders.flush()


class _Plugin:
    """Has the session start its processes by a launcher that has begun to warm up."""

    def __init__(self, launcher: Launcher) -> None:
        # The name under which pluggy registers a plugin given to pytest.main.
        self.__name__ = STEP
        self._launcher = launcher

    def pytest_addoption(self, pluginmanager: pytest.PytestPluginManager) -> None:
        config = pluginmanager.get_plugin("pytestconfig")
        assert config is not None
        hand_over(self._launcher, config)


def main() -> None:
    """Run pytest as `python -m pytest` does, and end with the process that started it."""
    end_with_parent()
    orders = os.fdopen(int(sys.argv[1]))
    # Nothing is told of an end that was before.
    ends = select.poll()
    ends.register(orders, 0)
    if ends.poll(0):
        return
    directory, *words = json.loads(orders.readline())
    launcher = Launcher()
    # The commit to come may have a folder that this one lacks.
    if Path(directory).is_dir():
        launcher.warm(interpreter_environment(choose(device_of(words))), directory)
    from pytest_kopt.trials.pull_request import gate  # noqa: F401 - what the session will need

    load_student()
    if not (told := orders.readline()):
        return
    output, *options = json.loads(told)
    with open(output, "wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(directory)
    sys.path[0] = directory
    sys.argv[1:] = [*options, *words]
    sys.exit(pytest.main([*sys.argv[1:], *LOADED_BEFORE], plugins=[_Plugin(launcher)]))


def _environment(root: Path, tree: Path) -> dict[str, str]:
    """Return this process's environment, its imports led from the project into its other tree."""
    env = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    given = env.get("PYTHONPATH", "").split(os.pathsep)
    paths = {entry: Path(entry).resolve() for entry in (*given, *sys.path, *_editable()) if entry}
    moved = {
        entry: str(tree / path.relative_to(root))
        for entry, path in paths.items()
        if path.is_dir()
        and path.is_relative_to(root)
        # An environment that lies in the project is no part of it.
        and not path.is_relative_to(Path(sys.prefix).resolve())
    }
    led = [moved.get(entry, entry) for entry in paths if entry in given or entry in moved]
    # A source of the same size may follow within the second that caches go by.
    return env | {"PYTHONPATH": os.pathsep.join(led), "PYTHONDONTWRITEBYTECODE": "1"}


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
