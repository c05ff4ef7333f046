"""The rooflines of a session's cases: evidence of the workers against the ceilings known here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.figures import in_unit, rounded
from pytest_kopt.knowledge import facts
from pytest_kopt.knowledge.facts import Ceiling, DeviceCeilings
from pytest_kopt.roofline import POSSIBLE_PCT, Limits, Roofline, Way, roofline

#: How many times what can be counted the declared work may be: every byte is counted, and of FLOPs
#: those of products, convolutions and attention.
_BYTES_SLACK, _FLOPS_SLACK = 1.05, 1.25
#: A product of float32 in TF32 has 60 to 75 dB, one in float32 more than 100 dB.
_TF32_DB = 90.0


def rooflines(results: Sequence[CaseResult], workspace: Path) -> list[Roofline]:
    """Return the rooflines of the timed cases; BadInput for a file of ceilings that is none."""
    device_ceilings: dict[str, DeviceCeilings] = {}
    case_rooflines = []
    for result in results:
        evidence = result.evidence
        device = evidence.device_model
        if not device or evidence.interpreted:
            continue
        if device not in device_ceilings:
            device_ceilings[device] = facts.known(workspace, device)
        engine = (evidence.engine or "").split("+")[0]
        moved = evidence.nbytes or [*(evidence.io_bytes or {}).values(), 0.0]
        rate = rate_of(evidence, device_ceilings[device])
        bandwidth, launch = (
            device_ceilings[device].bandwidth_for(moved[0]),
            device_ceilings[device].launch_us,
        )
        sources = rate.source, bandwidth.source
        limits = Limits(rate.value, bandwidth.value, launch.get(engine, 0.0), sources)
        case_rooflines += of_evidence(result.label, evidence, limits)
    return case_rooflines


def rate_of(evidence: CaseEvidence, ceilings: DeviceCeilings) -> Ceiling:
    """Return the ceiling of a case's FLOP rate, by what its kernel multiplies in.

    Triton multiplies float32 in TF32 unless told otherwise: accuracy tells, or a speed that the
    units of float32 do not have. An exact product of several narrow ones has such a speed too.
    """
    ceiling = ceilings.rate(str(evidence.dtype))
    if evidence.dtype != "float32" or not evidence.flops or evidence.counted_flops == 0:
        return ceiling
    ways: tuple[Way, Way] = ("forward", "backward")
    reached = max(
        (
            flops * len(times) / math.fsum(times) / 1e9
            for way, flops in zip(ways, evidence.flops, strict=True)
            if (times := evidence.samples_ms(way))
        ),
        default=0.0,
    )
    results = (evidence.accuracy or {}).values()
    is_narrow = any(
        result.is_told and result.dtype.endswith("float32") and result.snr_db < _TF32_DB
        for result in results
    )
    for faster in ("tf32", "bfloat16") if is_narrow else ("tf32",):
        too_fast = ceiling.value is not None and reached > ceiling.value * POSSIBLE_PCT / 100
        rate = ceilings.rate(faster)
        if rate.value is not None and (too_fast or (is_narrow and faster == "tf32")):
            ceiling = rate
    return ceiling


def of_evidence(label: str, evidence: CaseEvidence, limits: Limits) -> list[Roofline]:
    """Return the rooflines of a measured case, one a direction, from the evidence in its result.

    The bytes are the declared ones, or those of its tensors where they are less.
    """
    ways: tuple[Way, Way] = ("forward", "backward")
    return [
        _of_way(label, way, math.fsum(times) / len(times), evidence, limits)
        for way in ways
        if (times := evidence.samples_ms(way))
    ]


def _of_way(
    label: str, way: Way, time_ms: float, evidence: CaseEvidence, limits: Limits
) -> Roofline:
    place = int(way == "backward")
    flops, nbytes = (pair[place] if pair else None for pair in (evidence.flops, evidence.nbytes))
    counted = (evidence.io_bytes or {}).get(way)

    def with_bytes(moved: float | None) -> Roofline:
        return roofline(label, way, flops=flops, nbytes=moved, time_ms=time_ms, limits=limits)

    least = with_bytes(min((n for n in (nbytes, counted) if n), default=None))
    doubts = []
    if nbytes and counted and nbytes > _BYTES_SLACK * counted:
        pct = with_bytes(nbytes).achieved_pct or 0.0
        # A backward counts double where nothing else is said, which mostly is a little much.
        if pct > POSSIBLE_PCT or not place or evidence.nbytes != (nbytes / 2, nbytes):
            doubts.append(_doubt("nbytes", nbytes, f"its tensors hold {rounded(counted)}"))
            doubts.append("the roofline counts these")
    products = evidence.counted_flops
    if flops and products and not place and flops > _FLOPS_SLACK * products:
        doubts.append(_doubt("flops", flops, f"torch counts {rounded(products)} in the reference"))
    if least.is_impossible:
        quantity = {"compute": "flops", "memory": "nbytes"}.get(least.bound, "the work")
        share = in_unit(least.achieved_pct, "%")
        doubts.append(
            f"{share} of the attainable rate is impossible and does not count as efficiency: "
            f"{quantity} is over-declared, or {' and '.join(least.sources)} is wrong"
        )
    doubt = f"{label} {way}: {'; '.join(doubts)}" if doubts else ""
    return least.model_copy(update={"over_declared": doubt})


def _doubt(name: str, declared: float, counted: str) -> str:
    return f"{name} is over-declared: the case says {rounded(declared)}, {counted}"
