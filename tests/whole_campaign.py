"""Whole campaigns on disk without a session: made of the records that sessions leave."""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.attempt import Evidence
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import trend
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.recording import record_attempt
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.verdict import (
    Aggregate,
    ConfigClass,
    Decision,
    KernelChange,
    RaceCandidate,
    Verdict,
)
from pytest_kopt.roofline import Roofline
from pytest_kopt.schema.columns import GEMM
from pytest_kopt.schema.table import Table
from pytest_kopt.show.files import projections
from tests.builders import NOW, manifest_document

KERNEL = "kernels/softmax.py"
_PAIRS = (
    *("label", "round_of_inference", "comparison", "pair", "position"),
    *("candidate_ms", "incumbent_ms", "device", "clocks"),
)
#: Of the last round: kernels that need more registers, are gone or were added, and a race of two.
KERNELS = [
    KernelChange(
        case="M256",
        kernel=name,
        before=before,
        after=after,
    )
    for name, before, after in (
        ("step", {"launches": 1.0, "registers": 40.0}, {"launches": 1.0, "registers": 64.0}),
        ("sum", {"launches": 1.0, "registers": 40.0}, {}),
        ("fill", {}, {"launches": 2.0, "registers": 16.0}),
    )
]
RACED = [
    RaceCandidate(
        name=f"candidates/{name}",
        place=place,
        decision=decision,
        reason=f"{name} was seen",
        change_pct=1.0 / place,
        low_pct=0.1,
        high_pct=2.0,
    )
    for place, (name, decision) in enumerate(
        {"a": Decision.ACCEPTED, "b": Decision.ROLLED_BACK}.items(), start=1
    )
]
#: What became of the rounds after the first, over and over.
CYCLE = (
    Decision.ACCEPTED,
    Decision.ROLLED_BACK,
    Decision.INCONCLUSIVE,
    Decision.ACCEPTED_WITH_NOTE,
    Decision.REJECTED_OVERFIT,
)


def a_campaign(
    root: Path,
    *,
    name: str = "softmax_triton_sm90_20261120",
    rounds: int = 6,
    shapes: int = 4,
    processes: int = 4,
    label: str = "M{size}",
    summary: str = "hypothesis {round}",
    kernel: str = "",
    rooflines: Sequence[Roofline] = (),
) -> Campaign:
    """Write a campaign of decided rounds below `root`/agent/workspace and return it.

    `label` and `summary` are patterns; `kernel` is text that every version of the kernel ends with.
    The last round holds the `rooflines`, what changed in its kernels, and a race.
    """
    dice = random.Random(7)
    layout = Layout(root / "agent" / "workspace" / name)
    manifest = Manifest.model_validate(manifest_document(git_commit=False))
    manifests.save(layout.manifest, manifest)
    source = root / KERNEL
    source.parent.mkdir(parents=True, exist_ok=True)
    campaign: Campaign | None = None
    level = 100.0
    for number in range(1, rounds + 1):
        text = "".join(f"tile_{i} = {number if i % 40 == 7 else i}\n" for i in range(200))
        source.write_text(text + kernel)
        campaign = campaign or Campaign(layout, root)
        decision = Decision.BASELINE if number == 1 else CYCLE[(number - 2) % len(CYCLE)]
        gain = 0.0 if number == 1 else dice.uniform(0.2, 3.0) * (1 if decision.keeps else -1)
        labels = [label.format(size=256 * (i + 1)) for i in range(shapes)]
        gains = [gain + dice.gauss(0, 0.5) for _ in labels]
        results = [
            _result(i, text, level * (1 + g / 100))
            for i, (text, g) in enumerate(zip(labels, gains, strict=True))
        ]
        table = Table(results[0].header, tuple(result.row() for result in results))
        verdict = _verdict(decision, level, gain, results, gains)
        if number == rounds:
            more = {"rooflines": list(rooflines), "kernels": KERNELS, "candidates": RACED}
            verdict = verdict.model_copy(update=more)
        record_attempt(
            campaign,
            number,
            started=NOW,
            evidence=Evidence(
                kernel=campaign.candidate(),
                results=results,
                table=table,
                session={"started": NOW, "ended": NOW, "host": "h", "skipped": []},
                pairs_csv=_pairs(labels, gains, processes, dice)
                if verdict.compare == "paired"
                else "",
            ),
            verdict=verdict,
            trend=trend.figures(table),
            notes=Notes(summary=summary.format(round=number), bucket="K2"),
            paired=ledger.PairedChange(step_pct=gain, forward_pct=gain)
            if verdict.compare == "paired"
            else None,
        )
        campaign.settle()
        if decision.keeps:
            level *= 1 + gain / 100
    assert campaign is not None
    projections.refresh(campaign)
    return campaign


