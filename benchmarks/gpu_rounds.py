"""What a verdict takes by the clock on the wall, whole commands from start to end.

python benchmarks/gpu_rounds.py OUT [--repeats 5] [--only NAME ...] [--workers 4 ...]

Baselines, rounds of code that does the same and rounds of a clear change: of five forward cases, of
two with a backward, of sixteen light and of sixteen heavy ones; about nine minutes on one H200.
With `--workers` of the sixteen alone, serially and with so many workers, each on a GPU of its own.
Of an autotuned layer norm (`--only autotuned`): baseline, round and PR check with other
configurations. A table for each says where the seconds go, by the timeline of the evidence.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from gpu_report import GPU_PROJECT, Report, run
from paired_gpu import KERNEL, ONE, edit_without_effect, init, judge, launch

TWICE = dict.fromkeys(ONE, 2)
#: The folder next to a project that is the base of its PR check.
BASE = "base"
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


# Six configurations each of a forward and a backward, as flash-attention's layer norm has them.
AUTOTUNED_KERNEL = """\
import torch
import triton
import triton.language as tl

WARPS = (1, 2, 4, 8, 16, 32)
EPS = 1e-5
CONFIGS = [triton.Config({}, num_warps=warps) for warps in WARPS]


@triton.autotune(configs=CONFIGS, key=["columns", "has_bias"])
@triton.jit
def _forward(
    x, weight, bias, out, mean, scale, columns, eps: tl.constexpr, has_bias: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, inside, 0.0).to(tl.float32)
    center = tl.sum(values) / columns
    apart = tl.where(inside, values - center, 0.0)
    scaled = 1 / tl.sqrt(tl.sum(apart * apart) / columns + eps)
    result = apart * scaled * tl.load(weight + at, inside, 0.0).to(tl.float32)
    if has_bias:
        result += tl.load(bias + at, inside, 0.0).to(tl.float32)
    tl.store(out + row * columns + at, result, inside)
    tl.store(mean + row, center)
    tl.store(scale + row, scaled)


@triton.autotune(configs=CONFIGS, key=["columns", "has_bias"])
@triton.jit
def _backward(
    x, weight, grad, dx, dweight, dbias, mean, scale, rows, columns, per_program,
    has_bias: tl.constexpr, BLOCK: tl.constexpr,
):
    program, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    weights = tl.load(weight + at, inside, 0.0).to(tl.float32)
    of_weight = tl.zeros((BLOCK,), dtype=tl.float32)
    of_bias = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(program * per_program, min((program + 1) * per_program, rows)):
        place = row * columns + at
        values = tl.load(x + place, inside, 0.0).to(tl.float32)
        incoming = tl.load(grad + place, inside, 0.0).to(tl.float32)
        scaled = tl.load(scale + row)
        normal = tl.where(inside, (values - tl.load(mean + row)) * scaled, 0.0)
        weighted = weights * incoming
        along = tl.sum(normal * weighted) / columns
        level = tl.sum(weighted) / columns
        tl.store(dx + place, (weighted - normal * along - level) * scaled, inside)
        of_weight += incoming * normal
        of_bias += incoming
    tl.store(dweight + program * columns + at, of_weight, inside)
    if has_bias:
        tl.store(dbias + program * columns + at, of_bias, inside)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        rows, columns = x.shape
        out = torch.empty_like(x)
        mean, scale = x.new_empty(2, rows, dtype=torch.float32)
        block = triton.next_power_of_2(columns)
        _forward[(rows,)](x, weight, bias, out, mean, scale, columns, EPS, True, block)
        ctx.save_for_backward(x, weight, mean, scale)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, mean, scale = ctx.saved_tensors
        (rows, columns), grad = x.shape, grad.contiguous()
        each = triton.cdiv(rows, 256)
        programs = triton.cdiv(rows, each)
        dx = torch.empty_like(x)
        dweight, dbias = x.new_empty(2, programs, columns, dtype=torch.float32)
        _backward[(programs,)](
            x, weight, grad, dx, dweight, dbias, mean, scale, rows, columns, each, True,
            triton.next_power_of_2(columns),
        )
        return dx, dweight.sum(0).to(weight.dtype), dbias.sum(0).to(weight.dtype)


def layer_norm(x, weight, bias):
    return _LayerNorm.apply(x.contiguous(), weight, bias)
"""
AUTOTUNED = """\
import pytest
import torch
from kernels.ops import EPS, layer_norm


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize(("rows", "columns"), [(4096, 2048), (2048, 4096)])
def test_layer_norm(kopt, rows, columns):
    def draw(*shape):
        made = torch.randn(*shape, device=kopt.device, dtype=torch.bfloat16)
        return made.requires_grad_()

    def reference(x, weight, bias):
        wide = [value.double() for value in (x, weight, bias)]
        return torch.nn.functional.layer_norm(wide[0], (columns,), *wide[1:], EPS)

    kopt(layer_norm, inputs=lambda: (draw(rows, columns), draw(columns), draw(columns)),
         reference=reference, backward=True, weights=(1, 2),
         dims={"rows": rows, "columns": columns}, nbytes=(4 * rows * columns, 6 * rows * columns))
