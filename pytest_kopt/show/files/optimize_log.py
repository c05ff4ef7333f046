"""logs/optimize.md: the campaign's log for people, only ever appended to, its Final Report last."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.final_report import NEXT_DIRECTIONS
from pytest_kopt.campaign.ledger import Final, FinalReport
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.figures import changed
from pytest_kopt.honesty.transfer import ALLOWED_GAP_PCT
from pytest_kopt.show.columns import AUDIT, rows
from pytest_kopt.show.files.performance_log import stop_summary, wait_summary
from pytest_kopt.show.templates import rendered


def missing_text(text: str, campaign: Campaign) -> str:
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
        audit=rows(audit, *AUDIT),
        unclaimed=[audited.round for audited in audit if audited.bucket is None],
        allowed_gap_pct=ALLOWED_GAP_PCT,
        next_directions=NEXT_DIRECTIONS,
    )
