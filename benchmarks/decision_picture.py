"""Draw how kopt decides three rounds of a kept campaign: replicates, intervals, limits, decision.

The replicates and priors are the recorded ones; the rule in `decide/` makes the intervals of them.

python benchmarks/decision_picture.py       writes docs/pictures/decision.svg
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from pytest_kopt.decide.inference import LOOKS, SHAPE_LEVEL, Estimate, log_ratio, percent
from pytest_kopt.decide.known_noise import Prior, mean_of
from pytest_kopt.decide.look import slower_by
from pytest_kopt.figures import at_level, changed_within

ROOT = Path(__file__).resolve().parents[1]
CAMPAIGN = ROOT / "docs/campaigns/gemm_fp8_blockwise/rounds"
PICTURE = ROOT / "docs/pictures/decision.svg"
#: Rounds, and what each changed.
ROUNDS = {8: "one pass quantises both ways", 10: "loads by descriptors", 9: "4 stages, not 3"}
#: The plot, in pixels, and the changes at its ends, in percent.
LEFT, WIDTH, LEAST, MOST = 142, 486, -8.0, 40.0
#: The scale is linear up to about this many percent and logarithmic beyond.
LINEAR = 0.25
TICKS = (-5, -2, -1, -0.3, 0, 0.3, 1, 2, 5, 10, 20)
#: Height of a round, and where its rows are: those of all cases, then one a case.
TOP, PANEL, ROW = 34, 218, 18
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.decision { font-weight: 700; font-size: 14px } .small { font-size: 12px; fill: #59636e }
.paper { fill: #ffffff } .axis { stroke: #59636e; fill: none }
.zero { stroke: #1f2328; stroke-dasharray: 4 3 }
.mark { fill: #1f2328 }
.band { fill: #8c959f; fill-opacity: 0.28; stroke: #59636e; stroke-dasharray: 1 2 }
.limit { stroke: #b35900; stroke-width: 2; fill: none }
.replicate { fill: #0969da; fill-opacity: 0.75 }
.control { fill: none; stroke: #59636e; stroke-width: 1.5 }
.whole { stroke: #0969da; stroke-width: 4; fill: none }
.case { stroke: #0969da; stroke-width: 1.5; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 } .paper { fill: #0d1117 } .axis { stroke: #9198a1 }
  .zero { stroke: #f0f6fc } .mark { fill: #f0f6fc } .band { stroke: #9198a1 }
  .limit { stroke: #f0a04b } .replicate { fill: #4493f8 } .control { stroke: #9198a1 }
  .whole, .case { stroke: #4493f8 }
}"""
#: A decision's mark (a path around the origin: upwards, downwards, level), and its reason.
DECISIONS = {
    "ACCEPTED": (
        "M-6 5L0 -6L6 5z",
        "The interval of all cases lies above 0, that of each case above the limit.",
    ),
    "ROLLED_BACK": ("M-6 -5L0 6L6 -5z", "The interval of all cases lies below 0."),
    "INCONCLUSIVE": ("M-6 -2.5h12v5h-12z", "The interval of all cases contains 0."),
}


def verdict_of(number: int) -> dict[str, Any]:
    verdict: dict[str, Any] = json.loads((CAMPAIGN / f"round-{number}/verdict.json").read_text())
    return verdict


