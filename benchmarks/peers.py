"""Three ways to judge a kernel on the same known changes: the seeds' loop, pytest-benchmark, kopt.

python benchmarks/peers.py OUT [--repeats N] [--changes aa,+1,…] [--device cpu] [--limit-minutes M]

A call launches a product 200 times, the candidate a few times more or less: that is the truth.
Every judge says whether the candidate is kept. Right is to keep what is faster and has no shape
that lost 5 %. OUT/peers.json is written after every judgement; `peers_table.py` renders it.

- S0: `quick_test_bench.py` writes its CSV; `kopt decide` applies the seeds' rule to it and to the
  baseline's, with three re-measurements where the rule asks for them.
- pytest-benchmark: `--benchmark-compare-fail=mean:2%` against the baseline's run; kept when it
  passes.
- kopt: a round of a campaign.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_report import Report

PROJECT = Path(__file__).parent / "peers_project"
KERNEL = Path("kernels/products.py")
CAMPAIGN = "peers"
BASE = 200
#: Launches a call of the candidate, one number for all shapes or one a shape.
CHANGES: dict[str, tuple[int, int, int]] = {
    "aa": (200, 200, 200),
    "+1": (198, 198, 198),
    "-1": (202, 202, 202),
    "+2": (196, 196, 196),
    "-2": (204, 204, 204),
    "one-6": (190, 213, 190),
}
_KEPT = ("ACCEPTED", "ACCEPTED_WITH_NOTE")
_NOT_COMPLETE = 11


def truth_pct(change: str) -> list[float]:
    """Return the change of each shape's speed in per cent."""
    return [(BASE / launches - 1) * 100 for launches in CHANGES[change]]


def should_keep(change: str) -> bool:
    gains = truth_pct(change)
    return min(gains) > -5 and sum(gains) > 0


