"""What a verdict takes by the clock on the wall, whole commands from start to end.

python benchmarks/gpu_rounds.py OUT [--repeats 5] [--only NAME ...] [--workers 4 ...]

Baselines, rounds of code that does the same and rounds of a clear change: of five forward cases, of
two with a backward, of sixteen light and of sixteen heavy ones; about nine minutes on one H200.
With `--workers` of the sixteen alone, serially and with so many workers, each on a GPU of its own.
`benchmarks/performance.py` reads the results.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_report import GPU_PROJECT, Report, run
from paired_gpu import ONE, edit_without_effect, init, judge, launch

TWICE = dict.fromkeys(ONE, 2)
LIGHT = """\
import pytest
import torch
from kernels.ops import EPS, rmsnorm


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("rows", [1024 + 128 * n for n in range(16)])
def test_light(kopt, rows):
    def draw(*shape):
        return torch.randn(*shape, device=kopt.device, dtype=torch.bfloat16)

    def reference(x, weight):
        x = x.double()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()

    kopt(rmsnorm, inputs=lambda: (draw(rows, 2048), draw(2048)), reference=reference,
         dims={"rows": rows})
"""
BACKWARD = """\
import pytest
import torch
from kernels.ops import torch_matmul


@pytest.mark.kopt(schema="gemm")
@pytest.mark.parametrize("size", [2048, 4096])
def test_backward(kopt, size):
    def draw():
        made = torch.randn(size, size, device=kopt.device, dtype=torch.bfloat16)
        return made.requires_grad_()

    kopt(torch_matmul, inputs=lambda: (draw(), draw()), backward=True,
         dims=dict(B=1, M=size, N=size, K=size), flops=2 * size**3,
         reference=lambda a, b: a.double() @ b.double())
"""


# Products that keep a card at its power cap.
HEAVY = """\
import pytest
import torch
from kernels.ops import torch_matmul


@pytest.mark.kopt(schema="gemm")
@pytest.mark.parametrize("number", range(16))
def test_heavy(kopt, number):
    def draw():
        made = torch.randn(6144, 6144, device=kopt.device, dtype=torch.bfloat16)
        return made.requires_grad_()

    kopt(torch_matmul, inputs=lambda: (draw(), draw()), backward=True,
         dims=dict(B=number + 1, M=6144, N=6144, K=6144), flops=2 * 6144**3,
         reference=lambda a, b: a.double() @ b.double())
"""


@dataclass(frozen=True)
class Suite:
    """Cases, how a session of them is started, and whether a clear loss is judged as well."""

    name: str
    tests: str
    source: str = ""
    words: tuple[str, ...] = ()
    with_loss: bool = True


SUITES = (
    Suite("five forward", "tests/test_ops.py"),
    Suite("two with backward", "tests/test_it.py", BACKWARD),
    Suite("sixteen light", "tests/test_it.py", LIGHT, with_loss=False),
    Suite("sixteen heavy", "tests/test_it.py", HEAVY, with_loss=False),
)


def suites(workers: Sequence[int]) -> list[Suite]:
    """Return all suites, or for numbers of workers those of sixteen cases, serial ones first."""
    if not workers:
        return list(SUITES)
    many = [suite for suite in SUITES if suite.name.startswith("sixteen")]
    distributed = [
        replace(suite, name=f"{suite.name} -n {number}", words=("-n", str(number)))
        for suite in many
        for number in workers
    ]
    return [*many, *distributed]


def project(directory: Path, suite: Suite) -> Path:
    """Make a project with a campaign in which every kernel does its work twice."""
    root = directory / suite.name.replace(" ", "-")
    shutil.copytree(GPU_PROJECT, root)
    if suite.source:
        (root / suite.tests).write_text(suite.source)
    launch(root, TWICE)
    init(root, suite.tests)
    return root


def rows_of(root: Path, number: int) -> dict[str, Any]:
    """Return on which GPU each row was made, and whether rows stand in the order of the cases."""
    attempt = root / f"agent/workspace/gpu/rounds/round-{number}/artifacts/attempt-1"
    results = json.loads((attempt / "evidence.json").read_text())["results"]
    devices = Counter(json.loads(result)["evidence"]["device"] for result in results)
    with (attempt / "benchmark.csv").open() as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    numbered = [[int(number) for number in re.findall("[0-9]+", label)] for label in labels]
    return {
        "GPUs": len(devices),
        "rows by GPU": dict(sorted(devices.items())),
        "rows in order": numbered == sorted(numbered),
    }


def measure(root: Path, suite: Suite, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield what each command took; losses and the same in turns, as losses in a row end it."""
    words = ("--kopt-campaign", "gpu", *suite.words)
    # A campaign has one baseline, and one gain from it.
    copies = [Path(f"{root}-{number}") for number in range(1, repeats)]
    places = [root, *(shutil.copytree(root, copy, symlinks=True) for copy in copies)]
    for place in places:
        baseline = run(place, *words, "--kopt-round", "1")
        if baseline.code:
            raise SystemExit(f"the baseline ended with {baseline.code}\n{baseline.text}")
        wall = round(baseline.seconds, 2)
        yield {"cases": suite.name, "round": "baseline", "wall s": wall, **rows_of(place, 1)}

    def judged(place: Path, kind: str) -> dict[str, Any]:
        verdict = judge(place, {}, "paired", "--kopt-level", "full", *suite.words)
        return {
            "cases": suite.name,
            "round": kind,
            "wall s": verdict["wall_seconds"],
            "device s": verdict["comparison"]["device_seconds"],
            "processes": verdict["comparison"]["replicas"],
            "decision": verdict["decision"],
            "change %": verdict["aggregate"]["change_pct"],
            **rows_of(place, verdict["round"]),
        }

    for number in range(repeats):
        edit_without_effect(root, number)
        yield judged(root, "the same")
        if suite.with_loss:
            launch(root, dict.fromkeys(ONE, 3))
            yield judged(root, "a clear loss")
    for place in places:
        launch(place, ONE)
        yield judged(place, "a clear gain")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--workers", nargs="*", type=int, default=[])
    asked = parser.parse_args()
    report = Report(asked.out, "gpu_rounds")
    rounds: list[dict[str, Any]] = []
    for suite in suites(asked.workers):
        if asked.only and suite.name not in asked.only:
            continue
        with tempfile.TemporaryDirectory() as directory:
            for entry in measure(project(Path(directory), suite), suite, asked.repeats):
                rounds.append(entry)
                report.add("rounds", rounds)
            report.table(suite.name, [entry for entry in rounds if entry["cases"] == suite.name])


if __name__ == "__main__":
    main()
