"""The noise floor of a machine for its cases: a version against itself, in many fresh processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS, percent, student_quantile
from pytest_kopt.decide.known_noise import MOST
from pytest_kopt.errors import BadInput
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.paired.judge import Caught
from pytest_kopt.paired.noise import Scatter
from pytest_kopt.paired.samples import CaseQuads, measured_under
from pytest_kopt.trials.measurements import Measurements
from pytest_kopt.trials.trees import Trees

POWER = 0.9


def calibrate(
    results: Sequence[CaseResult], root: Path, processes: int, measurements: Measurements
) -> dict[str, Any]:
    """Measure the cases that passed against themselves; BadInput where that cannot be done."""
    passed = [result for result in results if result.check == "PASS"]
    if not passed:
        fix = "repair the kernel until a case passes: pytest --kopt-check-only"
        raise BadInput("no case passed", where="--kopt-calibrate", fix=fix)
    try:
        with (
            ExitStack() as held,
            measurements.compare(passed, Trees(held, root).having({})) as comparison,
        ):
            replicas = list(comparison.replicas(processes))
    except (Caught, NotComparable) as error:
        raise BadInput(str(error), where="--kopt-calibrate") from None
    return calibration(passed, replicas, comparison.how)


def calibration(
    results: Sequence[CaseResult], replicas: Sequence[Mapping[str, CaseQuads]], how: str
) -> dict[str, Any]:
    """Return the noise floor as JSON-able data; log-ratios are of the whole step.

    `resolvable_pct` maps a number of processes to the smallest gain that is accepted with 90 %
    probability after that many. It is (t at the look's level + z of the power) standard errors.
    """
    ratios = {
        result.label: {
            "main": [replica[result.nodeid].ratio("step") for replica in replicas],
            "placebo": [replica[result.nodeid].ratio("step", "placebo") for replica in replicas],
        }
        for result in results
    }
    totals = [
        statistics.fmean(arms["main"][i] for arms in ratios.values()) for i in range(len(replicas))
    ]
    spread = statistics.stdev(totals)
    return {
        "schema_version": 1,
        "device": next(str(result.evidence.device_model) for result in results),
        "compared_in": how,
        "processes": len(replicas),
        "engines": sorted({quads.engine for quads in replicas[0].values()}),
        "geomean_sd_pct": percent(spread),
        "geomean_worst_pct": percent(max(map(abs, totals))),
        "case_sd_pct": {
            label: percent(statistics.stdev(arms["main"])) for label, arms in ratios.items()
        },
        "resolvable_pct": {str(count): resolvable_pct(spread, count) for count in LOOKS},
        "log_ratios": ratios,
        **Scatter.of(replicas).model_dump(),
        "measured": measured_under(results, replicas),
    }


def resolvable_pct(spread: float, processes: int) -> float:
    """Return the gain in percent accepted with `POWER` after `processes` processes.

    `spread` is the standard deviation of the geomean's log-ratio between processes. The
    noncentral t is approximated by shifting the central one.
    """
    look = max((count for count in LOOKS if count <= processes), default=min(LOOKS))
    quantile = student_quantile(MOST + 2 * (look - 1), 1 - LOOKS[look])
    quantile += statistics.NormalDist().inv_cdf(POWER)
    return percent(quantile * spread / math.sqrt(min(processes, FINAL_LOOK)))
