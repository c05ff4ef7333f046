"""The rooflines of a session's cases: evidence of the workers against the ceilings known here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.knowledge import ceilings
from pytest_kopt.knowledge.ceilings import Ceilings
from pytest_kopt.roofline import Limits, Roofline, of_evidence


def rooflines(results: Sequence[CaseResult], workspace: Path) -> list[Roofline]:
    """Return the rooflines of the cases that were timed, forward and backward.

    BadInput when a file of ceilings cannot be used. Times of Triton's interpreter have none.
    """
    known: dict[str, Ceilings] = {}
    found = []
    for result in results:
        evidence = result.evidence
        device = evidence.get("device_model")
        if not device or evidence.get("interpreted"):
            continue
        if device not in known:
            known[device] = ceilings.known(workspace, device)
        engine = str(evidence.get("engine", "")).split("+")[0]
        moved = evidence.get("nbytes") or list(evidence.get("io_bytes", {}).values())
        limits = limits_of(
            known[device], str(evidence.get("dtype")), engine, moved[0] if moved else 0.0
        )
        found += of_evidence(result.label, evidence, limits)
    return found


def limits_of(known: Ceilings, dtype: str, engine: str, nbytes: float) -> Limits:
    """Return what bounds a case whose inputs are of a dtype, timed by an engine."""
    rate, bandwidth = known.rate(dtype), known.bandwidth_for(nbytes)
    launch = known.launch_us.get(engine, 0.0)
    return Limits(rate.value, bandwidth.value, launch, (rate.source, bandwidth.source))
