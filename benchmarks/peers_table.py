"""Render what `peers.py` found as Markdown tables.

python benchmarks/peers_table.py OUT/peers.json
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tabulate import tabulate

TITLES = {
    "aa": "identical code",
    "+1": "+1 %",
    "-1": "−1 %",
    "+2": "+2 %",
    "-2": "−2 %",
    "one-6": "one shape −6 %, the others +5 %",
}


def decisions(said: list[dict[str, Any]]) -> str:
    """Return what each judge said to each change; what is wrong stands in bold."""
    judges = list(dict.fromkeys(entry["judge"] for entry in said))
    rows = []
    for change in (name for name in TITLES if any(entry["change"] == name for entry in said)):
        row: dict[str, Any] = {"true change": TITLES[change]}
        for judge in judges:
            here = [e for e in said if (e["judge"], e["change"]) == (judge, change)]
            counts = Counter((entry["said"], entry["right"]) for entry in here)
            row[judge] = ", ".join(
                f"{number} {word}" if right else f"**{number} {word}**"
                for (word, right), number in counts.items()
            )
        rows.append(row)
    return tabulate(rows, headers="keys", tablefmt="github")


def costs(found: dict[str, Any]) -> str:
    """Return right and wrong decisions of each judge, and what one costs."""
    rows = []
    for judge, baseline in found["baseline_seconds"].items():
        here = [entry for entry in found["judgements"] if entry["judge"] == judge]
        rows.append(
            {
                "judge": judge,
                "right": sum(entry["right"] for entry in here),
                "wrong": sum(not entry["right"] for entry in here),
                "device s a decision": statistics.median(e["device_seconds"] for e in here),
                "wall s a decision": statistics.median(e["wall_seconds"] for e in here),
                "wall s of the baseline": baseline,
            }
        )
    return tabulate(rows, headers="keys", tablefmt="github", floatfmt=".1f")


def main() -> None:
    found = json.loads(Path(sys.argv[1]).read_text())
    machine = found["machine"]
    where = ", ".join(machine["gpus"]) or "CPU"
    print(f"{where}, torch {machine['torch']}, {machine['time']}\n")
    print(f"{decisions(found['judgements'])}\n\n{costs(found)}")


if __name__ == "__main__":
    main()
