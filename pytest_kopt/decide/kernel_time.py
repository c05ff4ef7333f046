"""The rule on GPU kernel time: what the benchmark accepts is kept only if kernels take less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, KernelTime, Verdict
from pytest_kopt.figures import changed
from pytest_kopt.profiling.kernel_table import TOOL, CaseProfile, gpu_step_us
from pytest_kopt.schema.metrics import geomean

#: Profiles of the candidate and of the incumbent, a fresh process each on one device.
ProfilePair = tuple[Sequence[CaseProfile], Sequence[CaseProfile]]

_NEXT_STEP = (
    "measure where torch.profiler sees the GPU's kernels; or have the benchmark judge alone: "
    "`kernel_time: false` in manifest.yaml, which the baseline freezes"
)
#: Reason and next step of what was measured where there are no such kernels.
ON_CPU = ("a CPU has no GPU kernel time, which this campaign is judged by", _NEXT_STEP)


def kernel_time(profiles: Sequence[CaseProfile]) -> KernelTime | None:
    """Return the GPU kernel time of a profiled candidate, None where no GPU kernel was seen."""
    times = [time for time in gpu_step_us(profiles).values() if time > 0]
    if not times:
        return None
    hottest = next(
        profile.hottest for profile in profiles if profile.on == "gpu" and profile.hottest
    )
    return KernelTime(hottest=hottest.kernel, candidate_us=geomean(times))


def require_kernel_time(verdict: Verdict, *profiled: Sequence[CaseProfile]) -> Verdict:
    """Return the verdict, INCOMPLETE where a case has no GPU kernel time in what was taken."""
    for item in (seen_profile for profiles in profiled for seen_profile in profiles):
        if item.tool != TOOL or (item.on == "gpu" and item.step_us > 0):
            continue
        why = item.note.splitlines()[0] if item.note else "its steps ran no GPU kernel"
        return verdict.model_copy(
            update={
                "decision": Decision.INCOMPLETE,
                "reason": f"no GPU kernel time of {item.label} by {item.tool}: {why}",
                "next_step": _NEXT_STEP,
            }
        )
    return verdict


def judge_kernel_time(verdict: Verdict, pairs: Sequence[ProfilePair], policy: Policy) -> Verdict:
    """Return the verdict with the mean GPU kernel time of both versions, which decides what stays.

    A step's time is that of all its kernels; what counts is the geometric mean over the (target
    class's) cases and over the pairs. It has to gain the policy's noise, and in every pair.
    """
    judged = [[_of_target(verdict, side) for side in pair] for pair in pairs]
    required = require_kernel_time(verdict, *(side for pair in judged for side in pair))
    if required is not verdict:
        return required if verdict.decision.keeps else verdict
    times = [[geomean(gpu_step_us(side).values()) for side in pair] for pair in judged]
    now, before = (geomean(column) for column in zip(*times, strict=True))
    gain = (before / now - 1) * 100
    in_pairs = [(then / candidate - 1) * 100 for candidate, then in times]
    candidate = kernel_time(judged[0][0])
    measured = KernelTime(
        hottest=candidate.hottest if candidate else None,
        candidate_us=now,
        incumbent_us=before,
        change_pct=gain,
        pairs_pct=in_pairs,
    )
    changes = ", ".join(changed(change) for change in in_pairs)
    text = f"mean GPU kernel time: {changed(gain)} ({changes} in pairs of processes)"
    update: dict[str, object] = {"kernel_time": measured, "flags": [*verdict.flags, text]}
    holds = policy.reaches(gain, policy.noise_pct) and min(in_pairs) > 0
    if verdict.decision.keeps and not holds:
        update |= {
            "decision": Decision.ROLLED_BACK,
            "reason": f"{verdict.reason}; but the {text}, {_why_not(gain, policy)}",
            "next_step": "look at the profile: the gain is not in the kernels' time",
        }
    return verdict.model_copy(update=update)


def _why_not(gain: float, policy: Policy) -> str:
    if gain <= 0:
        return "which is no improvement"
    if not policy.reaches(gain, policy.noise_pct):
        return f"and below {policy.noise_pct:g} % is noise"
    return "and not all of them improved"


def _of_target(verdict: Verdict, profiles: Sequence[CaseProfile]) -> Sequence[CaseProfile]:
    """Return the profiles of the target class's cases, all of them where there is no target."""
    target = next((group for group in verdict.classes if group.name == verdict.target_class), None)
    if target is None:
        return profiles
    dims: Mapping[str, object] = target.dims
    outside = {shape.label for shape in verdict.shapes if not dims.items() <= shape.dims.items()}
    return [profile for profile in profiles if profile.label not in outside]
