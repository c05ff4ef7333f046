"""What the GPU benchmarks share: a record that is written as it grows, and runs of pytest."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tabulate import tabulate

from pytest_kopt.devices.pinning import find_vendor

ROOT = Path(__file__).resolve().parents[1]
GPU_PROJECT = ROOT / "benchmarks" / "gpu_project"
#: hypothesis' plugin imports hypothesis in the summary of every session, for 0.6 to 1.1 s.
_WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


class Report:
    """OUT/<name>.json and OUT/<name>.md, rewritten whenever something is added."""

    def __init__(self, out: Path, name: str) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._path = out / name
        # Where it was written to is nobody's business.
        script = f"benchmarks/{Path(sys.argv[0]).name}"
        words = [script, *("OUT" if Path(word) == out else word for word in sys.argv[1:])]
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        self.found: dict[str, Any] = {
            "commit": head.stdout.strip()[:12],
            "command": " ".join(words),
            "machine": machine(),
        }
        self._tables: list[str] = [f"# {name}"]
        self._write()

    def add(self, key: str, value: Any) -> None:
        """Record a value."""
        self.found[key] = value
        self._write()

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show rows as a Markdown table."""
        text = tabulate(rows, headers="keys", tablefmt="github", floatfmt=".4g")
        self._tables.append(f"## {title}\n\n{text}")
        print(f"\n{title}\n{text}", flush=True)
        self._write()

    def _write(self) -> None:
        self._path.with_suffix(".json").write_text(json.dumps(self.found, indent=1) + "\n")
        self._path.with_suffix(".md").write_text("\n\n".join(self._tables) + "\n")


def machine() -> dict[str, Any]:
    """Return what the figures were made on, without a CUDA context: that would be a stranger's."""
    vendor = find_vendor()
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "gpus": [f"{d.name} {d.uuid}" for d in vendor.devices()] if vendor else [],
        "listed_by": vendor.name if vendor else "",
    }


@dataclass(frozen=True, slots=True)
class Run:
    """A finished pytest."""

    code: int
    seconds: float
    text: str


def start(root: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start pytest in a project."""
    environ = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *_WITHOUT, *arguments],
        cwd=root,
        env=environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(root: Path, *arguments: str, **variables: str) -> Run:
    """Run pytest in a project."""
    began = time.perf_counter()
    process = start(root, *arguments, **variables)
    text, _ = process.communicate()
    return Run(process.returncode, time.perf_counter() - began, text)
