"""rounds/round-N/summary.md: one round for people, built from ledger and evidence."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.final_report import transfer_evidence
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import changed
from pytest_kopt.honesty.transfer import (
    ACCEPT_ASTERISK,
    NO_CACHE_KEY,
    REJECT,
    UNSTATED,
    Claim,
    Trace,
    TransferEvidence,
    credited_pct,
    decision,
    step_saving_pct,
)
from pytest_kopt.show.columns import CANDIDATES, CASES, CLASSES, rows
from pytest_kopt.show.templates import rendered
from pytest_kopt.show.words import kernel_lines

#: The line of the transfer check that a benchmark alone cannot fill.
STEP_GAIN = "Estimated real-training gain"


def summary(campaign: Campaign, round: Round, verdict: Verdict) -> str:
    """Return the page of a round; `verdict` is its last attempt's."""
    decision = verdict.decision
    decided = [
        *([f"Next: {verdict.next_step}"] if verdict.next_step else ()),
        *([f"Commit: {verdict.applied.git_commit}"] if verdict.applied.git_commit else ()),
        *([f"Restored: {', '.join(verdict.applied.restored)}"] if verdict.applied.restored else ()),
        *(f"Kernel {line}" for line in kernel_lines(verdict)),
        *(f"Flag: {flag}" for flag in verdict.flags),
    ]
    return rendered(
        "summary.md.j2",
        round=round,
        attempt=round.attempts[verdict.attempt or round.last.number],
        notes=round.notes,
        tests=campaign.manifest.tests,
        verdict=verdict,
        totals=verdict.totals,
        tables={
            "cases": rows(verdict.shapes, *CASES),
            "classes": rows(verdict.classes, *CLASSES),
            "candidates": rows(verdict.candidates, *CANDIDATES),
        },
        decided=decided,
        transfer=_transfer(campaign, round, verdict),
        is_baseline=decision is Decision.BASELINE,
        is_lost=not decision.keeps and not decision.leaves_open,
        unstated=UNSTATED,
    )


def _transfer(campaign: Campaign, round: Round, verdict: Verdict) -> dict[str, str]:
    lines = dict(transfer_lines(round.notes.claim, transfer_evidence(campaign, round, verdict)))
    if not verdict.decision.keeps and lines["Decision"] != REJECT:
        lines["Decision"] = f"nothing to transfer: {verdict.decision}"
        lines[STEP_GAIN] = "-"
    return lines


def transfer_lines(claim: Claim, evidence: TransferEvidence) -> list[tuple[str, str]]:
    verdict, fresh = decision(claim, evidence), credited_pct(claim, evidence)
    benchmark = changed(evidence.change_pct)
    if fresh is not None and fresh != evidence.change_pct:
        credited = "credited" if verdict == ACCEPT_ASTERISK else "with fresh tensors"
        benchmark += f"; {credited} {changed(fresh)}"
    return [
        ("Bucket", claim.bucket or UNSTATED),
        ("Cache key", claim.cache_key or NO_CACHE_KEY),
        ("id(...) audit", "; ".join(evidence.findings) or "no finding"),
        ("4-step trace hit rate", trace_text(evidence.traces)),
        ("Workload distribution robustness", _distributions(evidence)),
        ("Benchmark gain", benchmark),
        (STEP_GAIN, step_gain(claim, evidence)),
        ("Decision", verdict),
    ]


def step_gain(claim: Claim, evidence: TransferEvidence) -> str:
    """Return the gain of a training step in words; no benchmark says what a step takes."""
    if claim.step_ms is None:
        return "not estimated: the notes give no `step_ms`"
    saving = step_saving_pct(claim, evidence)
    if saving is None:
        return "not estimated: no time or no bucket is known"
    bound = ""
    if decision(claim, evidence) == ACCEPT_ASTERISK:
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


def _distributions(evidence: TransferEvidence) -> str:
    declared = ", ".join(sorted(set(evidence.distributions)))
    uneven = next((text for text in evidence.findings if text.startswith("uneven-groups")), None)
    if uneven:
        return f"wrong: {uneven}"
    if not evidence.drawn:
        return f"not drawn anew; declared: {declared}" if declared else "every case of the level"
    text = f"right in every case for group sizes drawn from {', '.join(evidence.drawn)}"
    if evidence.skew_pct is None:
        return f"{text}; no gain measured there"
    return f"{text}; gain under skew {changed(evidence.skew_pct)}"
