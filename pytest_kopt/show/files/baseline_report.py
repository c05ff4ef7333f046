"""baseline.md beside the campaign's README: what round 1 measured, where, and how far it can go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.figures import figure
from pytest_kopt.roofline import Roofline, efficiency
from pytest_kopt.schema.table import Table
from pytest_kopt.show.rooflines import target_cells
from pytest_kopt.show.words import markdown_table


def baseline_report(campaign: Campaign, table: Table) -> str:
    """Return the text of baseline.md; the baseline is decided."""
    verdict = campaign.verdict(campaign.state.rounds[1])
    assert verdict is not None
    results = campaign.results(1)
    session = campaign.baseline_session()
    rows = [[row.cells[name] for name in table.header] for row in table.rows]
    sections = [
        ("Measured", _measured(campaign, results, session)),
        ("Cases", markdown_table(table.header, rows)),
        ("Roofline", _rooflines(verdict.rooflines, results)),
    ]
    body = "\n".join(f"## {title}\n\n{text}\n" for title, text in sections)
    return f"# Baseline of {campaign.name}\n\n{body}"


def _measured(campaign: Campaign, results: Sequence[CaseResult], session: dict[str, object]) -> str:
    def seen(of: Callable[[CaseEvidence], str | None]) -> str:
        found = {text for result in results if (text := of(result.evidence))}
        return ", ".join(sorted(found)) or "not recorded"

    def said(key: str) -> object:
        return session.get(key, "not recorded")

    frozen = campaign.manifest.csv_schema
    lines = [
        f"Time: {said('started')} to {said('ended')}, host {said('host')}",
        f"Device: {seen(lambda e: e.device_model)} ({seen(lambda e: e.device)})",
        f"Engine: {seen(lambda e: e.engine)}",
        f"Versions: Python {said('python')}, torch {seen(lambda e: e.torch)}, "
        f"pytest-kopt {said('pytest_kopt')}",
        f"Schema: `{frozen.header}`" if frozen else "Schema: not frozen",
        "Evidence: `rounds/round-1/artifacts/`",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _rooflines(found: Sequence[Roofline], results: Sequence[CaseResult]) -> str:
    if not found and any(result.evidence.interpreted for result in results):
        return "Triton's interpreter ran the cases: their times mean nothing."
    if not found:
        return "No case declares FLOPs or bytes."
    header = (
        *("Case", "Direction", "FLOP/byte", "Ridge", "Bound", "Attainable", "Achieved", "Of it"),
        *("Target TFLOPS", "Target GB/s", "Target µs"),
    )
    rows = [
        [
            item.label,
            item.way,
            figure(item.intensity),
            figure(item.ridge),
            item.bound,
            f"{figure(item.attainable, 'UNKNOWN')} {item.unit}",
            figure(item.achieved),
            "-" if item.achieved_pct is None else f"{item.achieved_pct:.1f} %",
            *target_cells(item),
        ]
        for item in found
    ]
    sources = sorted({text for item in found for text in item.sources})
    lines = [markdown_table(header, rows), "", f"Hardware efficiency (T2): {efficiency(found).why}"]
    return "\n".join([*lines, *(f"- {text}" for text in sources)])
