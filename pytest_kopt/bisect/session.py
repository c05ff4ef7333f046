"""One comparison of two commits: a session of the PR gate in a tree of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from pytest_kopt.bisect.walk import Change
from pytest_kopt.decide.inference import log_ratio
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import CannotFinish
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.standalone.child_session import last_words, run, verdict_in
from pytest_kopt.standalone.made_trees import MadeTree


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
    made = MadeTree(root, tree)
    if not made.directory.is_dir():
        return Answer(None, f"it has no folder {made.directory.relative_to(tree)}")
    verdict_file = output.with_suffix(".json")
    verdict_file.unlink(missing_ok=True)
    check = ("--kopt-base", base, "--kopt-gate", "improve", "--kopt-allow-removed")
    words = (*check, f"--kopt-verdict={verdict_file}", *words)
    code = run(words, made, output, "step")
    if code == ExitCode.NO_IDLE_GPU:
        raise CannotFinish(last_words(output))
    verdict = verdict_in(verdict_file)
    return Answer(verdict, verdict.reason if verdict else last_words(output))
