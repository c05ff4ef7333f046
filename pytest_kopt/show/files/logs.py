"""The logs of a campaign for people, only ever appended to: logs/optimize.md and performance.md.

The first ends with the Final Report. The second has the baseline and what was kept, and the Stop
Summary. It lies in the project's root and goes into the commit of its round. So a row cannot name
its own commit: that is the one which adds the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.stops import count
from pytest_kopt.campaign.history.trend import NEXT_DIRECTIONS
from pytest_kopt.campaign.ledger import Decided, Final, FinalReport
from pytest_kopt.campaign.state import Round, Wait
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.figures import changed, figure
from pytest_kopt.honesty.transfer import ALLOWED_GAP_PCT
from pytest_kopt.show.templates import rendered
from pytest_kopt.show.words import AUDIT, REGRESSIONS, end_to_end, markdown_table, one_line, rows

PERFORMANCE = "performance.md"


def missing_entries(text: str, campaign: Campaign) -> str:
    """Return what `text` lacks; the anchor of each entry says what a run before a kill appended."""
    entries = ((f"<!-- {anchor} -->", entry) for anchor, entry in _entries(campaign))
    new = "".join(f"\n{anchor}\n{entry}" for anchor, entry in entries if anchor not in text)
    title = (
        "" if text else rendered("log_title.md.j2", name=campaign.name, manifest=campaign.manifest)
    )
    return title + new


def _entries(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """Yield each entry's anchor and text."""
    state, conditions = campaign.state, dict[str, str]()
    for _, attempt, decided in state.decided():
        conditions = decided.stops
        yield f"round-{attempt.round} attempt-{attempt.number}", _entry(campaign, attempt)
    for number, final in enumerate(state.finals, start=1):
        yield f"final-{number}", final_text(campaign.name, final)
    for number, wait in enumerate(state.waits, start=1):
        check = stops.lines({stops.NO_IDLE_GPU: str(wait.event)})
        summary = wait_summary(campaign, wait)
        yield (
            f"no-idle-gpu-{number}",
            rendered("log_stop.md.j2", check=check, stop_summary=summary),
        )
    if state.ended:
        check = stops.lines({**conditions, "T4": state.ended})
        yield "ended", rendered("log_stop.md.j2", check=check, stop_summary="")


def _entry(campaign: Campaign, attempt: Attempt) -> str:
    decided = attempt.outcome()
    decision = decided.decision
    is_undecided = decision.leaves_open or decision is Decision.INCONCLUSIVE
    return rendered(
        "log_entry.md.j2",
        attempt=attempt,
        decided=decided,
        notes=attempt.notes,
        best=campaign.state.incumbent_as_of(attempt.round),
        is_ineffective=not (decision.keeps or is_undecided),
        check=stops.lines(decided.stops) if decided.stops else [],
        stop_summary=stop_summary(campaign, decided),
    )


def outlook(report: FinalReport) -> list[str]:
    """Return what the terminal says of a report: the re-attribution and where to look next."""
    following = [f"next direction: {text}" for text in report.next_directions]
    if not report.is_attributed:
        return following
    parts = zip("SWR", (report.s_real_pct, report.w_real_pct, report.r_real_pct), strict=True)
    gains = ", ".join(f"{name}_real {changed(gain)}" for name, gain in parts)
    return [
        f"benchmark gain with fresh tensors {changed(report.real_pct)} ({gains}), inflation gap "
        f"{report.gap_pct:.3f} points",
        *following,
    ]


def final_text(campaign: str, final: Final) -> str:
    """Return the Final Report of a comparison of best and baseline."""
    audit = final.report.audit if final.report else []
    return rendered(
        "final_report.md.j2",
        campaign=campaign,
        final=final,
        report=final.report,
        e2e=end_to_end(final),
        audit=rows(audit, *AUDIT),
        unclaimed=[audited.round for audited in audit if audited.bucket is None],
        allowed_gap_pct=ALLOWED_GAP_PCT,
        next_directions=NEXT_DIRECTIONS,
    )


def missing_performance(text: str, campaign: Campaign) -> str:
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
    if stops.REGRESSIONS not in decided.stops:
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
        regressions=rows(counted.recent, *REGRESSIONS),
    )