def _result(place: int, label: str, rate: float) -> CaseResult:
    size = 256 * (place + 1)
    dims: dict[str, Any] = {"B": 1, "M": size, "N": size, "K": size}
    milliseconds = 2.0 * size**3 / (rate * 1e9)
    cells = dict.fromkeys((column.name for column in GEMM.columns), None) | {
        "Forward TFLOPS": rate,
        "Forward TFLOPS_stddev": 0.1,
        "Forward Time (ms)": milliseconds,
        "out_snr": 49.5,
    }
    return CaseResult(
        nodeid=f"tests/test_softmax.py::test_softmax[{place}]",
        label=label,
        header=GEMM.header(tuple(dims)),
        dims=dims,
        check="PASS",
        cells=cells,
        evidence=CaseEvidence(
            engine="graph",
            device="GPU-0",
            torch="2.11.0",
            calls_per_sample=3,
            forward_samples_ms=tuple(milliseconds * (1 + i / 1000) for i in range(5)),
        ),
    )


def _verdict(
    decision: Decision, level: float, gain: float, results: list[CaseResult], gains: list[float]
) -> Verdict:
    compared = decision not in (Decision.BASELINE, Decision.REJECTED_OVERFIT)
    status: Literal["improved", "regressed"] = "improved" if gain > 0 else "regressed"
    return Verdict(
        decision=decision,
        reason=f"because it is {decision}",
        next_step="go on",
        compare="paired" if compared else "none",
        engine="graph",
        policy="primus",
        aggregate=Aggregate(
            metric="Forward TFLOPS",
            candidate=level * (1 + gain / 100),
            incumbent=level if compared else None,
            change_pct=gain if compared else None,
            low_pct=gain - 0.2 if compared else None,
            high_pct=gain + 0.2 if compared else None,
            confidence=0.99 if compared else None,
        ),
        shapes=[
            Shape(
                label=result.label,
                dims=result.dims,
                check="PASS",
                change_pct=change if compared else None,
                low_pct=change - 0.4 if compared else None,
                high_pct=change + 0.4 if compared else None,
                status=status if compared else "unchanged",
                device="GPU-0",
            )
            for result, change in zip(results, gains, strict=True)
        ],
        classes=[
            ConfigClass(
                name="B=1",
                dims={"B": 1},
                cases=len(results),
                candidate=level * (1 + gain / 100),
                incumbent=level if compared else None,
                change_pct=gain if compared else None,
                low_pct=gain - 0.3 if compared else None,
                high_pct=gain + 0.3 if compared else None,
                status=status if compared else "unchanged",
            )
        ],
        flags=["id-keyed-cache: a dict is keyed on id(x) (kernels/softmax.py:3)"]
        if decision is Decision.REJECTED_OVERFIT
        else [],
    )


def _pairs(labels: list[str], gains: list[float], processes: int, dice: random.Random) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_PAIRS)
    for process in range(1, processes + 1):
        for label, gain in zip(labels, gains, strict=True):
            for kind, centre in (("candidate", gain), ("placebo", 0.0)):
                for pair in range(1, 7):
                    ratio = math.exp((centre + dice.gauss(0, 0.15)) / 100)
                    order = dice.choice(("AB", "BA"))
                    row = [label, process, kind, pair, order, repr(1 / ratio), repr(1.0)]
                    writer.writerow([*row, "GPU-0", ""])
    return text.getvalue()
