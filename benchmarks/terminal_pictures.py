"""Draw what the terminal shows, 80 columns wide, for docs/pictures: one SVG for each outcome.

`python benchmarks/terminal_pictures.py docs/pictures` plays a small campaign on the CPU and a pull
request, each session on a pseudo-terminal.
"""

from __future__ import annotations

import html
import itertools
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

COLUMNS = 80
_ROW, _CELL = 17, 8.4
_STYLES = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341"}
_ESCAPE = re.compile(r"\x1b\[([\d;]*)([A-Za-z])")
#: What says nothing of a verdict.
_NOISE = (
    "platform ",
    "cachedir:",
    "rootdir:",
    "configfile:",
    "plugins:",
    "benchmark:",
    "testpaths:",
)

KERNEL = """\
import torch


def softmax(x):
    parts = {parts}
    return parts / parts.sum(-1, keepdim=True){more}
"""
FAST = "torch.exp(x - x.max(-1, keepdim=True).values)"
SLOW = "torch.stack([torch.exp(row - row.max()) for row in x])"
SAME = "torch.exp(torch.sub(x, x.max(-1, keepdim=True).values))"
CASES = """\
import pytest
import torch
from kernels.softmax import softmax


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize(("rows", "cols"), [(64, 1024), (128, 2048)])
def test_softmax(kopt, rows, cols):
    kopt(
        softmax,
        inputs=lambda: (torch.randn(rows, cols, device=kopt.device),),
        reference=lambda x: x.double().softmax(-1),
        dims={"rows": rows, "cols": cols},
        nbytes=8 * rows * cols,
    )
"""


def shown(words: list[str], root: Path) -> str:
    """Return what a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm", "PY_COLORS": "1"}
    process = subprocess.Popen(words, cwd=root, env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        text += more
    process.wait()
    os.close(ours)
    return text.decode(errors="replace")


def lines_of(text: str) -> list[str]:
    """Return the lines as they stand at the end: what a carriage return wrote over is gone."""
    found = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in found if not line.startswith(_NOISE)]


def styled(line: str) -> list[tuple[str, str]]:
    """Return each character that is seen with the attributes of its colour and weight."""
    found, codes, at = [], set[str](), 0
    for escape in [*_ESCAPE.finditer(line), None]:
        colour = next((_STYLES[code] for code in _STYLES if code in codes), "#e6edf3")
        style = f'fill="{colour}"' + (' font-weight="bold"' if "1" in codes else "")
        found += [(character, style) for character in line[at : escape and escape.start()]]
        if escape is None:
            break
        at = escape.end()
        for code in (escape[1] or "0").split(";") if escape[2] == "m" else ():
            codes = set() if code in ("0", "") else codes | {code}
    return found


def picture(command: str, text: str) -> str:
    """Return an SVG of a command and its output; what is longer than a row goes on in the next."""
    rows = []
    for line in [f"$ {command}", *lines_of(text.rstrip())]:
        cells = styled(line.rstrip())
        rows += [cells[at : at + COLUMNS] for at in range(0, max(len(cells), 1), COLUMNS)]
    body = []
    for place, cells in enumerate(rows):
        spans = [
            f"<tspan {style}>{html.escape(''.join(character for character, _ in run))}</tspan>"
            for style, run in itertools.groupby(cells, key=lambda cell: cell[1])
        ]
        y = 22 + place * _ROW
        body.append(f'<text x="12" y="{y}" xml:space="preserve">{"".join(spans)}</text>')
    width, height = 24 + COLUMNS * _CELL, 20 + len(rows) * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">\n'
        f'<rect width="100%" height="100%" rx="6" fill="#0d1117"/>\n{chr(10).join(body)}\n</svg>\n'
    )


def main() -> None:
    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "project"
        kernel = root / "kernels/softmax.py"
        for path, text in (
            (kernel, KERNEL.format(parts=SLOW, more="")),
            (root / "tests/test_softmax.py", CASES),
            (root / "pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["."]\n'),
            (root / ".gitignore", "__pycache__/\n.pytest_cache/\n"),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

        def run(*words: str) -> None:
            subprocess.run(words, cwd=root, check=True, stdout=subprocess.DEVNULL)

        run("git", "init", "-q", "-b", "main")
        run("git", "config", "user.name", "me")
        run("git", "config", "user.email", "me@localhost")
        run("git", "add", ".")
        run("git", "commit", "-q", "-m", "Begin")

        def draw(name: str, *words: str) -> None:
            text = shown([sys.executable, "-m", "pytest", *words], root)
            (target / f"terminal-{name}.svg").write_text(picture(f"pytest {' '.join(words)}", text))
            print(name, flush=True)

        kopt = (sys.executable, "-m", "pytest_kopt.cli", "init", "softmax", "--op", "softmax")
        run(*kopt, "--kernel", "kernels/softmax.py", "--backend", "TORCH", "--gpu", "cpu")
        following = ("--kopt-round", "next")
        draw("baseline", *following)
        for name, parts, more in (
            ("accepted", FAST, ""),
            ("rolled-back", SLOW, ""),
            ("undecided", SAME, ""),
            ("failing", FAST, " * 1.01"),
        ):
            kernel.write_text(KERNEL.format(parts=parts, more=more))
            draw(name, *following)
        run(*kopt[:3], "abandon")
        kernel.write_text(KERNEL.format(parts=SLOW, more=""))
        draw("gate", "--kopt-base", "HEAD")


if __name__ == "__main__":
    main()
