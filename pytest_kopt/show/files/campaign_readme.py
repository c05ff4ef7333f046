"""The campaign's own README.md, its static configuration with unknown fields as TBD; baseline.md.

README.md is written before anything is measured; what the baseline tells is filled in where it says
that this is to come, so that nobody's edits are lost. Then baseline.md tells what round 1 measured.
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
from pytest_kopt.show.rooflines import share_of, target_cells, target_table
from pytest_kopt.show.words import bullets, markdown_table, page


def campaign_readme(manifest: Manifest, policy: Policy) -> str:
    model = f", {manifest.target_model}" if manifest.target_model else ""
    only = ", ".join(manifest.kernel_source)
    return f"""# {manifest.target_op} ({manifest.target_backend}) on {manifest.target_gpu}{model}

## Target

- Operator: {manifest.target_op}
- Language: {manifest.target_lang}
- Kernel: {only}
- Primary metric: {manifest.primary_metric or "chosen by the baseline's schema"}

## Inputs

- Tests: {manifest.tests or "pytest's default paths"}
- Shapes: {manifest.target_shapes}

## Hard constraints

- Only {only} may change; tests, settings and the manifest's rules are fingerprinted at the baseline
- Every case passes its gate before it is timed
- One change a round
- The operator's own constraints: TBD

{_hardware(manifest)}
## Stop Conditions

- T1 performance_target: {manifest.performance_target or "TBD"}
{_targets()}
- T3 max_iterations: {manifest.max_iterations or "none"}
- T4 the user: `kopt stop`
- regressions in a row: {policy.max_regressions} (policy {manifest.policy})
- no idle GPU: such a session ends with exit code 10
"""


def with_baseline(text: str, manifest: Manifest, device: str, rooflines: Sequence[Roofline]) -> str:
    """Return a README's text with what the baseline tells: its device's facts, the targets."""
    text = text.replace(_hardware(manifest), _hardware(manifest, device))
    return text.replace(_targets(), _targets(rooflines))


def _hardware(manifest: Manifest, device: str = "") -> str:
    """Return the sections on the hardware; `device` is the model that measured the baseline."""
    about, facts = product_facts(manifest.target_gpu, manifest.target_model, device)
    measured = f"The baseline was measured on {device}. " if device else ""
    return f"""## Hardware facts

{measured}{about[0].upper()}{about[1:]}:

{_listed([fact.citation() for fact in facts])}

Ceilings that `kopt calibrate` measures are preferred.

## Roofline

F FLOPs on Q bytes take max(F / peak, Q / bandwidth, launch) at least; ridge: peak / bandwidth.

{_listed(list(_ridges(facts)))}

Every case's own is in `baseline.md`, once round 1 is measured.
"""


def _targets(rooflines: Sequence[Roofline] = ()) -> str:
    """Return the condition T2 with the absolute target of each case."""
    text = f"- T2 hardware efficiency: {TARGET_PCT:g} % of the attainable rate"
    if not rooflines:
        return f"{text}; in TFLOPS, GB/s and µs of each case: TBD, known once round 1 is measured"
    unknown = sorted({reason for item in rooflines for reason in item.unknown})
    sources = sorted({source for item in rooflines for source in item.sources})
    table = (f"  {line}" for line in target_table(rooflines).splitlines())
    lines = [f"{text} of each case:\n", *table, "", *(f"  - {source}" for source in sources)]
    if unknown:
        lines.append(f"\n  UNKNOWN are {'; '.join(unknown)}: `kopt calibrate --ceilings`\n")
    return "\n".join(lines)


def _ridges(facts: Sequence[Fact]) -> Iterator[str]:
    """Yield the intensities at which a product's documented peaks meet, by dtype."""
    known = {fact.metric: fact for fact in facts if fact.value is not None}
    bandwidth = known.get("hbm_bandwidth")
    for metric, rate in known.items():
        dtype = re.fullmatch(r"matrix_peak_(\w+)_dense", metric)
        if bandwidth is None or not bandwidth.value or not rate.value or dtype is None:
            continue
        ridge = rate.value / bandwidth.value
        product = rate.key.partition(".")[0]
        yield f"{product}: memory-bound below {ridge:.0f} FLOP/byte in {dtype[1]}"


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "TBD"


def baseline_report(campaign: Campaign, table: Table) -> str:
    """Return the text of baseline.md; the baseline is decided."""
    verdict = campaign.state.rounds[1].last.verdict()
    results = campaign.state.rounds[1].last.results()
    return page(
        f"Baseline of {campaign.name}",
        [
            ("Measured", _measured(campaign, results)),
            ("Cases", markdown_table(row.cells for row in table.rows)),
            ("Roofline", _rooflines_found(verdict.rooflines, results)),
        ],
    )


def _measured(campaign: Campaign, results: Sequence[CaseResult]) -> str:
    session = campaign.first.session()

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


def _rooflines_found(found: Sequence[Roofline], results: Sequence[CaseResult]) -> str:
    if not found:
        interpreted = any(result.evidence.interpreted for result in results)
        why = "Triton's interpreter ran the cases: their times mean nothing."
        return why if interpreted else "No case declares FLOPs or bytes."
    table = markdown_table(
        {
            "Case": item.label,
            "Direction": item.way,
            "FLOP/byte": figure(item.intensity),
            "Ridge": figure(item.ridge),
            "Bound": item.bound,
            "Attainable": f"{figure(item.attainable, 'UNKNOWN')} {item.unit}",
            "Achieved": figure(item.achieved),
            "Of it": share_of(item),
            **target_cells(item, "Target TFLOPS", "Target GB/s", "Target µs"),
        }
        for item in found
    )
    sources = sorted({text for item in found for text in item.sources})
    lines = [table, "", f"Hardware efficiency (T2): {efficiency(found).why}"]
    return "\n".join([*lines, *(f"- {text}" for text in sources)])
