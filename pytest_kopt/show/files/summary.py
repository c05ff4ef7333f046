"""rounds/round-N/summary.md: one round for people, built from ledger and evidence."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.final_report import shown
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import changed, figure
from pytest_kopt.honesty.transfer import (
    ACCEPT_ASTERISK,
    NO_CACHE_KEY,
    REJECT,
    UNSTATED,
    Claim,
    Shown,
    Trace,
    credited_pct,
    decision,
    step_saving_pct,
)
from pytest_kopt.show.words import bounds, bullets, kernel_lines, markdown_table, page, tables

#: The line of the transfer check that a benchmark alone cannot fill.
STEP_GAIN = "Estimated real-training gain"


def summary(campaign: Campaign, item: Round, verdict: Verdict) -> str:
    notes = item.notes
    start = ("Baseline round: the starting point.", "No code change.")
    known = (*start, "The starting point; nothing to explain.")
    first, change, why = known if verdict.decision is Decision.BASELINE else (UNSTATED,) * 3
    sections = [
        ("Hypothesis", notes.hypothesis or first),
        ("Single change", notes.change or change),
        ("Results", _results(campaign, item, verdict)),
        ("Decision", _decision(verdict)),
        ("Attribution", notes.attribution or why),
        ("Next direction", notes.next or UNSTATED),
        ("Real-training transfer check", transfer_check(campaign, item, verdict)),
    ]
    if not verdict.decision.keeps and not verdict.decision.leaves_open:
        lost = {
            "Change": notes.change or notes.summary or UNSTATED,
            "Expected": notes.expected or UNSTATED,
            "Actual": verdict.reason,
            "Root cause": notes.root_cause or UNSTATED,
            "Lesson": notes.lesson or UNSTATED,
        }
        sections.append(("Rollback Analysis", bullets(lost.items())))
    return page(f"round-{item.number} — {verdict.decision}", sections)


def transfer_check(campaign: Campaign, item: Round, verdict: Verdict) -> str:
    lines = dict(transfer_lines(item.notes.claim, shown(campaign, item, verdict)))
    if not verdict.decision.keeps and lines["Decision"] != REJECT:
        lines["Decision"] = f"nothing to transfer: {verdict.decision}"
        lines[STEP_GAIN] = "-"
    return bullets(lines.items())


def transfer_lines(claim: Claim, shown: Shown) -> list[tuple[str, str]]:
    verdict, fresh = decision(claim, shown), credited_pct(claim, shown)
    benchmark = changed(shown.change_pct)
    if fresh is not None and fresh != shown.change_pct:
        credited = "credited" if verdict == ACCEPT_ASTERISK else "with fresh tensors"
        benchmark += f"; {credited} {changed(fresh)}"
    return [
        ("Bucket", claim.bucket or UNSTATED),
        ("Cache key", claim.cache_key or NO_CACHE_KEY),
        ("id(...) audit", "; ".join(shown.findings) or "no finding"),
        ("4-step trace hit rate", trace_text(shown.traces)),
        ("Workload distribution robustness", _distributions(shown)),
        ("Benchmark gain", benchmark),
        (STEP_GAIN, step_gain(claim, shown)),
        ("Decision", verdict),
    ]


def step_gain(claim: Claim, shown: Shown) -> str:
    """Return the gain of a training step in words; no benchmark says what a step takes."""
    if claim.step_ms is None:
        return "not estimated: the notes give no `step_ms`"
    saving = step_saving_pct(claim, shown)
    if saving is None:
        return "not estimated: no time or no bucket is known"
    bound = ""
    if decision(claim, shown) == ACCEPT_ASTERISK:
        bound = f"; at most quant time / step time = {claim.bound_pct:.3f} %"
    return f"{changed(saving)} of a step of {claim.step_ms:g} ms that calls each case once{bound}"


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
    evidence = f"`artifacts/attempt-{attempt.number}/evidence.json`"
    told = {
        "Time": attempt.started,
        "Attempt": attempt.number,
        "Level": verdict.level,
        "Comparison": f"{verdict.compare}, engine {verdict.engine or '-'}, policy {verdict.policy}",
        "Target": verdict.target_class or item.notes.target_class or "all cases",
        "Tests": f"`{campaign.manifest.tests or 'as on the command line'}`",
        "Raw artifacts": f"`artifacts/benchmark.csv`, {evidence}",
    }
    cases, *others = tables(verdict).values()
    lines = [bullets(told.items()), *(["", markdown_table(cases)] if cases else []), ""]
    lines += (
        f"- {total.metric} (geomean): {figure(total.candidate)}, incumbent "
        f"{figure(total.incumbent)}, change {' '.join(bounds(total).values())}".rstrip()
        for total in (verdict.aggregate, *verdict.secondary)
        if total is not None
    )
    return "\n".join([*lines, *(f"\n{markdown_table(rows)}" for rows in others if rows)])


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
