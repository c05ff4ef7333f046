"""The campaign's own README.md: its static configuration, unknown fields as TBD."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.decide.policy import Policy
from pytest_kopt.knowledge.facts import Fact, Facts
from pytest_kopt.roofline import TARGET_PCT


def campaign_readme(manifest: Manifest, policy: Policy) -> str:
    """Return the text of a new campaign's README.md."""
    target = manifest.performance_target or "TBD"
    facts = Facts().headline(manifest.target_gpu)
    only = ", ".join(manifest.kernel_source)
    return f"""# {manifest.target_op} ({manifest.target_backend}) on {manifest.target_gpu}

## Target

- Operator: {manifest.target_op}
- Language: {manifest.target_lang}
- Kernel: {", ".join(manifest.kernel_source)}
- Primary metric: {manifest.primary_metric or "chosen by the baseline's schema"}

## Inputs

- Tests: {manifest.tests or "pytest's default paths"}
- Shapes: {manifest.target_shapes}

## Hard constraints

- Only {only} may change; tests, settings and the manifest's rules are fingerprinted at the baseline
- Every case passes its gate before it is timed
- One change a round
- The operator's own constraints: TBD

## Hardware facts

{_listed([fact.citation() for fact in facts])}

Ceilings that `kopt calibrate` measures are preferred.

## Roofline

{_listed(list(_ridges(facts)))}

Every case's own is in `baseline.md`, once round 1 is measured.

## Stop Conditions

- T1 performance_target: {target}
- T2 hardware efficiency: {TARGET_PCT:g} % of the attainable rate
- T3 max_iterations: {manifest.max_iterations or "none"}
- T4 the user: `kopt stop`
- regressions in a row: {policy.max_regressions} (policy {manifest.policy})
- no idle GPU: such a session ends with exit code 10
"""


def _ridges(facts: Sequence[Fact]) -> Iterator[str]:
    """Yield the intensity at which a product's two documented peaks meet, in bf16."""
    by_key = {fact.key: fact for fact in facts}
    for fact in facts:
        product, _, metric = fact.key.partition(".")
        rate = by_key.get(f"{product}.matrix_peak_bf16_dense")
        if metric != "hbm_bandwidth" or rate is None or fact.value is None or rate.value is None:
            continue
        ridge = rate.value / fact.value
        yield f"{product}: memory-bound below {ridge:.0f} FLOP/byte in bf16, compute-bound above"


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "TBD"
