"""The campaign's own README.md: its static configuration, unknown fields as TBD."""

from __future__ import annotations

from pytest_kopt import policies
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.roofline import TARGET_PCT


def campaign_readme(manifest: Manifest) -> str:
    """Return the text of a new campaign's README.md."""
    target = manifest.performance_target or "TBD"
    limit = policies.load(manifest.policy).max_regressions
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

TBD

## Hardware facts

TBD

## Roofline

TBD

## Stop Conditions

- T1 performance_target: {target}
- T2 hardware efficiency: {TARGET_PCT:g} % of the attainable rate
- T3 max_iterations: {manifest.max_iterations or "none"}
- T4 the user: `kopt stop`
- regressions in a row: {limit} (policy {manifest.policy})
- no idle GPU: such a session ends with exit code 10
"""
