"""Draw how two rounds of a kept campaign were decided: replicates, interval, decision.

python benchmarks/decision_picture.py       writes docs/pictures/decision.svg
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAMPAIGN = ROOT / "docs/campaigns/softmax/rounds"
PICTURE = ROOT / "docs/pictures/decision.svg"
#: Rounds, and what each changed.
ROUNDS = {3: "one warp a row", 4: "offsets of 64 bits"}
LEFT, WIDTH, LEAST, MOST = 40, 640, -2.4, 0.8
STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.small { font-size: 12px; fill: #59636e }
.axis { stroke: #59636e; fill: none }
.zero { stroke: #1f2328; stroke-dasharray: 4 3 }
.candidate { fill: #0969da } .control { fill: none; stroke: #59636e; stroke-width: 1.5 }
.interval { stroke: #0969da; stroke-width: 6; stroke-opacity: 0.35 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 } .axis { stroke: #9198a1 }
  .zero { stroke: #f0f6fc } .candidate { fill: #4493f8 } .control { stroke: #9198a1 }
  .interval { stroke: #4493f8 }
}"""


def replicates(number: int, comparison: str) -> list[float]:
    """Return the change of each replicate, %: the geometric mean of its cases' median pairs."""
    pairs: dict[tuple[str, str], list[float]] = defaultdict(list)
    with (CAMPAIGN / f"round-{number}/artifacts/pairs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["comparison"] == comparison:
                ratio = float(row["incumbent_ms"]) / float(row["candidate_ms"])
                pairs[row["round_of_inference"], row["label"]].append(math.log(ratio))
    medians = defaultdict(list)
    for (replicate, _), logs in pairs.items():
        medians[replicate].append(statistics.median(logs))
    return [100 * math.expm1(statistics.mean(logs)) for logs in medians.values()]


def at(pct: float) -> float:
    return round(LEFT + (pct - LEAST) / (MOST - LEAST) * WIDTH, 1)


def drawn() -> str:
    """Return the picture as SVG."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 40} 270">',
        f"<style>{STYLE}</style>",
    ]
    for place, (number, change) in enumerate(ROUNDS.items()):
        verdict = json.loads((CAMPAIGN / f"round-{number}/verdict.json").read_text())
        whole, y = verdict["aggregate"], 75 + 95 * place
        low, high, mean = (whole[f"{name}_pct"] for name in ("low", "high", "change"))
        decision = verdict["decision"].replace("_", " ").lower()
        sure = f"{100 * whole['confidence']:.2f}".rstrip("0").rstrip(".")
        lines += [
            f'<text x="{LEFT}" y="{y - 40}">round {number}, {change}: {decision}</text>',
            f'<text class="small" x="{LEFT}" y="{y - 22}">{mean:+.2f} % [{low:+.2f}, {high:+.2f}]'
            f" at {sure} % confidence</text>",
            f'<line class="interval" x1="{at(low)}" x2="{at(high)}" y1="{y}" y2="{y}"/>',
        ]
        for comparison, name, shift in (("candidate", "candidate", 0), ("placebo", "control", 16)):
            lines += [
                f'<circle class="{name}" cx="{at(pct)}" cy="{y + shift}" r="4"/>'
                for pct in replicates(number, comparison)
            ]
    lines.append(f'<line class="zero" x1="{at(0)}" x2="{at(0)}" y1="20" y2="205"/>')
    lines.append(f'<path class="axis" d="M{LEFT} 205h{WIDTH}"/>')
    for tick in (-2, -1.5, -1, -0.5, 0, 0.5):
        lines.append(f'<path class="axis" d="M{at(tick)} 205v5"/>')
        lines.append(
            f'<text class="small" x="{at(tick)}" y="224" text-anchor="middle">{tick:g} %</text>'
        )
    keys = (
        (LEFT + 6, "candidate", "a replicate: new against old"),
        (LEFT + 236, "control", "a replicate: old against its copy (A/A)"),
    )
    for x, name, text in keys:
        lines.append(f'<circle class="{name}" cx="{x}" cy="250" r="4"/>')
        lines.append(f'<text class="small" x="{x + 12}" y="254">{text}</text>')
    lines.append(f'<line class="interval" x1="{LEFT + 520}" x2="{LEFT + 550}" y1="250" y2="250"/>')
    lines.append(f'<text class="small" x="{LEFT + 558}" y="254">the interval</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn())
