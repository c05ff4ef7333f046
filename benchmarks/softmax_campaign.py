"""Record docs/campaigns/softmax: the README's kernel, and the rounds of docs/first-gpu-round.md.

python benchmarks/softmax_campaign.py OUT [GPU]      (about four minutes on one H100)

Makes the project of the README in OUT/project, and leaves OUT/softmax, the campaign with its
report, OUT/gate_softmax.json, the verdict of a pull request that goes back to 32 warps, and
OUT/commands.json, each command with its seconds, its exit code and its output.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from campaign_steps import edited
from gpu_report import ROOT, machine, run

KERNEL = "kernels/softmax.py"
ROW = "tl.program_id(0)"
STORE, WITHOUT_SUMS = "parts / tl.sum(parts)", "parts"
FACTOR = "parts * (1.0 / tl.sum(parts))"
#: Rounds in order: what is replaced in the kernel, and the notes. The last is wrong at first.
ROUNDS: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
    (
        {"num_warps=32": "num_warps=8"},
        {
            "summary": "8 warps a row",
            "hypothesis": "32 warps leave most lanes without an element",
            "change": "num_warps 32 -> 8",
            "expected": "1.3x or more",
        },
    ),
    (
        {"num_warps=8": "num_warps=1"},
        {
            "summary": "one warp a row",
            "hypothesis": "no barrier is needed within a warp",
            "change": "num_warps 8 -> 1",
            "expected": "5 percent",
        },
    ),
    (
        {f"{name} + {ROW} ": f"{name} + {ROW}.to(tl.int64) " for name in "xy"},
        {
            "summary": "offsets of 64 bits",
            "hypothesis": "a pointer has 64 bits, so an offset of 64 bits needs no conversion",
            "change": "the row's number as tl.int64",
            "expected": "1 percent",
        },
    ),
    (
        {"num_warps=8": "num_warps=4", STORE: WITHOUT_SUMS},
        {
            "summary": "4 warps",
            "hypothesis": "fewer barriers",
            "change": "num_warps 8 -> 4, one division less",
            "expected": "2 percent",
        },
    ),
)
REPAIR = {WITHOUT_SUMS + ", at": FACTOR + ", at"}


def files_of_the_readme() -> dict[str, str]:
    text = (ROOT / "README.md").read_text()
    return dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", text, re.DOTALL))


def project(root: Path) -> None:
    """Make the README's project, committed."""
    settings = '[tool.pytest.ini_options]\npythonpath = ["."]\n'
    for name, text in {**files_of_the_readme(), "pyproject.toml": settings}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    author = (("config", "user.name", "k"), ("config", "user.email", "k@example.org"))
    for words in (("init", "-q"), *author, ("add", "-A"), ("commit", "-qm", "Add a softmax")):
        subprocess.run(["git", *words], cwd=root, check=True)


def edit(root: Path, replaced: dict[str, str]) -> None:
    path = root / KERNEL
    edits = [{"replace": old, "with": new} for old, new in replaced.items()]
    path.write_text(edited(path.read_text(), edits))


def main() -> None:
    out, gpu = Path(sys.argv[1]).resolve(), (sys.argv[2:] or ["H100"])[0]
    root, commands = out / "project", list[dict[str, Any]]()
    project(root)

    def kopt(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "pytest_kopt.cli", *words], cwd=root, check=True)

    def pytest(*words: str) -> None:
        done = run(root, *words)
        seconds = round(done.seconds, 2)
        commands.append({"words": words, "seconds": seconds, "exit": done.code, "text": done.text})
        (out / "commands.json").write_text(
            json.dumps({"machine": machine(), "commands": commands}, indent=1) + "\n"
        )
        if done.code == 4:
            sys.exit(done.text)
        print(*words, seconds, done.code, *done.text.splitlines()[-8:], sep="\n", flush=True)

    def round_with(notes: dict[str, str]) -> None:
        (out / "notes.yaml").write_text(json.dumps({**notes, "bucket": "K1"}))
        pytest("--kopt-round", "next", f"--kopt-notes={out / 'notes.yaml'}")

    words = ["init", "softmax", "--op", "softmax", "--kernel", KERNEL, "--backend", "TRITON"]
    kopt(*words, "--gpu", gpu)
    pytest("--kopt-round", "1")
    for replaced, notes in ROUNDS:
        edit(root, replaced)
        round_with(notes)
    edit(root, REPAIR)
    round_with(ROUNDS[-1][1])
    pytest("--kopt-round", "final")
    kopt("report", "softmax")
    shutil.copytree(root / "agent/workspace/softmax", out / "softmax", symlinks=True)
    (warps,) = re.findall(r"num_warps=\d+", (root / KERNEL).read_text())
    edit(root, {warps: "num_warps=32"})
    pytest("--kopt-base", "HEAD", f"--kopt-verdict={out / 'gate_softmax.json'}")


if __name__ == "__main__":
    main()
