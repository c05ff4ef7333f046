"""baseline.md beside the campaign's README: what round 1 measured, where, and how far it can go."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.figures import figure
from pytest_kopt.roofline import Roofline, efficiency
from pytest_kopt.schema.table import Table
from pytest_kopt.show.rooflines import target_cells
from pytest_kopt.show.words import bullets, markdown_table, page


def baseline_report(campaign: Campaign, table: Table) -> str:
    """Return the text of baseline.md; the baseline is decided."""
    verdict = campaign.verdict(campaign.state.rounds[1])
    assert verdict is not None
    results = campaign.results(1)
    session = campaign.baseline_session()
    rows = [[row.cells[name] for name in table.header] for row in table.rows]
    return page(
        f"Baseline of {campaign.name}",
        [
            ("Measured", _measured(campaign, results, session)),
            ("Cases", markdown_table(table.header, rows)),
            ("Roofline", _rooflines(verdict.rooflines, results)),
        ],
    )


def _measured(campaign: Campaign, results: Sequence[CaseResult], session: dict[str, object]) -> str:
    def seen(name: str) -> str:
        found = {text for result in results if (text := getattr(result.evidence, name))}
        return ", ".join(sorted(found)) or "not recorded"

    def said(key: str) -> object:
        return session.get(key, "not recorded")

    frozen = campaign.manifest.csv_schema
    told = {
        "Time": f"{said('started')} to {said('ended')}, host {said('host')}",
        "Device": f"{seen('device_model')} ({seen('device')})",
        "Engine": seen("engine"),
        "Versions": f"Python {said('python')}, torch {seen('torch')}, "
        f"pytest-kopt {said('pytest_kopt')}",
        "Schema": f"`{frozen.header}`" if frozen else "not frozen",
        "Evidence": "`rounds/round-1/artifacts/`",
    }
    return bullets(told.items())


def _rooflines(found: Sequence[Roofline], results: Sequence[CaseResult]) -> str:
    if not found:
        interpreted = any(result.evidence.interpreted for result in results)
        why = "Triton's interpreter ran the cases: their times mean nothing."
        return why if interpreted else "No case declares FLOPs or bytes."
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
