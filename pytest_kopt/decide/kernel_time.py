"""S4's keep rule: what the benchmark accepts is kept only if kernels take less GPU time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pytest_kopt.decide.verdict import Decision, Verdict


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
    logs = [math.log(incumbent[label] / candidate[label]) for label in common]
    gain_pct = (math.exp(math.fsum(logs) / len(logs)) - 1) * 100
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
