"""Draw what known changes gain at both operating points, without kopt and by its rounds.

python benchmarks/operating_points_picture.py docs/pictures

It reads docs/results/operating_points_h100.json, which `operating_points.py` writes. The suite
draws the picture too and compares it with the file.
"""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[1] / "docs/results/operating_points_h100.json"
NAME = "operating-points.svg"
_WIDTH, _LABELS, _ROW, _TOP = 860, 250, 22, 58
_COLOURS = {"boost": "#2563eb", "sustained": "#c2410c"}


def picture(record: dict[str, Any]) -> str:
    """Return the SVG: a line for each change and point, the axis in percent."""
    rows = record["concluded"]["rows"]
    changes = list(dict.fromkeys(row["change"] for row in rows))
    lines = [(name, point) for name in changes for point in _COLOURS]
    figures = [row[key] for row in rows for key in ("low", "high", "independent")]
    low, high = min([0.0, *figures]), max([0.0, *figures])
    room = 0.04 * (high - low)

    def x(pct: float) -> str:
        share = (pct - low + room) / (high - low + 2 * room)
        return f"{_LABELS + share * (_WIDTH - _LABELS - 20):.1f}"

    height = _TOP + _ROW * len(lines) + 34
    drawn = [
        f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{_TOP - 8}" y2="{height - 26}" stroke="#8884"/>'
        f'<text x="{x(tick)}" y="{height - 8}" text-anchor="middle">{tick:+g} %</text>'
        for tick in range(round(low / 10) * 10, round(high) + 1, 10)
        if low - room <= tick <= high + room
    ]
    for number, (name, point) in enumerate(lines):
        y, colour = _TOP + _ROW * number + 6, _COLOURS[point]
        if point == "boost":
            drawn.append(f'<text x="8" y="{y + 14}">{html.escape(name)}</text>')
        of_point = [row for row in rows if (row["change"], row["point"]) == (name, point)]
        drawn += [
            f'<line x1="{x(row["low"])}" x2="{x(row["high"])}" y1="{y}" y2="{y}" '
            f'stroke="{colour}" stroke-width="5" stroke-opacity="0.45"/>'
            for row in of_point
        ]
        drawn += [
            f'<circle cx="{x(row["independent"])}" cy="{y}" r="4" fill="{colour}"/>'
            for row in of_point[:1]
        ]
    legend = "".join(
        f'<rect x="{_LABELS + 190 * i}" y="14" width="22" height="6" fill="{colour}" '
        f'fill-opacity="0.45"/><text x="{_LABELS + 30 + 190 * i}" y="21">interval at {point}</text>'
        for i, (point, colour) in enumerate(_COLOURS.items())
    )
    legend += f'<circle cx="{_LABELS + 391}" cy="17" r="4"/>'
    legend += f'<text x="{_LABELS + 402}" y="21">long measurement without kopt</text>'
    style = "text{font:13px sans-serif;fill:#334155}"
    style += "@media(prefers-color-scheme:dark){text{fill:#cbd5e1}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}">'
        f"<title>Speed-up of {len(changes)} changes at boost and under sustained load</title>"
        f"<style>{style}</style>{legend}{''.join(drawn)}</svg>\n"
    )


def main() -> None:
    (Path(sys.argv[1]) / NAME).write_text(picture(json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main()
