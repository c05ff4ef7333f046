"""The campaign's own README.md, its static configuration with unknown fields as TBD; baseline.md.

README.md is written before anything is measured. The baseline's facts replace the two sections that
announce them, so that no edit is lost. Then baseline.md tells what round 1 measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.policy import Policy
from pytest_kopt.figures import figure
from pytest_kopt.knowledge.facts import Fact, product_facts
from pytest_kopt.roofline import TARGET_PCT, Roofline, efficiency
from pytest_kopt.schema.table import Table
from pytest_kopt.show.rooflines import share_of, target_cells
from pytest_kopt.show.templates import rendered

_MISSING = "not recorded"


def campaign_readme(manifest: Manifest, policy: Policy) -> str:
    sections = {"hardware": _hardware(manifest), "targets": _targets()}
    return rendered("readme.md.j2", manifest=manifest, policy=policy, **sections)


def with_baseline(text: str, manifest: Manifest, device: str, rooflines: Sequence[Roofline]) -> str:
    """Return a README's text with what the baseline tells: its device's facts, the targets."""
    text = text.replace(_hardware(manifest), _hardware(manifest, device))
    return text.replace(_targets(), _targets(rooflines))


def _hardware(manifest: Manifest, device: str = "") -> str:
    """Return the sections on the hardware; `device` is the model that measured the baseline."""
    about, facts = product_facts(manifest.target_gpu, manifest.target_model, device)
    lines = [fact.citation() for fact in facts]
    ridges = list(_ridges(facts))
    return rendered("readme_hardware.md.j2", device=device, about=about, facts=lines, ridges=ridges)


def _targets(rooflines: Sequence[Roofline] = ()) -> str:
    """Return the condition T2 with the absolute target of each case: rates to reach, and time."""
    headings = ("TFLOPS, at least", "GB/s, at least", "µs, at most")
    unknown = sorted({reason for line in rooflines for reason in line.unknown})
    text = rendered(
        "readme_targets.md.j2",
        share_pct=TARGET_PCT,
        targets=[
            {
                "Case": line.label,
                "Direction": line.way,
                "Bound": line.bound,
                **target_cells(line, *headings),
            }
            for line in rooflines
        ],
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


def baseline_report(campaign: Campaign, table: Table) -> str:
    """Return the text of baseline.md; the baseline is decided."""
    baseline = campaign.first
    results, rooflines = baseline.results(), baseline.verdict().rooflines
    session = dict.fromkeys(("started", "ended", "host", "python", "pytest_kopt"), _MISSING)
    return rendered(
        "baseline.md.j2",
        campaign=campaign.name,
        session=session | baseline.session(),
        seen={name: _seen(results, name) for name in ("device_model", "device", "engine", "torch")},
        schema=campaign.manifest.csv_schema,
        cases=[row.cells for row in table.rows],
        rooflines=[_roofline_cells(line) for line in rooflines],
        efficiency=efficiency(rooflines).why,
        sources=_sources(rooflines),
        is_interpreted=any(result.evidence.interpreted for result in results),
    )


def _seen(results: Sequence[CaseResult], name: str) -> str:
    values = {text for result in results if (text := getattr(result.evidence, name))}
    return ", ".join(sorted(values)) or _MISSING


def _roofline_cells(line: Roofline) -> dict[str, str]:
    return {
        "Case": line.label,
        "Direction": line.way,
        "FLOP/byte": figure(line.intensity),
        "Ridge": figure(line.ridge),
        "Bound": line.bound,
        "Attainable": f"{figure(line.attainable, 'UNKNOWN')} {line.unit}",
        "Achieved": figure(line.achieved),
        "Of it": share_of(line),
        **target_cells(line, "Target TFLOPS", "Target GB/s", "Target µs"),
    }
