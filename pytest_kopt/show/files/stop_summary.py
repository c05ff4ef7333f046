"""The Stop Summary: why regressions or no idle GPU stopped the work, best and regressions."""

from __future__ import annotations

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.counters import Regression, count
from pytest_kopt.campaign.history.stops import REGRESSIONS
from pytest_kopt.campaign.state import Attempt, Round, Wait
from pytest_kopt.figures import changed, figure
from pytest_kopt.show.words import bullets, markdown_table

_HEADER = (
    *("Round", "Time", "Hypothesis", "Changed files", "Benchmark best -> candidate"),
    *("GPU time best -> candidate (us)", "Delta", "Notes"),
)


def stop_summary(campaign: Campaign, item: Round, attempt: Attempt) -> str:
    decided = attempt.decided
    if decided is None or REGRESSIONS not in decided.stops:
        return ""
    return _summary(campaign, decided.time, (item.number, attempt.number))


def wait_summary(campaign: Campaign, wait: Wait) -> str:
    return _summary(campaign, wait.event.time, wait.after, f"no idle GPU, {wait.event}")


def _summary(campaign: Campaign, time: str, until: tuple[int, int], why: str = "") -> str:
    policy = campaign.policy()
    counted = count(campaign.state, policy, until)
    number = campaign.state.incumbent_as_of(until[0])
    best = campaign.state.rounds[number] if number else None
    kept = best.verdict if best else None
    applied = best.attempts[kept.attempt].applied if best and kept else None
    total = kept.aggregate if kept else None
    rows = [_row(found) for found in counted.recent]
    table = markdown_table(_HEADER, rows) if rows else "No measured regression since the best."
    commit = (applied.git_commit if applied else None) or "-"
    told = {
        "Stop time": time,
        "Stop reason": why or f"{counted.regressions} measured regressions in a row",
        "Best": f"{f'round-{number}' if number else '-'}, commit {commit}",
        "Best metrics": f"{total.metric} {figure(total.candidate)}" if total else "-",
    }
    return f"{bullets(told.items())}\n\n{table}\n"


def _row(found: Regression) -> list[str]:
    return [
        f"round-{found.round} attempt {found.attempt}",
        found.time,
        found.hypothesis or "not stated",
        ", ".join(found.files),
        f"{found.metric} {figure(found.incumbent)} -> {figure(found.candidate)}",
        f"{figure(found.incumbent_kernel_us)} -> {figure(found.candidate_kernel_us)}",
        changed(found.change_pct),
        found.points,
    ]
