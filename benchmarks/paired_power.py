"""False accepts and power of the paired rule, by the very function that decides a round.

python benchmarks/paired_power.py [NOISE.json …] [verdicts]

With files from `pytest --kopt-calibrate` their fresh processes are drawn anew, with replacement,
and a true gain is added to every log-ratio. Without one, five cases are simulated with normal
process effects of the sizes measured on an H200 (0.04, 0.17, 0.06, 0.23, 0.06 %).
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tabulate import tabulate

from pytest_kopt import policies
from pytest_kopt.decide.inference import LOOKS
from pytest_kopt.decide.paired import PairedCase, PairedEvidence, decide_paired
from pytest_kopt.decide.verdict import Verdict

#: One fresh process: (log-ratio, placebo log-ratio) by case.
Process = dict[str, tuple[float, float]]
SIMULATED_SD_PCT = {"a": 0.039, "b": 0.174, "c": 0.058, "d": 0.231, "e": 0.062}
TRUTHS_PCT = (0.0, 0.25, 0.5, 1.0, -0.5, -1.0)


def recorded(path: Path) -> list[Process]:
    found = json.loads(path.read_text())["log_ratios"]
    count = len(next(iter(found.values()))["main"])
    return [
        {name: (case["main"][i], case["placebo"][i]) for name, case in found.items()}
        for i in range(count)
    ]


def simulated(dice: random.Random) -> Callable[[], Process]:
    def draw() -> Process:
        return {
            name: (dice.gauss(0, sd / 100), dice.gauss(0, sd / 100))
            for name, sd in SIMULATED_SD_PCT.items()
        }

    return draw


def judge(draw: Callable[[], Process], gains_pct: dict[str, float]) -> Verdict:
    policy = policies.load("primus")
    processes: list[Process] = []
    for look in LOOKS:
        processes += [draw() for _ in range(look - len(processes))]
        cases = tuple(
            PairedCase(
                name=name,
                label=name,
                dims={"case": name},
                ratios=tuple(p[name][0] + math.log1p(gain / 100) for p in processes),
                placebo=tuple(p[name][1] for p in processes),
            )
            for name, gain in gains_pct.items()
        )
        verdict = decide_paired(PairedEvidence("step", cases), policy)
        if verdict is not None:
            return verdict
    raise AssertionError("the last look decides")


def main() -> None:
    dice = random.Random(2026)
    files = [Path(word) for word in sys.argv[1:] if word.endswith(".json")]
    counts = [int(word) for word in sys.argv[1:] if word.isdigit()]
    processes = [process for path in files for process in recorded(path)]
    draw = partial(dice.choice, processes) if files else simulated(dice)
    verdicts = counts[0] if counts else 2000
    names = list(draw())
    rows = []
    wishes = [(f"{truth:+g} % everywhere", dict.fromkeys(names, truth)) for truth in TRUTHS_PCT]
    split = dict.fromkeys(names, 2.0) | {names[0]: -6.0}
    for title, gains in [*wishes, ("one case -6 %, the others +2 %", split)]:
        found = [judge(draw, gains) for _ in range(verdicts)]
        tally = Counter(str(verdict.decision).replace("_WITH_NOTE", "") for verdict in found)
        regressed = sum(any(s.status == "regressed" for s in v.shapes) for v in found)
        shares = [tally[name] for name in ("ACCEPTED", "ROLLED_BACK", "INCONCLUSIVE", "INCOMPLETE")]
        rows.append(
            [
                title,
                *(f"{100 * n / verdicts:.2f}" for n in shares),
                f"{100 * regressed / verdicts:.2f}",
            ]
        )
    header = [
        "truth",
        "accepted %",
        "rolled back %",
        "inconclusive %",
        "A/A failed %",
        "regressed %",
    ]
    source = f"{len(processes)} recorded processes" if files else "simulated processes"
    print(f"{verdicts} verdicts a row, {source}, looks {dict(LOOKS)}\n")
    print(tabulate(rows, headers=header, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
