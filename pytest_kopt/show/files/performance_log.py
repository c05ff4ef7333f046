"""performance.md: the baseline and what was kept, appended, and the Stop Summary.

It lies in the project's root and goes into the commit of the round that it tells of. So a row
cannot name its own commit: that is the one which adds the line.
"""

from __future__ import annotations

import re
from itertools import takewhile

from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.counters import count
from pytest_kopt.campaign.history.stops import REGRESSIONS
from pytest_kopt.campaign.ledger import Decided
from pytest_kopt.campaign.state import Round, Wait
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.figures import changed, figure
from pytest_kopt.show import columns
from pytest_kopt.show.columns import rows
from pytest_kopt.show.templates import rendered
from pytest_kopt.show.words import markdown_table, one_line

NAME = "performance.md"


def missing_text(text: str, campaign: Campaign) -> str:
    """Return what has to be appended to the file's `text`; several campaigns may share it."""
    added = ""
    for round, attempt, decided in campaign.state.decided():
        if round.is_open or not decided.performance_log:
            continue
        place = f"{campaign.name} round-{round.number}"
        if decided.decision.keeps and not re.search(rf"\| {re.escape(place)} \|", text):
            added += _table_row(text + added, _cells(campaign, round, attempt, decided, place))
        if summary := stop_summary(campaign, decided):
            added += _stopped(
                text, campaign, f"round-{round.number} attempt-{attempt.number}", summary
            )
    for number, wait in enumerate(campaign.state.waits, start=1):
        if wait.event.performance_log:
            summary = wait_summary(campaign, wait)
            added += _stopped(text, campaign, f"no-idle-gpu-{number}", summary)
    return added if text or not added else f"# Performance\n{added}"


def _stopped(text: str, campaign: Campaign, where: str, summary: str) -> str:
    anchor = f"<!-- {campaign.name} {where} -->"
    return "" if anchor in text else f"\n{anchor}\n## Stop Summary: {campaign.name}\n\n{summary}"


def _table_row(text: str, cells: dict[str, str]) -> str:
    """Return a row that goes on with the results which the text ends with, or begins a table."""
    last = list(takewhile(lambda line: line.startswith("|"), reversed(text.splitlines())))
    if last and last[-1].startswith(f"| {next(iter(cells))} "):
        return f"| {' | '.join(map(one_line, cells.values()))} |\n"
    return f"\n{markdown_table([cells])}\n"


def _cells(
    campaign: Campaign, round: Round, attempt: Attempt, decided: Decided, place: str
) -> dict[str, str]:
    notes, total, profiled = round.notes, decided.aggregate, decided.kernel_time
    baseline = decided.decision is Decision.BASELINE
    texts = [notes.tried, notes.key_finding]
    return {
        "Date": decided.time,
        "Commit": _commit(campaign, attempt, baseline),
        "Status": "baseline" if baseline else "keep",
        "Round": place,
        "Benchmark command": campaign.manifest.benchmark_command
        or f"pytest --kopt-campaign {campaign.name} --kopt-round {round.number}",
        "Target": notes.target_class or "global",
        "Kernel": (profiled.hottest if profiled else None) or "-",
        "Benchmark": f"{total.metric} {figure(total.candidate)}" if total else "-",
        "GPU time (us)": figure(profiled.candidate_us if profiled else None),
        "vs best": changed(total.change_pct if total else None),
        "Explanation": "; ".join(filter(None, texts))
        or ("baseline" if baseline else "not described"),
    }


def _commit(campaign: Campaign, attempt: Attempt, baseline: bool) -> str:
    if baseline:
        return ((attempt.applied and attempt.applied.git_commit) or "-")[:12]
    if campaign.repository is None or not campaign.manifest.git_commit:
        return "-"
    waived = attempt.settled and attempt.applied is None
    return "not committed" if waived else "the one that adds this line"


def stop_summary(campaign: Campaign, decided: Decided) -> str:
    if REGRESSIONS not in decided.stops:
        return ""
    return _summary(campaign, decided.time, (decided.round, decided.attempt))


def wait_summary(campaign: Campaign, wait: Wait) -> str:
    return _summary(campaign, wait.event.time, wait.after, f"no idle GPU, {wait.event}")


def _summary(campaign: Campaign, time: str, until: tuple[int, int], why: str = "") -> str:
    counted = count(campaign.state, campaign.policy(), until)
    number = campaign.state.incumbent_as_of(until[0])
    best = campaign.state.rounds[number].last if number else None
    return rendered(
        "stop_summary.md.j2",
        time=time,
        reason=why or f"{counted.regressions} measured regressions in a row",
        best=best,
        total=best.outcome().aggregate if best else None,
        regressions=rows(counted.recent, *columns.REGRESSIONS),
    )
