"""The Stop Summary (S4): why regressions in a row ended a campaign, and which they were."""

from __future__ import annotations

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.counters import Regression, count
from pytest_kopt.campaign.state import Attempt, Round
from pytest_kopt.campaign.stops import REGRESSIONS
from pytest_kopt.show.words import figure, markdown_table, percent

_HEADER = (
    *("Round", "Time", "Hypothesis", "Changed files", "Benchmark best -> candidate"),
    *("GPU time best -> candidate (us)", "Delta", "Notes"),
)


def stop_summary(campaign: Campaign, item: Round, attempt: Attempt) -> str:
    """Return the text for the attempt whose regression was one too many, "" for any other."""
    decided = attempt.decided
    if decided is None or REGRESSIONS not in decided.stops:
        return ""
    policy = campaign.policy()
    counted = count(campaign.state, policy, until=(item.number, attempt.number))
    number = campaign.state.incumbent_as_of(item.number)
    best = campaign.state.rounds[number] if number else None
    kept = best.verdict if best else None
    applied = best.attempts[kept.attempt].applied if best and kept else None
    total = kept.aggregate if kept else None
    return (
        f"- Stop time: {decided.time}\n"
        f"- Stop reason: {counted.regressions} measured regressions in a row\n"
        f"- Best: round-{number}, commit {(applied.git_commit if applied else None) or '-'}\n"
        f"- Best metrics: {f'{total.metric} {figure(total.candidate)}' if total else '-'}\n\n"
        f"{markdown_table(_HEADER, [_row(found) for found in counted.recent])}\n"
    )


def _row(found: Regression) -> list[str]:
    return [
        f"round-{found.round} attempt {found.attempt}",
        found.time,
        found.hypothesis or "not stated",
        ", ".join(found.files),
        f"{found.metric} {figure(found.incumbent)} -> {figure(found.candidate)}",
        f"{figure(found.incumbent_kernel_us)} -> {figure(found.candidate_kernel_us)}",
        percent(found.change_pct),
        found.points,
    ]
