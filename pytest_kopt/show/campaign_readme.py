"""The campaign's own README.md: its static configuration, unknown fields as TBD."""

from __future__ import annotations

from pytest_kopt.campaign.manifest import Manifest


def campaign_readme(manifest: Manifest) -> str:
    """Return the text of a new campaign's README.md."""
    target = manifest.performance_target or "TBD"
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
- T2 hardware efficiency: TBD
- T3 max_iterations: {manifest.max_iterations or "none"}
- T4 the user: `kopt stop`
"""
