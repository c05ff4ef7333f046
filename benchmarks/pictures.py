"""Draw what terminal and report show today of the campaigns in docs/campaigns.

`python -m benchmarks.pictures` in the project's root; needs Chromium and the extra `report`.
The suite draws the terminal and writes the reports too, and compares them with the files.
`report.sha256` names the report that the pictures show.
"""

from __future__ import annotations

import hashlib
import html
import itertools
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.show.lines import Line, rows
from pytest_kopt.show.report.page import campaign_page
from pytest_kopt.show.standing import Closing
from pytest_kopt.show.terminal import result_lines, verdict_lines
from tests.chromium import chromium

DOCS = Path(__file__).parents[1] / "docs"
CAMPAIGNS = sorted(path for path in (DOCS / "campaigns").iterdir() if path.is_dir())
PICTURED = DOCS / "campaigns/gemm_fp8_blockwise/report.html"
PICTURES = DOCS / "pictures"
#: The campaign, and the PR check, that the terminal is shown of.
TERMINAL = DOCS / "campaigns/softmax"
GATE = DOCS / "results/gate_softmax_h100.json"
#: The round and the attempt that show each outcome.
ROUNDS = {
    "baseline": (1, 1),
    "accepted": (2, 1),
    "rolled-back": (3, 1),
    "undecided": (4, 1),
    "failing": (5, 1),
}
COLUMNS = 80
_ROW, _CELL = 17, 8.4
_COLOURS = {"red": "#ff7b72", "green": "#7ee787", "yellow": "#e3b341"}
_PLAIN = "#e6edf3"


def pictures() -> dict[str, str]:
    """Return the SVG of each outcome by its name."""
    verdict = Verdict.model_validate_json(GATE.read_text(), extra="ignore")
    drawn = {"gate": svg("pytest --kopt-base HEAD", verdict_lines(verdict))}
    for name, (number, attempt) in ROUNDS.items():
        drawn[name] = svg("pytest --kopt-round next", kept_lines(number, attempt))
    return drawn


def kept_lines(number: int, attempt: int) -> list[str]:
    """Return the section `kopt` of an attempt's session, after the first failure of a case."""
    with tempfile.TemporaryDirectory() as root:
        copy = Path(root, "agent/workspace", TERMINAL.name)
        shutil.copytree(TERMINAL, copy)
        campaign = Campaign(Layout(copy), Path(root))
        recorded = campaign.state.rounds[number].attempts[attempt]
        verdict = recorded.verdict()
        failures = [shape.diagnosis.text for shape in verdict.shapes if shape.diagnosis]
        # pytest writes these, so a terminal breaks them where it ends.
        lines = [
            line[start : start + COLUMNS]
            for line in (failures[0].splitlines() if failures else ())
            for start in range(0, len(line), COLUMNS)
        ]
        closing = Closing(verdict)
        shown = result_lines(recorded.results(), closing, verdict.rooflines)
        return [*lines, f"{' kopt ':=^{COLUMNS}}", *shown]


def svg(command: str, lines: Iterable[str]) -> str:
    """Return a picture of a command and its output, as a terminal shows it."""
    drawn = [f'<tspan fill="{_PLAIN}">{html.escape(f"$ {command}")}</tspan>']
    for line in lines:
        markup = line.markup if isinstance(line, Line) else {}
        fill = next((_COLOURS[name] for name in _COLOURS if markup.get(name)), _PLAIN)
        weight = ' font-weight="bold"' if markup.get("bold") else ""
        drawn += [
            f'<tspan fill="{fill}"{weight}>{html.escape(row)}</tspan>'
            for row in rows(line, COLUMNS)
        ]
    body = "\n".join(
        f'<text x="12" y="{22 + place * _ROW}" xml:space="preserve">{row}</text>'
        for place, row in enumerate(drawn)
    )
    width, height = 24 + COLUMNS * _CELL, 20 + len(drawn) * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">\n'
        f'<rect width="100%" height="100%" rx="6" fill="#0d1117"/>\n{body}\n</svg>\n'
    )


def report(campaign: Path) -> str:
    """Return the report of a campaign of docs/campaigns."""
    with tempfile.TemporaryDirectory() as root:
        copy = Path(root, "agent/workspace", campaign.name)
        shutil.copytree(campaign, copy)
        opened = Campaign(Layout(copy), Path(root))
        best = opened.layout.snapshot(opened.state.incumbent_round)
        shutil.copytree(best, root, dirs_exist_ok=True)
        return campaign_page(opened).replace(f"{root}/", "")


def main() -> None:
    for name, text in pictures().items():
        (PICTURES / f"terminal-{name}.svg").write_text(text)
    for campaign in CAMPAIGNS:
        (campaign / "report.html").write_text(report(campaign))
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as page:
        for width, scheme in itertools.product((1280, 400), ("light", "dark")):
            page.look(width, scheme)
            page.open(PICTURED)
            page.screenshot(PICTURES / f"report-{width}-{scheme}.png", height=1040)
    digest = hashlib.sha256(PICTURED.read_bytes()).hexdigest()
    (PICTURES / "report.sha256").write_text(f"{digest}\n")


if __name__ == "__main__":
    main()
