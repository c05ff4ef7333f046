"""Simulated races, through the functions that decide live ones: the choice, and what is accepted.

python benchmarks/race_power.py [races=200] [write]

Process noise is normal with the standard deviations of docs/paired-evidence.md:
0.25 % a case and process on an H200 (five of them 0.11 % together), 0.3 % for a single case.
`write` puts the table there.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_report import replace_table
from tabulate import tabulate

from pytest_kopt import policies
from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS, log_ratio
from pytest_kopt.decide.known_noise import DEVICE_TIMED, Noise
from pytest_kopt.decide.paired import decide_paired
from pytest_kopt.decide.paired_evidence import PairedCase, PairedEvidence
from pytest_kopt.decide.race_rule import RACE_LOOKS, heat, is_over, winner

PRIMUS = policies.load("primus")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "paired-evidence.md"
#: Gains in percent of eight candidates: what a race is about.
FIELDS: dict[str, tuple[float, ...]] = {
    "eight copies of the incumbent": (0.0,) * 8,
    "one +1 %, seven copies": (1.0, *(0.0,) * 7),
    "+0.5 % apart, up to +3.5 %": tuple(0.5 * i for i in range(8)),
    "all within 0.4 % of +2 %": tuple(1.6 + 0.05 * i for i in range(8)),
    "seven slower, one +0.5 %": (0.5, *(-1.0 - i for i in range(7))),
}
#: How a field is measured: cases, and the standard deviation of each between processes in percent.
NOISE = {"five cases": (5, 0.2), "one case": (1, 0.2)}


def evidence(
    columns: Sequence[Sequence[float]], copies: Sequence[Sequence[float]], look: int
) -> Any:
    cases = tuple(
        PairedCase(str(i), str(i), {}, tuple(new[:look]), tuple(old[:look]))
        for i, (new, old) in enumerate(zip(columns, copies, strict=True))
    )
    return PairedEvidence("step speed", cases, noise=Noise((), DEVICE_TIMED))


def drawn(
    draw: random.Random, gain: float, cases: int, sd: float, shared: Sequence[Sequence[float]]
) -> list[list[float]]:
    """Return a candidate's log-ratios by case and process; half the variance is the incumbent's."""
    own = sd / 100 / 2**0.5
    return [
        [log_ratio(gain) + old + draw.gauss(0, own) for old in shared[case]]
        for case in range(cases)
    ]


def race(draw: random.Random, gains: Sequence[float], cases: int, sd: float) -> dict[str, Any]:
    """Play one race; returns the gain of the chosen one, whether it is kept, and the cost."""
    own = sd / 100 / 2**0.5

    def incumbents() -> list[list[float]]:
        return [[draw.gauss(0, own) for _ in range(FINAL_LOOK)] for _ in range(cases)]

    shared = incumbents()
    placebo = drawn(draw, 0.0, cases, sd, shared)
    columns = {str(i): drawn(draw, gain, cases, sd, shared) for i, gain in enumerate(gains)}
    left, arms = list(columns), 0
    found: dict[str, Any] = {}
    seen = 0
    for look in RACE_LOOKS:
        arms += len(left) * (look - seen)
        seen = look
        found = {name: evidence(columns[name], placebo, look) for name in left}
        standings = heat(found, PRIMUS)
        left = [name for name in left if not standings[name].out]
        if is_over(standings, left):
            break
    dropped = left and max(range(len(gains)), key=gains.__getitem__) not in map(int, left)
    if not left:
        return {"chosen": None, "kept": False, "arms": arms, "processes": seen, "dropped": False}
    chosen = winner(found, left, dict.fromkeys(left, 1))
    shared = incumbents()
    fresh, copies = drawn(draw, gains[int(chosen)], cases, sd, shared), incumbents()
    for look in LOOKS:
        verdict = decide_paired(evidence(fresh, copies, look), PRIMUS)
        if verdict is not None:
            break
    assert verdict is not None
    return {
        "chosen": gains[int(chosen)],
        "kept": verdict.decision.keeps,
        "arms": arms,
        "processes": seen,
        "dropped": bool(dropped),
    }


def table(races: int) -> str:
    rows = []
    for place, (noise, (cases, sd)) in enumerate(NOISE.items()):
        for name, gains in FIELDS.items():
            draw = random.Random(f"{place} {name}")
            found = [race(draw, gains, cases, sd) for _ in range(races)]
            near = [
                item["chosen"] is not None and max(gains) - item["chosen"] <= 0.5 for item in found
            ]
            rows.append(
                {
                    "eight candidates": name,
                    "measured on": noise,
                    "accepted %": 100 * sum(item["kept"] for item in found) / races,
                    "chosen within 0.5 % of the best": f"{100 * sum(near) / races:.1f} %",
                    "best dropped %": 100 * sum(item["dropped"] for item in found) / races,
                    "processes": sum(item["processes"] for item in found) / races,
                    "arms timed": sum(item["arms"] for item in found) / races,
                }
            )
    return tabulate(rows, headers="keys", tablefmt="github", floatfmt=".4g")


def main() -> None:
    wishes = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
    text = table(int(wishes.get("races", 200)))
    print(text)
    if "write" in sys.argv:
        replace_table(PAGE, "race_power", f"{text}\n")


if __name__ == "__main__":
    main()
