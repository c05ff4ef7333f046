"""Rounds in each language of docs/languages.md, timed: how long builds and verdicts take.

    python benchmarks/languages.py OUT [--gpu H200] [--languages triton cuda …]

Each language is a campaign of five rounds: a baseline that does the work twice, the same work twice
(the second time all is built), the page's own file (faster) and the baseline's again (slower). OUT
gets languages.md and the projects.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "languages.md"
INI = '[tool.pytest.ini_options]\npythonpath = ["."]\ntestpaths = ["tests"]\n'
TWICE = "\n\n_once = scaled\n\n\ndef scaled(x):\n    _once(x)\n    return _once(x)\n"
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
    lines = ["| language | round | verdict | change | s |", "| --- | --- | --- | --- | --- |"]
    for name in given.languages or names:
        for row in _campaign(files, name, given.out / name, given.gpu):
            lines.append(f"| {name} | {' | '.join(row)} |")
            (given.out / "languages.md").write_text("\n".join(lines) + "\n")


def _campaign(
    files: dict[str, str], name: str, project: Path, gpu: str
) -> list[tuple[str, str, str, str]]:
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
    rows = [("init", "", "", f"{seconds:.0f}")]
    same = f"{once}{TWICE}_SAME = 1\n"
    rounds = ("baseline", "identical", "identical, built", "faster", "slower")
    versions = (once + TWICE, same, same, once, once + TWICE)
    for number, (what, text) in enumerate(zip(rounds, versions, strict=True), start=1):
        (project / kernel).write_text(text)
        asked = ("--kopt-campaign", "c", "--kopt-round", str(number), "--kopt-measure-same")
        seconds = _run(project, "pytest", *asked)
        path = project / f"agent/workspace/c/rounds/round-{number}/verdict.json"
        verdict = json.loads(path.read_text()) if path.exists() else {}
        change = (verdict.get("aggregate") or {}).get("change_pct")
        shown = "" if change is None else f"{change:+.2f} %"
        rows.append((what, verdict.get("decision", "see log.txt"), shown, f"{seconds:.0f}"))
    return rows


def _run(project: Path, *words: str) -> float:
    start = time.monotonic()
    with (project / "log.txt").open("a") as log:
        log.write(f"$ {' '.join(words)}\n")
        log.flush()
        subprocess.run(
            [sys.executable, "-m", *words], cwd=project, stdout=log, stderr=log, check=False
        )
    return time.monotonic() - start


if __name__ == "__main__":
    main()