"""
OTHER_WARPS = "WARPS = (2, 4, 8, 16, 32)"


@dataclass(frozen=True)
class Suite:
    """Cases, how a session of them is started, and whether a clear loss is judged as well."""

    name: str
    tests: str
    source: str = ""
    words: tuple[str, ...] = ()
    with_loss: bool = True
    #: The file of the kernels, where it is not the project's.
    kernel: str = ""


SUITES = (
    Suite("five forward", "tests/test_ops.py"),
    Suite("two with backward", "tests/test_it.py", BACKWARD),
    Suite("sixteen light", "tests/test_it.py", LIGHT, with_loss=False),
    Suite("sixteen heavy", "tests/test_it.py", HEAVY, with_loss=False),
    Suite("autotuned", "tests/test_it.py", AUTOTUNED, kernel=AUTOTUNED_KERNEL),
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
    if suite.kernel:
        (root / KERNEL).write_text(suite.kernel)
        shutil.copytree(root, root.with_name(BASE))
    else:
        launch(root, TWICE)
    init(root, suite.tests)
    return root


def rows_of(root: Path, number: int) -> dict[str, Any]:
    """Return on which GPU each row was made, whether rows stand in order, and the timeline."""
    attempt = root / f"agent/workspace/gpu/rounds/round-{number}/artifacts/attempt-1"
    evidence = json.loads((attempt / "evidence.json").read_text())
    results = evidence["results"]
    devices = Counter(json.loads(result)["evidence"]["device"] for result in results)
    with (attempt / "benchmark.csv").open() as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    numbered = [[int(number) for number in re.findall("[0-9]+", label)] for label in labels]
    return {
        "GPUs": len(devices),
        "rows by GPU": dict(sorted(devices.items())),
        "rows in order": numbered == sorted(numbered),
        "timeline": evidence["session"]["timeline"],
    }


def where_seconds_go(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the seconds of each phase in each kind of round, as medians.

    A phase of the controller contains those of other processes. The rest is what passed before the
    session was configured and after its evidence was written.
    """
    parts: dict[tuple[str, str, str], dict[int, float]] = {}
    # A PR check leaves no evidence.
    for number, entry in enumerate(entry for entry in entries if "timeline" in entry):
        spans = entry["timeline"]
        for span in spans:
            process = span["process"].rstrip("0123456789 ")
            by_entry = parts.setdefault((entry["round"], process, span["phase"]), {})
            by_entry[number] = by_entry.get(number, 0.0) + span["end"] - span["begin"]
        end = max(span["end"] for span in spans)
        rest = parts.setdefault((entry["round"], "the rest", ""), {})
        rest[number] = entry["wall s"] - end
    return [
        {"round": kind, "process": process, "phase": phase, "s": round(median(found.values()), 2)}
        for (kind, process, phase), found in sorted(parts.items())
    ]


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


def measure_autotuned(directory: Path, suite: Suite, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield what a baseline, a round with other configurations and a PR check of it took."""
    for number in range(repeats):
        place = directory / str(number)
        place.mkdir()
        root = project(place, suite)
        baseline = run(root, "--kopt-campaign", "gpu", "--kopt-round", "1")
        if baseline.code:
            raise SystemExit(f"the baseline ended with {baseline.code}\n{baseline.text}")
        shared = {"cases": suite.name}
        wall = round(baseline.seconds, 2)
        yield {**shared, "round": "baseline", "wall s": wall, **rows_of(root, 1)}
        kernel = root / KERNEL
        kernel.write_text(re.sub(r"^WARPS = .*", OTHER_WARPS, kernel.read_text(), flags=re.M))
        changed = shutil.copytree(place / BASE, place / "changed")
        (changed / KERNEL).write_text(kernel.read_text())
        verdict = judge(root, {}, "paired", "--kopt-level", "full")
        yield {
            **shared,
            "round": "other configurations",
            "wall s": verdict["wall_seconds"],
            "decision": verdict["decision"],
            "change %": verdict["aggregate"]["change_pct"],
            "flags": verdict["flags"],
            **rows_of(root, verdict["round"]),
        }
        out = place / "verdict.json"
        words = (f"--kopt-base={place / BASE}", "--kopt-measure-same", "--kopt-verdict", str(out))
        check = run(changed, *words, suite.tests)
        if not out.exists():
            raise SystemExit(f"the PR check ended with {check.code}\n{check.text}")
        verdict = json.loads(out.read_text())
        yield {
            **shared,
            "round": "PR check",
            "wall s": round(check.seconds, 2),
            "decision": verdict["decision"],
            "flags": verdict["flags"],
        }


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
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder)
            if suite.kernel:
                entries = measure_autotuned(directory, suite, asked.repeats)
            else:
                entries = measure(project(directory, suite), suite, asked.repeats)
            for entry in entries:
                rounds.append(entry)
                report.add("rounds", rounds)
        alike = [entry for entry in rounds if entry["cases"] == suite.name]
        hidden = {"timeline", "flags"}
        shown = [{k: v for k, v in entry.items() if k not in hidden} for entry in alike]
        report.table(suite.name, shown)
        report.table(f"{suite.name}: where a round's seconds go", where_seconds_go(alike))


if __name__ == "__main__":
    main()
