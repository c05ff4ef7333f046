"""S4's keep rule: what the benchmark accepts is kept only if kernels take less GPU time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_kopt.decide.verdict import Decision, KernelTime, Verdict
from pytest_kopt.profiling.table import CaseProfile, gpu_step_us
from pytest_kopt.schema.metrics import geomean


def kernel_time(profiles: Sequence[CaseProfile]) -> KernelTime | None:
    """Return the GPU kernel time of a profiled candidate, None where no GPU kernel was seen."""
    times = [time for time in gpu_step_us(profiles).values() if time > 0]
    if not times:
        return None
    hottest = next(item.hottest for item in profiles if item.on == "gpu" and item.hottest)
    return KernelTime(hottest=hottest.kernel, candidate_us=geomean(times))


def judge_kernel_time(
    verdict: Verdict, candidate: Mapping[str, float], incumbent: Mapping[str, float]
) -> Verdict:
    """Return the verdict, rolled back when the mean GPU kernel time did not improve.

    Both map a case's label to the mean microseconds that all its kernels take in a step, profiled
    the same way; all kernels, so that splitting one does not look like a gain. Their geometric mean
    over the common cases decides, over those of the target class where there is one. A verdict that
    keeps nothing is returned as it is, and so is one without a common case, with a flag that says
    so.
    """
    if not verdict.decision.keeps or verdict.decision is Decision.BASELINE:
        return verdict
    target = next((each for each in verdict.classes if each.name == verdict.target_class), None)
    others = {
        shape.label
        for shape in verdict.shapes
        if target is not None and not target.dims.items() <= shape.dims.items()
    }
    common = [
        label
        for label in candidate
        if candidate[label] > 0 and incumbent.get(label, 0) > 0 and label not in others
    ]
    if not common:
        flag = "no GPU kernel time was profiled on both sides: judged by the benchmark alone"
        return verdict.model_copy(update={"flags": [*verdict.flags, flag]})
    now, before = (geomean(times[label] for label in common) for times in (candidate, incumbent))
    gain_pct = (before / now - 1) * 100
    hottest = verdict.kernel_time.hottest if verdict.kernel_time else None
    measured = KernelTime(
        hottest=hottest, candidate_us=now, incumbent_us=before, change_pct=gain_pct
    )
    verdict = verdict.model_copy(update={"kernel_time": measured})
    text = f"mean GPU kernel time: {gain_pct:+.3f} % over {len(common)} case(s)"
    if gain_pct > 0:
        return verdict.model_copy(update={"flags": [*verdict.flags, text]})
    return verdict.model_copy(
        update={
            "decision": Decision.ROLLED_BACK,
            "reason": f"{verdict.reason}; but the {text}, which is no improvement",
            "next_step": "look at the profile: the gain is not in the kernels' time",
        }
    )
