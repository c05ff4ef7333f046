"""Files of a campaign for people: summary.md of a round, README.md, baseline.md, the trend.

README.md is written before anything is measured, with unknown fields as TBD. The baseline's facts
replace the two sections that announce them, so that no edit is lost. performance_trend.md has a row
for each decided round, appended, never rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.attempt import CONDITIONS, Attempt
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.trend import chain_to
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.cases.result import CaseResult, device_model_of
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.series import UNDER_SKEW
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import NONE, changed, ends, frozen_change, thousandths
from pytest_kopt.honesty.finding import is_finding
from pytest_kopt.honesty.transfer import (
    ACCEPT_ASTERISK,
    ACCEPT_REAL,
    NO_CACHE_KEY,
    REJECT,
    UNCLASSIFIED,
    UNSTATED,
    Claim,
)
from pytest_kopt.knowledge.facts import Fact, product_facts
from pytest_kopt.roofline import TARGET_PCT, Roofline, efficiency
from pytest_kopt.schema.metrics import RATE_UNITS, Metric, direction, improvement
from pytest_kopt.show.rooflines import REACHED, TARGETS
from pytest_kopt.show.templates import rendered
from pytest_kopt.show.terminal import measured
from pytest_kopt.show.words import (
    CANDIDATES,
    CASES,
    CLASSES,
    LABEL,
    TextColumn,
    kernel_lines,
    markdown_table,
    rows,
    with_text,
)

#: What is said of a training step, by the decision of the transfer check.
_STEP_GAINS = {
    ACCEPT_REAL: "the benchmark gain, in the part of a step that these kernels take",
    ACCEPT_ASTERISK: "at most quant time / step time = {} %",
    REJECT: "none",
    UNCLASSIFIED: "not estimated: the notes give no `bucket`",
}
#: The head of a new trend. Without it a reader would divide the rates of two rows.
_TREND = (
    "# Performance trend\n\nThe rates are the candidate's alone, each measured in its own session: "
    "never divide those of two rows.\n`vs Baseline` multiplies the changes that were measured in "
    "pairs.\n\n"
)
#: Heading of the column next to the frozen ones, of which Status knows one word for all roll-backs.
DECISION = "Decision"


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
            "cases": with_text(rows(verdict.shapes, *CASES)),
            "classes": rows(verdict.classes, *CLASSES),
            "candidates": rows(verdict.candidates, *CANDIDATES),
        },
        decided=decided,
        transfer=transfer(round.notes.claim, round.last.results(), verdict),
        is_baseline=decision is Decision.BASELINE,
        is_lost=not decision.keeps and not decision.leaves_open,
        unstated=UNSTATED,
    )


def transfer(claim: Claim, results: Sequence[CaseResult], verdict: Verdict) -> dict[str, str]:
    """Return the lines of the transfer check, by the notes' claim and what was measured."""
    labels = [case.label for case in verdict.shapes]
    findings = [flag for flag in verdict.flags if is_finding(flag, labels)]
    drawn = sorted({name for result in results for name in result.evidence.groups or ()})
    spread = f"group sizes drawn from {', '.join(drawn)}" if drawn else "every case of the level"
    gains = {total.metric: total.change_pct for total in verdict.secondary}
    spread += "".join(
        f"; gain {UNDER_SKEW} {changed(gain)}"
        for metric, gain in gains.items()
        if metric.endswith(UNDER_SKEW)
    )
    decision = claim.decision
    if verdict.decision is Decision.REJECTED_OVERFIT:
        decision = REJECT
    elif not verdict.decision.keeps:
        decision = f"nothing to transfer: {verdict.decision}"
    return {
        "Bucket": claim.bucket or UNSTATED,
        "Cache key": claim.cache_key or NO_CACHE_KEY,
        "id(...) audit": "; ".join(findings) or "no finding",
        "4-step trace hit rate": "not simulated: judged calls have inputs of their own",
        "Workload distribution robustness": spread,
        "Benchmark gain": changed(ends(verdict.aggregate)[0]),
        "Estimated real-training gain": _STEP_GAINS.get(decision, "-").format(
            thousandths(claim.bound_pct)
        ),
        "Decision": decision,
    }


def campaign_readme(manifest: Manifest, policy: Policy) -> str:
    sections = {"hardware": _hardware(manifest), "targets": _targets()}
    return rendered("readme.md.j2", manifest=manifest, policy=policy, **sections)


def with_baseline(text: str, manifest: Manifest, baseline: Attempt) -> str:
    """Return a README's text with what the baseline tells: its device's facts, the targets."""
    device = device_model_of(baseline.results())
    text = text.replace(_hardware(manifest), _hardware(manifest, device))
    return text.replace(_targets(), _targets(baseline.verdict().rooflines))


def _hardware(manifest: Manifest, device: str = "") -> str:
    """Return the sections on the hardware; `device` is the model that measured the baseline."""
    about, facts = product_facts(manifest.target_gpu, manifest.target_model, device)
    lines = [fact.citation() for fact in facts]
    ridges = list(_ridges(facts))
    return rendered("readme_hardware.md.j2", device=device, about=about, facts=lines, ridges=ridges)