@cache
def replicates(number: int, comparison: str) -> dict[str, list[float]]:
    """Return each case's log-ratios, one a replicate: the median of its pairs."""
    pairs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (CAMPAIGN / f"round-{number}/artifacts/pairs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["comparison"] == comparison:
                ratio = float(row["incumbent_ms"]) / float(row["candidate_ms"])
                pairs[row["label"]][row["round_of_inference"]].append(math.log(ratio))
    return {label: [*map(statistics.median, of_case.values())] for label, of_case in pairs.items()}


def of_all(number: int, comparison: str) -> list[float]:
    """Return each replicate's log-ratio of all cases: the mean over its cases."""
    return mean_of([*replicates(number, comparison).values()])


def estimates(number: int) -> tuple[Estimate, dict[str, Estimate]]:
    """Return the estimate of all cases, and that of each, with the priors that were recorded."""
    noise = verdict_of(number)["noise"]
    path = CAMPAIGN / f"round-{number}/artifacts/attempt-1/evidence.json"
    (recorded,) = json.loads(path.read_text())["session"]["comparison"]["priors"].values()

    def prior(found: dict[str, Any]) -> Prior:
        variance = noise["excess"] * log_ratio(found["sd_pct"]) ** 2
        return Prior(variance, found["freedom"], found["source"])

    new, copy = replicates(number, "candidate"), replicates(number, "placebo")
    cases = {
        label: Estimate.of(new[label], copy[label], prior(found))
        for label, found in zip(new, recorded.values(), strict=True)
    }
    whole = Estimate.of(of_all(number, "candidate"), of_all(number, "placebo"), prior(noise))
    return whole, cases


def level_of(number: int) -> float:
    """Return the one-sided level of the look at all replicates of a round."""
    return LOOKS[len(of_all(number, "candidate"))]


def figures(estimate: Estimate, level: float) -> list[float]:
    """Return the change and the ends of its interval, %."""
    return [*estimate.figures(level).values()]


def at(pct: float) -> float:
    """Return where a change is, in pixels."""
    least, most, place = (math.asinh(value / LINEAR) for value in (LEAST, MOST, pct))
    return round(LEFT + (place - least) / (most - least) * WIDTH, 1)


def drawn() -> str:
    """Return the picture as SVG."""
    bottom = TOP + PANEL * len(ROUNDS) - 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 12} {bottom + 50}">',
        f"<style>{STYLE}</style>",
        '<rect class="paper" width="100%" height="100%" rx="6"/>',
    ]
    for place, number in enumerate(ROUNDS):
        lines += _round(number, TOP + PANEL * place, is_first=place == 0)
    lines.append(f'<path class="axis" d="M{LEFT} {bottom}h{WIDTH}"/>')
    for tick in TICKS:
        lines.append(f'<path class="axis" d="M{at(tick)} {bottom}v5"/>')
        lines.append(_text(at(tick), bottom + 19, f"{tick:+g}" if tick else "0", middle=True))
    axis = "change of speed, %; + is faster; the scale is stretched near 0"
    lines.append(_text(LEFT + WIDTH / 2, bottom + 38, axis, middle=True))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _round(number: int, top: int, *, is_first: bool) -> list[str]:
    """Return a round: its decision, the rows of all cases, and a row for each case."""
    verdict = verdict_of(number)
    policy, decision, level = verdict["thresholds"], verdict["decision"], level_of(number)
    estimate, cases = estimates(number)
    whole = figures(estimate, level)
    mark, reason = DECISIONS[decision]
    limit, noise = percent(slower_by(policy["shape_gate_pct"])), policy["noise_pct"]
    band, end = at(percent(slower_by(noise))), at(percent(log_ratio(noise)))
    rows = [top + 54 + ROW * place for place in range(3 + len(verdict["shapes"]))]
    first, last = rows[3] - ROW / 2, rows[-1] + ROW / 2
    lines = [
        f'<path class="mark" transform="translate(18 {top - 5})" d="{mark}"/>',
        f'<text x="32" y="{top}"><tspan class="decision">{decision}</tspan>'
        f" · round {number}: {ROUNDS[number]} · {changed_within(*whole)}</text>",
        f'<text x="32" y="{top + 19}">{reason}</text>',
        f'<rect class="band" x="{band}" y="{rows[0] - 10}" width="{round(end - band, 1)}"'
        ' height="20"/>',
        f'<path class="limit" d="M{at(limit)} {first}V{last}'
        + "".join(f"M{at(limit)} {y}l-5 5" for y in range(int(first), int(last) - 3, 8))
        + '"/>',
        f'<path class="zero" d="M{at(0)} {top + 32}V{last + 4}"/>',
        _text(12, rows[0] + 4, f"all cases, {at_level(1 - 2 * level)}"),
        _interval("whole", rows[0], whole),
        _text(12, rows[1] + 4, f"{len(of_all(number, 'candidate'))} replicates"),
        _text(12, rows[2] + 4, "A/A control"),
    ]
    for y, comparison, name in (
        (rows[1], "candidate", "replicate"),
        (rows[2], "placebo", "control"),
    ):
        lines += [
            f'<circle class="{name}" cx="{at(percent(ratio))}" cy="{y}" r="3.5"/>'
            for ratio in of_all(number, comparison)
        ]
    for y, (label, of_case) in zip(rows[3:], cases.items(), strict=True):
        lines.append(_text(12, y + 4, f"{label.partition('M=4096 ')[2]}, 95 %"))
        lines.append(_interval("case", y, figures(of_case, SHAPE_LEVEL)))
    if is_first:
        lines += [
            _text(end + 8, rows[0] + 4, f"equivalence ±{noise:g} %"),
            _text(at(limit) + 7, rows[3] + 4, f"{limit:.2f} %: regression"),
            _text(at(limit) + 7, rows[4] + 2, "limit of a case"),
        ]
    return lines


def _interval(name: str, y: float, change: list[float]) -> str:
    """Return an interval with its ends, and a stroke across it at the estimate."""
    mean, low, high = map(at, change)
    return (
        f'<path class="{name}" d="M{low} {y}H{high}"/><path class="case" d="M{low} {y - 5}v10'
        f'M{high} {y - 5}v10M{mean} {y - 7}v14"/>'
    )


def _text(x: float, y: float, text: str, *, middle: bool = False) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text class="small" x="{round(x, 1):g}" y="{y:g}"{anchor}>{text}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawn())
