"""logs/optimize.md: the campaign's log for people, only ever appended to."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.ledger import Decided
from pytest_kopt.campaign.state import Attempt, Round
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.figures import changed, figure
from pytest_kopt.show.files import final_report
from pytest_kopt.show.files.stop_summary import stop_summary, wait_summary
from pytest_kopt.show.words import bullets, page

_ENDED = "<!-- ended -->"


def missing_text(text: str, campaign: Campaign) -> str:
    """Return what has to be appended to the file's `text` so that every decision stands in it.

    Each entry carries an anchor, so that a run after a kill appends what is missing and only that.
    """
    parts = [] if text else [_title(campaign)]
    for item, attempt, decided in campaign.state.decided():
        anchor = f"<!-- round-{item.number} attempt-{attempt.number} -->"
        if anchor not in text:
            parts.append(f"\n{anchor}\n{_entry(campaign, item, attempt, decided)}")
            if decided.stops:
                parts.append(f"\n{_termination_check(decided.stops)}")
            summary = stop_summary(campaign, item, attempt)
            parts += [f"\n## Stop Summary\n\n{summary}"] * bool(summary)
    for number, final in enumerate(campaign.state.finals, start=1):
        anchor = f"<!-- final-{number} -->"
        if anchor not in text:
            parts.append(f"\n{anchor}\n{final_report.text(campaign.name, final)}")
    for number, wait in enumerate(campaign.state.waits, start=1):
        anchor = f"<!-- no-idle-gpu-{number} -->"
        if anchor not in text:
            check = _termination_check({stops.NO_IDLE_GPU: str(wait.event)})
            summary = wait_summary(campaign, wait)
            parts.append(f"\n{anchor}\n{check}\n## Stop Summary\n\n{summary}")
    ended = campaign.state.ended
    if ended and _ENDED not in text:
        *_, held = {}, *(decided.stops for _, _, decided in campaign.state.decided())
        parts.append(f"\n{_ENDED}\n{_termination_check({**held, 'T4': ended})}")
    return "".join(parts)


def _termination_check(held: Mapping[str, str]) -> str:
    return "## Termination Check\n\n" + "".join(f"{line}\n" for line in stops.lines(held))


def _title(campaign: Campaign) -> str:
    manifest = campaign.manifest
    told = {
        "Target operator": manifest.target_op,
        "Implementation language": manifest.target_lang,
        "Backend": manifest.target_backend,
        "Target GPU": manifest.target_gpu,
        "Campaign": campaign.name,
        "Start time": manifest.created,
    }
    title = f"{manifest.target_op} {manifest.target_backend} Optimization Log"
    return page(title, [("Basic Information", bullets(told.items()))])


def _entry(campaign: Campaign, item: Round, attempt: Attempt, decided: Decided) -> str:
    summary = f"rounds/round-{item.number}/summary.md"
    if decided.decision is Decision.BASELINE:
        trend = decided.trend
        told: dict[str, object] = {
            "Time": decided.time,
            "Forward aggregate": f"{figure(trend.forward_average)} {trend.unit}" if trend else "-",
            "Backward aggregate": figure(trend.backward_average) if trend else "-",
            "All Check": "PASS",
            "Detailed data": summary,
        }
        return f"## Baseline\n\n{bullets(told.items())}\n\n## Optimization History\n"
    notes = attempt.notes
    told = {
        "Time": decided.time,
        "Hypothesis": notes.hypothesis or "not stated",
        "Changes": notes.change or "not stated",
        "Result": changed(decided.aggregate.change_pct if decided.aggregate else None),
        "Decision": f"{decided.decision}: {decided.reason}",
        "Detailed data": summary,
    }
    best = campaign.state.incumbent_as_of(item.number)
    parts = [
        f"### round-{item.number} attempt {attempt.number} — {decided.decision} — "
        f"{notes.summary or notes.change or 'no description'}",
        bullets(told.items()),
        "#### Current Best",
        f"- round-{best}" if best else "- none yet",
    ]
    if notes.next:
        parts += ["#### Directions to Try", f"- [ ] {notes.next}"]
    undecided = decided.decision is Decision.INCONCLUSIVE
    if not (decided.decision.keeps or decided.decision.leaves_open or undecided):
        parts += [
            "#### Verified Ineffective Directions",
            f"- {notes.change or notes.hypothesis or 'not stated'} (round-{item.number}): "
            f"{notes.root_cause or decided.reason}",
        ]
    return "\n\n".join(parts) + "\n"
