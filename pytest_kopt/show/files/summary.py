"""rounds/round-N/summary.md: one round for people, built from ledger and evidence."""

from __future__ import annotations

from pytest_kopt.campaign.attribution import shown
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import changed, figure, interval
from pytest_kopt.honesty.transfer import REJECT, UNSTATED, transfer_lines
from pytest_kopt.show.words import CANDIDATES, candidate_rows, kernel_lines, markdown_table


def summary(campaign: Campaign, item: Round, verdict: Verdict) -> str:
    """Return the text of a round's summary.md."""
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
    """Return the eight lines of the real-training transfer check (E7)."""
    lines = dict(transfer_lines(item.notes.claim, shown(campaign, item, verdict)))
    if not verdict.decision.keeps and lines["Decision"] != REJECT:
        lines["Decision"] = f"nothing to transfer: {verdict.decision}"
        lines["Estimated real-training gain"] = "-"
    return "\n".join(f"- {name}: {text}" for name, text in lines.items())


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
    rows = [
        [
            shape.label,
            ", ".join(f"{name}={value}" for name, value in shape.dims.items()),
            shape.check,
            changed(shape.change_pct),
            interval(shape.low_pct, shape.high_pct),
            shape.status,
        ]
        for shape in verdict.shapes
    ]
    header = ["Case", "Dims", "Check", "vs incumbent", "Interval", "Status"]
    lines += ["", markdown_table(header, rows), ""]
    for total in [verdict.aggregate, *verdict.secondary]:
        if total is not None:
            lines.append(
                f"- {total.metric} (geomean): {figure(total.candidate)}, incumbent "
                f"{figure(total.incumbent)}, change {changed(total.change_pct)} "
                f"{interval(total.low_pct, total.high_pct)}".rstrip()
            )
    if verdict.classes:
        lines += ["", _classes(verdict)]
    if verdict.candidates:
        lines += ["", markdown_table(CANDIDATES, candidate_rows(verdict))]
    return "\n".join(lines)


def _classes(verdict: Verdict) -> str:
    header = ["Class", "Cases", "Incumbent", "Candidate", "vs incumbent", "Interval", "Status"]
    rows = [
        [
            found.name,
            str(found.cases),
            figure(found.incumbent),
            figure(found.candidate),
            changed(found.change_pct),
            interval(found.low_pct, found.high_pct),
            found.status,
        ]
        for found in verdict.classes
    ]
    return markdown_table(header, rows)


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