class Judges:
    """The three judges with their baselines, each in a directory of its own."""

    def __init__(self, directory: Path, device: str | None, sizes: list[int]) -> None:
        self._directory, self._sizes = directory, sizes
        self._options = ("--kopt-gpu-wait", "2", *(("--kopt-device", device) if device else ()))
        self._hide = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        self._arch = "cpu" if device == "cpu" else "H200"
        self._count = 0
        self.baselines: dict[str, float] = {}

    def prepare(self) -> None:
        """Measure every judge's baseline."""
        self._root("base", "aa")
        self.csv = self._directory / "base.csv"
        self.baselines["S0"] = self._s0("base", self.csv)["wall"]
        if importlib.util.find_spec("pytest_benchmark"):
            start = time.monotonic()
            self._run("base", *self._benchmark("base"))
            self.baselines["pytest-benchmark"] = time.monotonic() - start
        root = self._directory / "base"
        for words in (
            ("git", "init", "-q"),
            ("git", "add", "."),
            ("git", "-c", "user.name=p", "-c", "user.email=p@localhost", "commit", "-qm", "Start"),
        ):
            subprocess.run(words, cwd=root, check=True)
        words = ("--op", "products", "--kernel", str(KERNEL), "--backend", "TORCH")
        self._run("base", "-m", "pytest_kopt.cli", "init", CAMPAIGN, *words, "--gpu", self._arch,
                  "--tests", "tests")  # fmt: skip
        start = time.monotonic()
        done = self._run("base", "-m", "pytest", "--kopt-round", "1", *self._options)
        self.baselines["kopt"] = time.monotonic() - start
        if done.returncode:
            sys.exit(f"the baseline ended with {done.returncode}\n{done.stdout}{done.stderr}")

    def judge(self, judge: str, change: str) -> dict[str, Any] | None:
        """Return what a judge says about a change; None where it is not installed."""
        if judge not in self.baselines:
            return None
        self._count += 1
        name = f"try-{self._count}"
        self._root(name, change)
        start = time.monotonic()
        found = {"S0": self._judge_s0, "pytest-benchmark": self._judge_pb, "kopt": self._judge_kopt}
        said = found[judge](name)
        said["wall_seconds"] = round(time.monotonic() - start, 1)
        shutil.rmtree(self._directory / name)
        return {
            "judge": judge,
            "change": change,
            "right": said["kept"] == should_keep(change),
            **said,
        }

    def _judge_s0(self, name: str) -> dict[str, Any]:
        first = self._directory / f"{name}.csv"
        device = self._s0(name, first)["measuring_seconds"]
        words = ["-m", "pytest_kopt.cli", "decide", "--candidate", str(first), "--json"]
        words += ["--incumbent", str(self.csv)]
        done = self._run(name, *words)
        if done.returncode == _NOT_COMPLETE:
            for place in range(3):
                again = self._directory / f"{name}-{place}.csv"
                device += self._s0(name, again)["measuring_seconds"]
                words += ["--remeasure", str(again)]
            done = self._run(name, *words)
        verdict = json.loads(done.stdout)
        return {
            "kept": verdict["decision"] in _KEPT,
            "said": verdict["decision"],
            "change_pct": verdict["aggregate"]["change_pct"],
            "device_seconds": round(device, 2),
        }

    def _judge_pb(self, name: str) -> dict[str, Any]:
        against = str(self._directory / "base.json")
        words = (f"--benchmark-compare={against}", "--benchmark-compare-fail=mean:2%")
        done = self._run(name, *self._benchmark(name), *words)
        stats = json.loads((self._directory / f"{name}.json").read_text())["benchmarks"]
        return {
            "kept": done.returncode == 0,
            "said": "passed" if done.returncode == 0 else "failed",
            "change_pct": None,
            "device_seconds": round(sum(entry["stats"]["total"] for entry in stats), 2),
        }

    def _judge_kopt(self, name: str) -> dict[str, Any]:
        path = self._directory / f"{name}.verdict.json"
        done = self._run(
            name, "-m", "pytest", "--kopt-round", "next", f"--kopt-verdict={path}", *self._options
        )
        if not path.exists():
            sys.exit(f"the round ended with {done.returncode}\n{done.stdout}{done.stderr}")
        verdict = json.loads(path.read_text())
        attempt = f"agent/workspace/{CAMPAIGN}/rounds/round-2/artifacts/attempt-1/evidence.json"
        evidence = json.loads((self._directory / name / attempt).read_text())
        rows = [json.loads(text)["evidence"].get("timed", [0, 0]) for text in evidence["results"]]
        compared = evidence["session"]["comparison"].get("device_seconds", 0.0)
        return {
            "kept": verdict["decision"] in _KEPT,
            "said": verdict["decision"],
            "change_pct": (verdict["aggregate"] or {}).get("change_pct"),
            "device_seconds": round(compared + sum(end - begin for begin, end in rows), 2),
        }

    def _s0(self, name: str, path: Path) -> dict[str, float]:
        start = time.monotonic()
        done = self._run(name, "quick_test_bench.py", "--summary-csv", str(path))
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return {**found, "wall": time.monotonic() - start}

    def _benchmark(self, name: str) -> tuple[str, ...]:
        out = self._directory / f"{name}.json"
        return "-m", "pytest", "bench", "-q", "-p", "no:cacheprovider", f"--benchmark-json={out}"

    def _root(self, name: str, change: str) -> None:
        """Make a project with a change; what is judged has the baseline's records."""
        root = self._directory / name
        source = PROJECT if name == "base" else self._directory / "base"
        shutil.copytree(source, root, ignore=shutil.ignore_patterns("__pycache__"))
        launches = dict(zip(self._sizes, CHANGES[change], strict=True))
        text = (PROJECT / KERNEL).read_text().replace("LAUNCHES = {}", f"LAUNCHES = {launches}")
        (root / KERNEL).write_text(text)

    def _run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        kept = {key: text for key, text in os.environ.items() if key != "PYTEST_ADDOPTS"}
        return subprocess.run(
            [sys.executable, *words],
            cwd=self._directory / name,
            env={**kept, **self._hide, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--changes", default=",".join(CHANGES))
    parser.add_argument("--device", choices=("cpu",), help="default: the GPU")
    parser.add_argument("--limit-minutes", type=float, default=1e9)
    asked = parser.parse_args()
    began = time.monotonic()
    report = Report(asked.out, "peers")
    sizes = [64, 32, 96] if asked.device == "cpu" else [2048, 1024, 4096]
    with tempfile.TemporaryDirectory() as directory:
        judges = Judges(Path(directory), asked.device, sizes)
        judges.prepare()
        report.add("baseline_seconds", {k: round(s, 1) for k, s in judges.baselines.items()})
        report.add("truth_pct", {name: truth_pct(name) for name in CHANGES})
        said: list[dict[str, Any]] = []
        for _ in range(asked.repeats):
            for change in asked.changes.split(","):
                for judge in judges.baselines:
                    if time.monotonic() - began > asked.limit_minutes * 60:
                        return
                    found = judges.judge(judge, change)
                    if found:
                        said.append(found)
                        print(found, flush=True)
                        report.add("judgements", said)


if __name__ == "__main__":
    main()
