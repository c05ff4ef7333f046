"""Rounds in each language of docs/languages.md, timed: how long builds and verdicts take.

    python benchmarks/languages.py OUT [--gpu H200] [--languages triton cuda …]

Each language is a campaign of five rounds: a baseline that does the work twice, the same work twice
(the second time all is built), the page's own file (faster) and the baseline's again (slower). A
language whose source is a string has two more: another source, and one with an error. OUT gets
languages.md, with the objects that each command compiled, and the projects.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "languages.md"
INI = '[tool.pytest.ini_options]\npythonpath = ["."]\ntestpaths = ["tests"]\n'
TWICE = "\n\n_once = scaled\n\n\ndef scaled(x):\n    _once(x)\n    return _once(x)\n"
#: What an extension's source multiplies by; the same in other words, and a mistake.
FACTOR, OTHER, MISTAKE = "= 3 * ", "= (1 + 2) * ", "= (1 + two) * "
BACKENDS = {"cuda": ("HIP", "CUDA"), "cpp": ("HIP", "CPP"), "compiled": ("TORCH", "")}


def main() -> None:
    """Play every language that is asked for, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", default="cpu")
    parser.add_argument("--languages", nargs="*")
    given = parser.parse_args()
    blocks = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    files = dict(blocks)
    names = [path.split("_", 1)[1][:-3] for path in files if path.startswith("kernels/scaled_")]
    head = ("language", "round", "verdict", "change", "s", "objects compiled, s")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for name in given.languages or names:
        for row in _campaign(files, name, given.out / name, given.gpu):
            lines.append(f"| {name} | {' | '.join(row)} |")
            (given.out / "languages.md").write_text("\n".join(lines) + "\n")


def _campaign(files: dict[str, str], name: str, project: Path, gpu: str) -> list[tuple[str, ...]]:
    kernel = f"kernels/scaled_{name}.py"
    shutil.rmtree(project, ignore_errors=True)
    test = re.sub(r"^LANGUAGES = \{.*?^\}", "", files["tests/test_scaled.py"], flags=re.M | re.S)
    test = test.replace(
        'parametrize("language", LANGUAGES)', f'parametrize("language", ["{name}"])'
    )
    test = re.sub(r"    needed, on_cpu.*?importorskip\(needed\)\n", "", test, flags=re.S)
    once = files[kernel]
    for path, text in {
        "pyproject.toml": INI,
        "kernels/__init__.py": "",
        "tests/test_scaled.py": test,
        kernel: once + TWICE,
    }.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    backend, lang = BACKENDS.get(name, ("TRITON", ""))
    words = ["--op", "scaled", "--kernel", kernel, "--backend", backend, "--gpu", gpu]
    words += ["--metric", "Forward GB/s", *(["--lang", lang] if lang else [])]
    seconds = _run(project, "pytest_kopt.cli", "init", "c", *words)
    rows: list[tuple[str, ...]] = [("init", "", "", f"{seconds:.1f}", "")]
    same = f"{once}{TWICE}_SAME = 1\n"
    rounds = [
        ("baseline", once + TWICE),
        ("identical", same),
        ("identical, built", same),
        ("faster", once),
        ("slower", once + TWICE),
    ]
    if "load_inline" in once:
        rounds.append(("another source", once.replace(FACTOR, OTHER)))
        rounds.append(("an error in the source", once.replace(FACTOR, MISTAKE)))
    known = _compiled(extensions := Path(f"{project}-extensions"))
    for number, (what, text) in enumerate(rounds, start=1):
        (project / kernel).write_text(text)
        asked = ("--kopt-campaign", "c", "--kopt-round", str(number), "--kopt-measure-same")
        seconds = _run(project, "pytest", *asked)
        path = project / f"agent/workspace/c/rounds/round-{number}/verdict.json"
        verdict = json.loads(path.read_text()) if path.exists() else {}
        change = (verdict.get("aggregate") or {}).get("change_pct")
        shown = "" if change is None else f"{change:+.2f} %"
        new = {key: took for key, took in _compiled(extensions).items() if key not in known}
        known |= new
        objects = ", ".join(f"{took:.1f}" for took in new.values())
        decision = verdict.get("decision", "see log.txt")
        rows.append((what, decision, shown, f"{seconds:.1f}", objects))
    return rows


def _compiled(extensions: Path) -> dict[tuple[str, str], float]:
    """Return how long each object took that ninja has compiled, in s."""
    found: dict[tuple[str, str], float] = {}
    for log in extensions.rglob(".ninja_log"):
        for line in log.read_text().splitlines()[1:]:
            start, end, changed, name, _ = line.split("\t")
            if name.endswith(".o"):
                found[changed, name] = (int(end) - int(start)) / 1000
    return found


def _run(project: Path, *words: str) -> float:
    start = time.monotonic()
    env = {**os.environ, "TORCH_EXTENSIONS_DIR": f"{project}-extensions"}
    with (project / "log.txt").open("a") as log:
        log.write(f"$ {' '.join(words)}\n")
        log.flush()
        subprocess.run(
            [sys.executable, "-m", *words],
            cwd=project,
            env=env,
            stdout=log,
            stderr=log,
            check=False,
        )
    return time.monotonic() - start


if __name__ == "__main__":
    main()
