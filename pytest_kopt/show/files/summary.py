"""rounds/round-N/summary.md: one round for people, built from ledger and evidence."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.final_report import shown
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import changed, figure
from pytest_kopt.honesty.inflation import ALLOWED_GAP_PCT
from pytest_kopt.honesty.transfer import (
    ACCEPT_ASTERISK,
    NO_CACHE_KEY,
    REJECT,
    UNCLASSIFIED,
    UNSTATED,
    Claim,
    Shown,
    Trace,
    credited_pct,
    decision,
)
from pytest_kopt.show.words import (
    CANDIDATES,
    CASES,
    CLASSES,
    bounds,
    candidate_rows,
    case_rows,
    class_rows,
    kernel_lines,
    markdown_table,
)


def summary(campaign: Campaign, item: Round, verdict: Verdict) -> str:
    notes = item.notes
    baseline = verdict.decision is Decision.BASELINE
    sections = [
        ("Hypothesis", _or(notes.hypothesis, baseline, "Baseline round: the starting point.")),
        ("Single change", _or(notes.change, baseline, "No code change.")),
        ("Results", _results(campaign, item, verdict)),
        ("Decision", _decision(verdict)),
        (
            "Attribution",
            _or(notes.attribution, baseline, "The starting point; nothing to explain."),
        ),
        ("Next direction", notes.next or UNSTATED),
        ("Real-training transfer check", transfer_check(campaign, item, verdict)),
    ]
    if not verdict.decision.keeps and not verdict.decision.leaves_open:
        sections.append(("Rollback Analysis", _rollback_analysis(verdict, notes)))
    body = "\n".join(f"## {title}\n\n{text}\n" for title, text in sections)
    return f"# round-{item.number} — {verdict.decision}\n\n{body}"


def transfer_check(campaign: Campaign, item: Round, verdict: Verdict) -> str:
    lines = dict(transfer_lines(item.notes.claim, shown(campaign, item, verdict)))
    if not verdict.decision.keeps and lines["Decision"] != REJECT:
        lines["Decision"] = f"nothing to transfer: {verdict.decision}"
        lines["Estimated real-training gain"] = "-"
    return "\n".join(f"- {name}: {text}" for name, text in lines.items())


def transfer_lines(claim: Claim, shown: Shown) -> list[tuple[str, str]]:
    """Return the eight lines of the real-training transfer check as names and texts."""
    verdict, credit = decision(claim, shown), credited_pct(claim, shown)
    gain = UNSTATED if verdict == UNCLASSIFIED else changed(credit)
    if verdict == ACCEPT_ASTERISK:
        gain += f" (at most quant time / step time = {claim.bound_pct:.3f} %)"
    benchmark = changed(shown.change_pct)
    if shown.inflation_pct is not None and shown.inflation_pct > ALLOWED_GAP_PCT:
        benchmark += f", of which {shown.inflation_pct:.3f} points only with reused tensors"
    return [
        ("Bucket", claim.bucket or UNSTATED),
        ("Cache key", claim.cache_key or NO_CACHE_KEY),
        ("id(...) audit", "; ".join(shown.findings) or "no finding"),
        ("4-step trace hit rate", trace_text(shown.traces)),
        ("Workload distribution robustness", _distributions(shown)),
        ("Benchmark gain", benchmark),
        ("Estimated real-training gain", gain),
        ("Decision", verdict),
    ]


def trace_text(traces: Mapping[str, Trace | None] | None) -> str:
    """Say what the simulated training loop showed, the worst case of each kind of cache."""
    if traces is None:
        return "not measured"
    rates: dict[str, float] = {}
    for trace in traces.values():
        for kind, rate in (trace.rates if trace else {}).items():
            rates[kind] = min(rate, rates.get(kind, 1.0))
    if not rates:
        return "no cache seen in a simulated training loop"
    return ", ".join(f"{kind} {rate:.0%}" for kind, rate in sorted(rates.items()))


def _distributions(shown: Shown) -> str:
    declared = ", ".join(sorted(set(shown.distributions)))
    uneven = next((text for text in shown.findings if text.startswith("uneven-groups")), None)
    if uneven:
        return f"wrong: {uneven}"
    if not shown.drawn:
        return f"not drawn anew; declared: {declared}" if declared else "every case of the level"
    text = f"right in every case for group sizes drawn from {', '.join(shown.drawn)}"
    if shown.skew_pct is None:
        return f"{text}; no gain measured there"
    return f"{text}; gain under skew {changed(shown.skew_pct)}"


def _results(campaign: Campaign, item: Round, verdict: Verdict) -> str:
    attempt = item.attempts[verdict.attempt or item.last.number]
    lines = [
        f"- Time: {attempt.started}",
        f"- Attempt: {attempt.number}",
        f"- Level: {verdict.level}",
        f"- Comparison: {verdict.compare}, engine {verdict.engine or '-'}, policy {verdict.policy}",
        f"- Target: {verdict.target_class or item.notes.target_class or 'all cases'}",
        f"- Tests: `{campaign.manifest.tests or 'as on the command line'}`",
        "- Raw artifacts: `artifacts/benchmark.csv`, "
        f"`artifacts/attempt-{attempt.number}/evidence.json`",
    ]
    lines += ["", markdown_table(CASES, case_rows(verdict)), ""]
    for total in [verdict.aggregate, *verdict.secondary]:
        if total is not None:
            lines.append(
                f"- {total.metric} (geomean): {figure(total.candidate)}, incumbent "
                f"{figure(total.incumbent)}, change {' '.join(bounds(total))}".rstrip()
            )
    if verdict.classes:
        lines += ["", markdown_table(CLASSES, class_rows(verdict))]
    if verdict.candidates:
        lines += ["", markdown_table(CANDIDATES, candidate_rows(verdict))]
    return "\n".join(lines)


def _decision(verdict: Verdict) -> str:
    lines = [f"`{verdict.decision}` — {verdict.reason}"]
    if verdict.next_step:
        lines.append(f"\nNext: {verdict.next_step}")
    if verdict.applied.git_commit:
        lines.append(f"\nCommit: {verdict.applied.git_commit}")
    if verdict.applied.restored:
        lines.append(f"\nRestored: {', '.join(verdict.applied.restored)}")
    lines += [f"\nKernel {line}" for line in kernel_lines(verdict)]
    lines += [f"\nFlag: {flag}" for flag in verdict.flags]
    return "\n".join(lines)


def _rollback_analysis(verdict: Verdict, notes: Notes) -> str:
    lines = [
        ("Change", notes.change or notes.summary or UNSTATED),
        ("Expected", notes.expected or UNSTATED),
        ("Actual", verdict.reason),
        ("Root cause", notes.root_cause or UNSTATED),
        ("Lesson", notes.lesson or UNSTATED),
    ]
    return "\n".join(f"- {name}: {text}" for name, text in lines)


def _or(text: str | None, baseline: bool, at_baseline: str) -> str:
    return text or (at_baseline if baseline else UNSTATED)
