"""The Final Report of a campaign, as the terminal and optimize.md show it."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.campaign.history.final_report import NEXT_DIRECTIONS
from pytest_kopt.campaign.ledger import Final, FinalReport
from pytest_kopt.figures import changed, interval
from pytest_kopt.honesty.inflation import ALLOWED_GAP_PCT
from pytest_kopt.show.words import bullets, markdown_table


def outlook(report: FinalReport) -> list[str]:
    """Return what the terminal says of a report: the re-attribution and where to look next."""
    following = [f"next direction: {item}" for item in report.next_directions]
    if not report.is_attributed:
        return following
    parts = zip("SWR", (report.s_real_pct, report.w_real_pct, report.r_real_pct), strict=True)
    shown = ", ".join(f"{name}_real {changed(value)}" for name, value in parts)
    return [
        f"real-training gain {changed(report.real_pct)} ({shown}), inflation gap "
        f"{report.gap_pct:.3f} points",
        *following,
    ]


def text(campaign: str, final: Final) -> str:
    return "## Final Report\n\n" + "".join(f"{line}\n" for line in _lines(campaign, final))


def _lines(campaign: str, final: Final) -> Iterator[str]:
    total, report = final.aggregate, final.report
    change = total.change_pct if total else None
    bounds = interval(total.low_pct, total.high_pct) if total else ""
    told = {
        "Time": final.time,
        "Best version": f"round-{final.best}",
        "Best against baseline, side by side": f"{changed(change)} {bounds}".rstrip(),
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
    gains = {
        "S_real (K rounds)": report.s_real_pct,
        "W_real (W1 rounds, at most quant time / step time)": report.w_real_pct,
        "R_real (benchmark loop alone)": report.r_real_pct,
        "Benchmark gain, the rounds' multiplied": report.headline_pct,
        "Real-training-equivalent gain": report.real_pct,
    }
    yield bullets((name, changed(gain)) for name, gain in gains.items())
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
