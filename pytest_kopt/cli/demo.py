"""`kopt demo`: a whole campaign on the CPU or a GPU, every round a real pytest run."""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.cli.command_line import argument, command
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.documents import dump_yaml
from pytest_kopt.errors import BadInput
from pytest_kopt.options.settings import DEFAULT_WORKSPACE
from pytest_kopt.show.words import clipped

_DATA = Path(__file__).parent / "demo_project"
_KERNEL = "kernels/rmsnorm.py"
_KEPT = (Decision.ACCEPTED, Decision.ACCEPTED_WITH_NOTE)
#: Versions that are another one with an edit: whose, what, and what stands there instead.
_EDITS = {
    "slower": ("chunked", "CHUNK = 32", "CHUNK = 2"),
    "wrong": ("repaired", "(rows * scale).mul_(weight)", "rows * scale"),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of the demo: the kernel version to try and the decisions it may get."""

    round: int
    version: str
    expected: tuple[Decision, ...]
    story: str


STEPS = (
    Turn(1, "baseline", (Decision.BASELINE,), "the starting point: row by row in float64"),
    Turn(2, "chunked", _KEPT, "32 rows at once"),
    Turn(3, "slower", (Decision.ROLLED_BACK,), "2 rows at once: slower, the kernel is restored"),
    Turn(4, "wrong", (Decision.REPAIR,), "float32, but the weight is forgotten: a repair opens"),
    Turn(4, "repaired", _KEPT, "the same hypothesis, repaired"),
    Turn(
        5,
        "cheating",
        (Decision.REJECTED_OVERFIT,),
        "answers from a cache keyed on the input's address: rejected",
    ),
)


@command(
    "kopt demo",
    argument("directory", nargs="?", type=Path, default=Path("kopt-demo"), metavar="DIR"),
    argument("--gpu", default="cpu", metavar="ARCH", help="on a GPU of this model instead: H200"),
)
def demo(arguments: argparse.Namespace) -> int:
    """Run a whole campaign in a small repository, on the CPU."""
    root = arguments.directory.resolve()
    if root.exists() and any(root.iterdir()):
        raise BadInput(f"{root} is not empty", where="kopt demo", fix="a new or empty directory")
    _make_project(root)
    name = f"rmsnorm_torch_{arguments.gpu}_demo".lower()
    _run(
        root,
        *(sys.executable, "-m", "pytest_kopt.cli", "init", name, "--op", "rmsnorm"),
        *("--kernel", _KERNEL, "--backend", "TORCH", "--gpu", arguments.gpu),
        *("--tests", "tests/test_rmsnorm.py"),
    ).check_returncode()
    for step in STEPS:
        surprise = _play(root, name, step, "cpu" if arguments.gpu == "cpu" else "cuda")
        if surprise:
            print(f"UNEXPECTED: {surprise}", file=sys.stderr)
            return 1
    layout = Layout(root / DEFAULT_WORKSPACE / name)
    print(layout.trend.read_text(encoding="utf-8"))
    for path in (layout.trend, layout.optimize_log, layout.summary(4), layout.verdict(5)):
        print(f"  {path}")
    print(f"  git -C {root} log --oneline")
    return 0


def _play(root: Path, name: str, step: Turn, device: str) -> str:
    """Run one step and return what was unexpected about it, "" when nothing."""
    print(f"\n=== round {step.round}: {step.version} — {step.story}", flush=True)
    kernel = root / _KERNEL
    before = kernel.read_text(encoding="utf-8")
    kernel.write_text(source(step.version), encoding="utf-8")
    for line in _difference(before, kernel.read_text(encoding="utf-8")):
        print(f"    {line}", flush=True)
    notes = root / "notes.yaml"
    notes.write_text(
        dump_yaml({"summary": step.version, "hypothesis": step.story}), encoding="utf-8"
    )
    incumbent = _git(root, "show", f"HEAD:{_KERNEL}")
    session = _run(
        root,
        *(sys.executable, "-m", "pytest", "--kopt-campaign", name),
        *("--kopt-round", str(step.round), "--kopt-notes", str(notes), "--kopt-device", device),
    )
    campaign = Campaign(Layout(root / DEFAULT_WORKSPACE / name), root)
    round = campaign.state.rounds.get(step.round)
    decided = round.verdict if round else None
    about = f"round {step.round} ({step.version})"
    if decided is None or decided.decision not in step.expected:
        return f"{about} ended as {decided and decided.decision}"
    if session.returncode != decided.decision.exit_code:
        return f"{about} ended with exit code {session.returncode}"
    restored = not decided.decision.keeps and not decided.decision.leaves_open
    is_back = not restored or kernel.read_text(encoding="utf-8") == incumbent
    return "" if is_back else f"{about} did not restore the kernel"


def source(version: str) -> str:
    base, old, new = _EDITS.get(version, (version, "", ""))
    return (_DATA / f"rmsnorm_{base}.py").read_text(encoding="utf-8").replace(old, new)


def _difference(old: str, new: str, most: int = 3) -> list[str]:
    """Return the first lines that a version changes, cut to a terminal's width."""
    differences = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    lines = [line for line in differences if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    code = [clipped(line, 76) for line in lines if line[1:].strip()]
    more = [f"… and {len(code) - most + 1} lines more"] if len(code) > most else []
    return [*code[: most - len(more)], *more]


def _make_project(root: Path) -> None:
    for name, text in (
        (_KERNEL, source("baseline")),
        ("kernels/__init__.py", ""),
        ("tests/test_rmsnorm.py", (_DATA / "case_rmsnorm.py").read_text(encoding="utf-8")),
        ("pyproject.toml", (_DATA / "pytest_settings.toml").read_text(encoding="utf-8")),
        (".gitignore", "__pycache__/\n.pytest_cache/\nnotes.yaml\n"),
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    _git(root, "init", "--quiet", "--initial-branch", "main")
    _git(root, "config", "user.name", "kopt demo")
    _git(root, "config", "user.email", "demo@localhost")
    _git(root, "add", ".")
    _git(root, "commit", "--quiet", "-m", "Start with a plain RMSNorm")


def _git(root: Path, *arguments: str) -> str:
    words = ["git", *arguments]
    return subprocess.run(words, cwd=root, check=True, capture_output=True, encoding="utf-8").stdout


def _run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    printed = ["python" if word == sys.executable else word for word in words]
    print(f"$ {' '.join(printed)}", flush=True)
    # A demo started by a test run must not inherit that run's options.
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(words, cwd=root, env=env, encoding="utf-8", check=False)
