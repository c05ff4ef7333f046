"""A whole program, run in turns with both versions of its kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.decide.verdict import Aggregate, Decision, EndToEnd, Verdict
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.show.words import end_to_end
from pytest_kopt.trials.end_to_end import in_turns, last_number, measure
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.trials.trees import Trees

BEFORE, NOW = "incumbent", "candidate"
TURN = [BEFORE, NOW, NOW, BEFORE]


class Program:
    """A program whose n-th run takes what `took` says of its version."""

    def __init__(self, took: Callable[[str, int], float]) -> None:
        self._took = took
        self.ran: list[str] = []

    def run(self, name: str) -> float:
        self.ran.append(name)
        return self._took(name, len(self.ran))


def test_versions_take_turns_after_a_run_that_is_not_counted() -> None:
    program = Program(
        lambda name, number: 9e9 if number <= 2 else {BEFORE: 105.0, NOW: 100.0}[name]
    )
    figure = in_turns("step", program.run)
    assert program.ran == [BEFORE, NOW, *TURN * 3]
    assert (figure.incumbent, figure.candidate, figure.runs) == (105.0, 100.0, 6)
    assert figure.change_pct == pytest.approx(5.0)
    assert figure.low_pct == pytest.approx(5.0) and figure.high_pct == pytest.approx(5.0)


def test_noise_takes_more_turns_up_to_a_bound() -> None:
    program = Program(lambda _, number: 100.0 * (1.1 if number % 3 else 1.0))
    figure = in_turns("step", program.run)
    assert program.ran == [BEFORE, NOW, *TURN * 6]
    assert figure.low_pct < 0 < figure.high_pct


def test_a_machine_that_slows_down_evenly_moves_no_figure() -> None:
    program = Program(lambda _, number: 100.0 * 1.02**number)
    assert in_turns("step", program.run).change_pct == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("output", "number"),
    [("1.5\n", 1.5), ("step 3: 7 ms\n12\n3.25e2\nbye\n", 325.0), ("4\n\n", 4.0)],
)
def test_the_last_line_that_is_a_number_counts(output: str, number: float) -> None:
    assert last_number(output) == number


@pytest.mark.parametrize("output", ["", "7 ms\n", "0\n", "-1\nnan\ninf\n"])
def test_output_without_a_time_is_none(output: str) -> None:
    with pytest.raises(NotComparable, match="no line that is a number above 0"):
        last_number(output)


def in_both(root: Path, program: str) -> EndToEnd:
    """Run a program of a project with kernels that cost 2 and, now, 1."""
    for path, text in {
        "kernels/__init__.py": "",
        "kernels/step.py": "COST = 2\n",
        "models/__init__.py": "",
        "models/small.py": "from kernels.step import COST\n",
        "tools/run.py": program,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    before = KernelVersion.take(root, ["kernels/step.py"])
    (root / "kernels/step.py").write_text("COST = 1\n")
    now = KernelVersion.take(root, ["kernels/step.py"])
    command = ProjectCommand(f"{sys.executable} tools/run.py", is_confined=False)
    with ExitStack() as held:
        return measure(command, Trees(held, root.resolve()), before, now)


def test_each_version_runs_in_a_project_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the project itself is on the path, as an editable installation has it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    figure = in_both(tmp_path, "from models.small import COST\nprint('loss', 3)\nprint(COST)\n")
    assert (figure.incumbent, figure.candidate) == (2.0, 1.0)
    assert figure.change_pct == pytest.approx(100.0)


def test_a_program_that_fails_says_how(tmp_path: Path) -> None:
    with pytest.raises(NotComparable, match=r"ended with status 3\nno device"):
        in_both(tmp_path, "print('no device')\nraise SystemExit(3)\n")


def test_both_gains_stand_in_one_sentence() -> None:
    run = EndToEnd(
        command="python step.py", candidate=100.0, incumbent=100.6, change_pct=0.6, low_pct=0.4,
        high_pct=0.8, confidence=0.95, runs=6,
    )  # fmt: skip
    verdict = Verdict(
        decision=Decision.ACCEPTED, reason="", compare="paired", policy="primus",
        aggregate=Aggregate(metric="m", change_pct=48.0), e2e=run,
    )  # fmt: skip
    assert end_to_end(verdict) == (
        "+48.0 % in the kernels, +0.60 % [+0.40, +0.80] end to end: `python step.py` took "
        "100.6 -> 100.0 in 6 runs each"
    )
    assert end_to_end(verdict.model_copy(update={"e2e": None})) == ""
