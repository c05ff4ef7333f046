"""The Final Report of a campaign: what was kept, what of it is real, where to look next (D9)."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.campaign import attribution
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.ledger import Audited, Final, FinalReport
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.figures import changed, interval
from pytest_kopt.honesty.inflation import ALLOWED_GAP_PCT
from pytest_kopt.honesty.transfer import attribute, credited_pct, decision
from pytest_kopt.knowledge import directions
from pytest_kopt.knowledge.routing import route
from pytest_kopt.show.words import markdown_table

NEXT_DIRECTIONS = 3


def compose(campaign: Campaign) -> FinalReport:
    """Return the report on a campaign as it stands."""
    rounds = [item for item in campaign.state.decided_rounds() if item.number > 1]
    kept = [item for item in rounds if item.is_kept]
    lost = [item for item in rounds if not item.is_kept]
    failed = [item for item in lost if not _is_inconclusive(item)]
    credits = attribution.accepted(campaign)
    found = attribute(credits)
    return FinalReport(
        accepted=len(kept),
        rolled_back=len(lost),
        inconclusive=len(lost) - len(failed),
        effective=[_effective(item) for item in kept],
        ineffective=[_ineffective(item) for item in failed],
        audit=[
            Audited(
                round=item.round,
                bucket=item.claim.bucket,
                benchmark_pct=item.shown.change_pct,
                credited_pct=credited_pct(item.claim, item.shown),
                decision=decision(item.claim, item.shown),
            )
            for item in credits
        ],
        s_real_pct=found.s_real,
        w_real_pct=found.w_real,
        r_real_pct=found.r_real,
        headline_pct=found.headline_pct,
        next_directions=_next_directions(campaign, rounds),
    )


def outlook(report: FinalReport) -> list[str]:
    """Return what the terminal says of a report: the re-attribution and where to look next."""
    following = [f"next direction: {item}" for item in report.next_directions]
    if not report.is_attributed:
        return following
    parts = {
        "S_real": report.s_real_pct,
        "W_real": report.w_real_pct,
        "R_real": report.r_real_pct,
    }
    shown = ", ".join(f"{name} {changed(value)}" for name, value in parts.items())
    return [
        f"real-training gain {changed(report.real_pct)} ({shown}), inflation gap "
        f"{report.gap_pct:.3f} points",
        *following,
    ]


def text(campaign: str, final: Final) -> str:
    """Return the section of optimize.md."""
    return "## Final Report\n\n" + "".join(f"{line}\n" for line in _lines(campaign, final))


def _lines(campaign: str, final: Final) -> Iterator[str]:
    total, report = final.aggregate, final.report
    change = total.change_pct if total else None
    bounds = interval(total.low_pct, total.high_pct) if total else ""
    yield f"- Time: {final.time}"
    yield f"- Best version: round-{final.best}"
    yield f"- Best against baseline, side by side: {changed(change)} {bounds}".rstrip()
    yield f"- Decision: {final.decision}: {final.reason}"
    if report is None:
        return
    lost = f"{report.rolled_back} rolled back"
    if report.inconclusive:
        lost += f", {report.inconclusive} of them inconclusive"
    yield f"- Rounds: {report.accepted} accepted, {lost}"
    if not report.is_attributed:
        yield "- Real training: no bucket was claimed and no cache found; the gain is as measured"
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
    header = ["Round", "Bucket", "Benchmark gain", "Real-training gain", "Decision"]
    rows = [
        [
            f"round-{item.round}",
            item.bucket or "-",
            changed(item.benchmark_pct),
            changed(item.credited_pct),
            item.decision,
        ]
        for item in report.audit
    ]
    yield markdown_table(header, rows)
    yield ""
    yield f"- S_real (K rounds): {changed(report.s_real_pct)}"
    yield f"- W_real (W1 rounds, at most quant time / step time): {changed(report.w_real_pct)}"
    yield f"- R_real (benchmark loop alone): {changed(report.r_real_pct)}"
    yield f"- Benchmark gain, the rounds' multiplied: {changed(report.headline_pct)}"
    yield f"- Real-training-equivalent gain: {changed(report.real_pct)}"
    yield f"- Inflation gap: {report.gap_pct:.3f} points"
    if report.gap_pct > ALLOWED_GAP_PCT + 1e-9:
        yield (
            f"- The gap is above {ALLOWED_GAP_PCT:g} %: that part is benchmark-loop residual. Roll "
            "back the rounds that have it instead of shipping it."
        )
    untold = [f"{item.round}" for item in report.audit if item.bucket is None]
    if untold:
        yield (
            f"- No credit without a bucket: round(s) {', '.join(untold)}; `kopt note {campaign} N "
            "FILE` gives one, and the next final round counts it"
        )


def _is_inconclusive(item: Round) -> bool:
    return item.verdict is not None and item.verdict.decision is Decision.INCONCLUSIVE


def _effective(item: Round) -> str:
    assert item.verdict is not None
    total = item.verdict.aggregate
    return f"round-{item.number}: {_tried(item)} ({changed(total.change_pct if total else None)})"


def _ineffective(item: Round) -> str:
    assert item.verdict is not None
    why = item.notes.root_cause or item.verdict.reason
    return f"round-{item.number}: {_tried(item)}: {why.splitlines()[0]}"


def _tried(item: Round) -> str:
    notes = item.notes
    tried = notes.change or notes.summary or notes.hypothesis or "not described"
    return tried.splitlines()[0]


def _next_directions(campaign: Campaign, rounds: list[Round]) -> list[str]:
    """Return what the last rounds' authors would try next, then what knowledge has untried."""
    own = [item.notes.next.splitlines()[0] for item in reversed(rounds) if item.notes.next]
    said = [str(value) for item in rounds for value in item.notes.given().values()]
    manifest = campaign.manifest
    found = route(
        manifest.target_op, manifest.target_gpu, manifest.target_backend, manifest.target_lang
    )
    pages = directions.read(found.root, found.directions)
    known = directions.untried(pages, said, NEXT_DIRECTIONS)
    suggested = [*own, *(f"{item.id} {item.title}: {item.change}" for item in known)]
    return list(dict.fromkeys(suggested))[:NEXT_DIRECTIONS]
