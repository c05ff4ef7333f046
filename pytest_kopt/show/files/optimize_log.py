"""logs/optimize.md: the campaign's log for people, only ever appended to, its Final Report last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.final_report import NEXT_DIRECTIONS
from pytest_kopt.campaign.ledger import Decided, Final, FinalReport
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.figures import NONE, changed, changed_within, figure
from pytest_kopt.honesty.transfer import ALLOWED_GAP_PCT
from pytest_kopt.show.files.performance_log import stop_summary, wait_summary
from pytest_kopt.show.words import bullets, markdown_table, page


def missing_text(text: str, campaign: Campaign) -> str:
    """Return what `text` lacks; the anchor of each entry says what a run before a kill appended."""
    entries = ((f"<!-- {anchor} -->", entry) for anchor, entry in _entries(campaign))
    new = "".join(f"\n{anchor}\n{entry}" for anchor, entry in entries if anchor not in text)
    return new if text else _title(campaign) + new


def _entries(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """Yield what an anchor says, and the text below it."""
    state, held = campaign.state, dict[str, str]()
    for item, attempt, decided in state.decided():
        entry, held = _entry(campaign, item, attempt, decided), decided.stops
        if held:
            entry += f"\n{_termination_check(held)}"
        if summary := stop_summary(campaign, decided):
            entry += f"\n## Stop Summary\n\n{summary}"
        yield f"round-{item.number} attempt-{attempt.number}", entry
    for number, final in enumerate(state.finals, start=1):
        yield f"final-{number}", final_text(campaign.name, final)
    for number, wait in enumerate(state.waits, start=1):
        check = _termination_check({stops.NO_IDLE_GPU: str(wait.event)})
        summary = wait_summary(campaign, wait)
        yield f"no-idle-gpu-{number}", f"{check}\n## Stop Summary\n\n{summary}"
    if state.ended:
        yield "ended", _termination_check({**held, "T4": state.ended})


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


def outlook(report: FinalReport) -> list[str]:
    """Return what the terminal says of a report: the re-attribution and where to look next."""
    following = [f"next direction: {item}" for item in report.next_directions]
    if not report.is_attributed:
        return following
    parts = zip("SWR", (report.s_real_pct, report.w_real_pct, report.r_real_pct), strict=True)
    shown = ", ".join(f"{name}_real {changed(value)}" for name, value in parts)
    return [
        f"benchmark gain with fresh tensors {changed(report.real_pct)} ({shown}), inflation gap "
        f"{report.gap_pct:.3f} points",
        *following,
    ]


def final_text(campaign: str, final: Final) -> str:
    return "## Final Report\n\n" + "".join(f"{line}\n" for line in _final_lines(campaign, final))


def _final_lines(campaign: str, final: Final) -> Iterator[str]:
    total, report = final.aggregate, final.report
    change = changed_within(total.change_pct, total.low_pct, total.high_pct) if total else NONE
    told = {
        "Time": final.time,
        "Best version": f"round-{final.best}",
        "Best against baseline, side by side": change,
        "Decision": f"{final.decision}: {final.reason}",
    }
    yield bullets(told.items())
    if report is None:
        return
    lost = f"{report.rolled_back} rolled back"
    if report.inconclusive:
        lost += f", {report.inconclusive} of them inconclusive"
    yield f"- Rounds: {report.accepted} accepted, {lost}"
    if not report.is_attributed:
        yield "- Transfer: no bucket was claimed and no cache found; the gain is as measured"
    for title, items in (
        ("Effective Directions", report.effective),
        ("Ineffective Directions", report.ineffective),
    ):
        yield from ("", f"### {title}", "", *(f"- {item}" for item in items or ["none"]))
    if report.is_attributed:
        yield from ("", "### Real-training applicability audit", "")
        yield from _audit_lines(campaign, report)
    yield from ("", "### Next Directions", "")
    found = report.next_directions
    yield from (f"{place}. {item}" for place, item in enumerate(found, start=1))
    if len(found) < NEXT_DIRECTIONS:
        yield (
            f"- Only {len(found)} of {NEXT_DIRECTIONS}: no note names another, and knowledge/ has "
            "none for this op; draw them from its literature"
        )


def _audit_lines(campaign: str, report: FinalReport) -> Iterator[str]:
    yield markdown_table(
        {
            "Round": f"round-{item.round}",
            "Bucket": item.bucket or "-",
            "Benchmark gain": changed(item.benchmark_pct),
            "With fresh tensors": changed(item.credited_pct),
            "Decision": item.decision,
        }
        for item in report.audit
    )
    yield ""
    gains = {
        "S_real (K rounds)": report.s_real_pct,
        "W_real (W1 rounds, at most quant time / step time)": report.w_real_pct,
        "R_real (benchmark loop alone)": report.r_real_pct,
        "Benchmark gain, the rounds' multiplied": report.headline_pct,
        "Benchmark gain with fresh tensors": report.real_pct,
    }
    yield bullets((name, changed(gain)) for name, gain in gains.items())
    yield f"- Inflation gap: {report.gap_pct:.3f} points"
    if report.gap_pct > ALLOWED_GAP_PCT + 1e-9:
        yield (
            f"- The gap is above {ALLOWED_GAP_PCT:g} %: that part is benchmark-loop residual. Roll "
            "back the rounds that have it instead of shipping it."
        )
    if untold := ", ".join(f"{item.round}" for item in report.audit if item.bucket is None):
        yield (
            f"- No credit without a bucket: round(s) {untold}; `kopt note {campaign} N FILE` gives "
            "one, and the next final round counts it"
        )