def _targets(rooflines: Sequence[Roofline] = ()) -> str:
    """Return the condition T2 with the absolute target of each case: rates to reach, and time."""
    unknown = sorted({reason for line in rooflines for reason in line.unknown})
    text = rendered(
        "readme_targets.md.j2",
        share_pct=TARGET_PCT,
        targets=rows(rooflines, *TARGETS),
        sources=_sources(rooflines),
        unknown=unknown,
    )
    # A paragraph ends the list of the stop conditions.
    return text if unknown else text.rstrip("\n")


def _sources(rooflines: Sequence[Roofline]) -> list[str]:
    return sorted({source for line in rooflines for source in line.sources})


def _ridges(facts: Sequence[Fact]) -> Iterator[str]:
    """Yield the intensities at which a product's documented peaks meet, by dtype."""
    documented = {fact.metric: fact for fact in facts if fact.value is not None}
    bandwidth = documented.get("hbm_bandwidth")
    for metric, rate in documented.items():
        dtype = re.fullmatch(r"matrix_peak_(\w+)_dense", metric)
        if bandwidth is None or not bandwidth.value or not rate.value or dtype is None:
            continue
        ridge = rate.value / bandwidth.value
        product = rate.key.partition(".")[0]
        yield f"{product}: memory-bound below {ridge:.0f} FLOP/byte in {dtype[1]}"


def baseline_report(campaign: Campaign) -> str:
    """Return the text of baseline.md; the baseline is decided."""
    baseline = campaign.first
    results, rooflines = baseline.results(), baseline.verdict().rooflines
    return rendered(
        "baseline.md.j2",
        campaign=campaign.name,
        conditions=dict.fromkeys(CONDITIONS, "not recorded") | baseline.conditions(),
        schema=campaign.manifest.csv_schema,
        cases=rows(results, LABEL, *measured(results, is_compared=False, verbosity=1)),
        rooflines=rows(rooflines, *REACHED),
        efficiency=efficiency(rooflines).why,
        sources=_sources(rooflines),
        is_interpreted=any(result.evidence.interpreted for result in results),
    )


def _columns(state: CampaignState, first: ledger.Trend) -> tuple[TextColumn, ...]:
    """Return the columns of decided rounds; `first` is the trend of round 1.

    The gain over round 1 is the product of paired ones where every link was paired. Values of two
    sessions differ by several percent with no change, and that product does not. A quick round's
    figures are of the representative cases, and so are those of round 1 it is held against.
    """

    def gain(decided: ledger.Decided) -> str:
        if decided.decision is Decision.BASELINE:
            return NONE
        if chain := chain_to(state, decided):
            return _by_direction(chain.model_dump().values())
        return versus(decided.trend or ledger.Trend(unit=unit), decided.baseline or first)

    unit = first.unit
    return (
        TextColumn("Round", "number"),
        TextColumn("Status", "verdict.decision", status),
        TextColumn("Description", written=_description),
        TextColumn(f"Fwd Avg {unit}", "verdict.trend.forward_average", thousandths),
        TextColumn(f"Fwd Peak {unit}", "verdict.trend.forward_peak", thousandths),
        TextColumn(f"Bwd Avg {unit}", "verdict.trend.backward_average", thousandths),
        TextColumn(f"Bwd Peak {unit}", "verdict.trend.backward_peak", thousandths),
        TextColumn(f"Combined Step {unit}", "verdict.trend.combined", thousandths),
        TextColumn("vs Baseline", "verdict", gain),
        TextColumn("Key Finding", written=lambda r: r.notes.key_finding or r.verdict.reason),
        TextColumn(DECISION, "verdict.decision"),
    )


def _description(round: Round) -> str:
    decided = round.last.outcome()
    untitled = "Baseline" if decided.decision is Decision.BASELINE else "not described"
    return (round.notes.title or untitled) + (" (quick)" if decided.level == "quick" else "")


def status(decision: Decision) -> str:
    if decision is Decision.BASELINE:
        return "BASELINE"
    return "ACCEPTED" if decision.keeps else "ROLLBACK"


def versus(trend: ledger.Trend, baseline: ledger.Trend) -> str:
    """Return `step ±X%, fwd ±Y%, bwd ±Z%` against round 1; positive is better."""
    # A trend without a rate has a column of its own for its unit.
    is_rate = trend.unit.endswith(RATE_UNITS)
    metric = Metric(trend.unit, "higher" if is_rate else direction(trend.unit, {}))
    columns = ("combined", "forward_average", "backward_average")
    pairs = ((getattr(trend, name) or 0.0, getattr(baseline, name) or 0.0) for name in columns)
    return _by_direction(
        (improvement(*pair, metric) - 1) * 100 if min(pair) > 0 else None for pair in pairs
    )


def _by_direction(changes: Iterable[float | None]) -> str:
    named = zip(("step", "fwd", "bwd"), map(frozen_change, changes), strict=True)
    return ", ".join(f"{name} {change}" for name, change in named)


def missing_text(text: str, state: CampaignState) -> str:
    """Return what has to be appended to the file's `text` so that every decided round has a row."""
    baseline = state.baseline
    if baseline is None or baseline.verdict is None or baseline.verdict.trend is None:
        return ""
    present = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    lacking = [round for round in state.decided_rounds() if str(round.number) not in present]
    if not lacking:
        return ""
    columns = _columns(state, baseline.verdict.trend)
    if text and f" {DECISION} |" not in text:
        columns = columns[:-1]  # the file was begun before there was such a column
    table = markdown_table(rows(lacking, *columns), begins=not text)
    return f"{'' if text else _TREND}{table}\n"
