"""Campaigns on disk without a session: rounds recorded as a session would, files and all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.attempt import Evidence
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.outlook.status import status
from pytest_kopt.campaign.outlook.status_model import Status
from pytest_kopt.campaign.recording import record_attempt
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.grounds import checked_shape
from pytest_kopt.decide.verdict import Aggregate, Decision, Verdict
from pytest_kopt.roofline import Roofline
from pytest_kopt.schema.table import Table
from pytest_kopt.show.files import projections
from pytest_kopt.show.standing import status_lines
from tests.builders import NOW, gemm_table, manifest_document

KERNEL = "kernels/softmax.py"


def campaign_at(root: Path, name: str = "c", **changes: Any) -> Campaign:
    """Make a campaign without git and open it."""
    kernel = root / KERNEL
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_text("VERSION = 0\n")
    layout = Layout(root / "agent" / "workspace" / name)
    document = manifest_document(git_commit=False, **changes)
    manifests.save(layout.manifest, Manifest.model_validate(document))
    return Campaign(layout, root)


def record(
    campaign: Campaign,
    number: int,
    decision: Decision,
    *,
    rates: Sequence[float] = (100.0, 200.0),
    change_pct: float = 1.0,
    measured: CaseEvidence | None = None,
    rooflines: Sequence[Roofline] = (),
    comparison: Mapping[str, Any] | None = None,
    **notes: Any,
) -> None:
    """Record an attempt at a round with a kernel of its own, carry it out, refresh the files."""
    (campaign.root / KERNEL).write_text(f"VERSION = {number}\n")
    table = gemm_table(rates)
    verdict = Verdict(
        decision=decision,
        reason=f"why round {number} is {decision}",
        compare="none",
        policy=campaign.manifest.policy,
        aggregate=Aggregate(metric="Forward TFLOPS", candidate=rates[0], change_pct=change_pct),
        shapes=[checked_shape(row) for row in table.rows],
        rooflines=list(rooflines),
    )
    record_attempt(
        campaign,
        number,
        started=NOW,
        evidence=Evidence(
            kernel=campaign.candidate(),
            results=_results(table, measured or CaseEvidence()),
            table=table,
            session={"skipped": [], "comparison": dict(comparison or {})},
        ),
        verdict=verdict,
        notes=Notes(**notes),
    )
    campaign.settle()
    projections.refresh(campaign)


def status_of(campaign: Campaign, **arguments: Any) -> dict[str, Any]:
    """Return what `kopt status --json` prints."""
    return status(campaign, **arguments).model_dump(mode="json")


def lines_of(document: dict[str, Any]) -> list[str]:
    """Return what `kopt status` prints where it prints this with `--json`."""
    return status_lines(Status.model_validate(document))


def _results(table: Table, evidence: CaseEvidence) -> list[CaseResult]:
    return [
        CaseResult(
            nodeid=f"tests/test_gemm.py::test[{row.label}]",
            label=row.label,
            header=table.header,
            dims=row.typed_dims,
            check="PASS",
            evidence=evidence,
        )
        for row in table.rows
    ]
