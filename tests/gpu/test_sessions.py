"""Sessions on real GPUs: identity, conditions, an illegal access, several GPUs in one test."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ..sessions.project import MASKS, Project, Run
from ..sessions.sources import SETTINGS

pytestmark = pytest.mark.gpu


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    found = Project(root)
    found.write("pyproject.toml", SETTINGS)
    return found


def run(project: Project, *words: str) -> Run:
    return python(project, "pytest", *words)


def python(project: Project, *words: str) -> Run:
    """Run a module where it sees the GPUs that this process sees."""
    unset = [word for name in MASKS if name not in os.environ for word in ("-u", name)]
    kept = {name: os.environ[name] for name in MASKS if name in os.environ}
    return project.run("env", *unset, sys.executable, "-m", *words, **kept)


CASES = """\
import pytest
import torch


def doubled(x):
    {first}
    return 2 * x


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("n", [1 << 16, 1 << 18, 1 << 20])
def test_doubled(kopt, n):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(n, device=kopt.device),),
        reference=lambda x: 2 * x.double(),
        dims={{"n": n}},
        nbytes=8 * n,
    )
"""


def rows(project: Project) -> list[dict[str, str]]:
    return list(csv.DictReader(project.read("out.csv").splitlines()))


def evidence(project: Project) -> list[dict[str, Any]]:
    return [result["evidence"] for result in json.loads(project.read("out.csv.evidence.json"))]


def test_the_record_names_the_gpu_and_its_state(project: Project) -> None:
    import torch

    project.write("tests/test_doubled.py", CASES.format(first="pass"))
    done = run(project, "--summary-csv", "out.csv", "--kopt-gpu-wait", "1")
    assert done.code == 0, done.text
    assert [row["Check"] for row in rows(project)] == ["PASS"] * 3
    for found in evidence(project):
        assert found["engine"] == "graph"
        assert found["device"].startswith(("GPU-", "MIG-"))
        before = found["conditions"]["before"]
        assert before["sm_mhz"] > 0 and before["temperature_c"] > 0 and before["power_w"] > 0
        cold = found["cold_cache"]
        assert cold["l2_bytes"] >= torch.cuda.get_device_properties(0).L2_cache_size
        assert cold["flushed"] or cold["sets"] * cold["set_bytes"] >= 2 * cold["l2_bytes"]


ILLEGAL = """x.numel() == 1 << 18 and trespass()"""
TRESPASS = """
import triton
import triton.language as tl


@triton.jit
def _write(at, BLOCK: tl.constexpr):
    tl.store(at + (1 << 50) + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32))


def trespass():
    _write[(1,)](torch.zeros(1, device="cuda"), BLOCK=128)
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize("words", [("-n", "1"), ()], ids=["n1", "campaign"])
def test_an_illegal_access_costs_one_case(project: Project, words: tuple[str, ...]) -> None:
    """One worker for all three cases: the third is measured by the one that replaces it."""
    pytest.importorskip("triton")
    source = CASES.format(first=ILLEGAL).replace("import torch\n", f"import torch\n{TRESPASS}", 1)
    project.write("tests/test_doubled.py", source)
    extra = ("--summary-csv", "out.csv", "--kopt-gpu-wait", "1")
    if words:
        done = run(project, *extra, *words)
    else:
        project.write("kernels/doubled.py", "")
        project.write("tests/test_doubled.py", f"import kernels.doubled\n{source}")
        project.commit_all()
        kernel = ("--op", "doubled", "--kernel", "kernels/doubled.py", "--backend", "TRITON")
        assert project.kopt("init", "c", *kernel, "--gpu", "H200", "--elsewhere").code == 0
        done = run(project, *extra, "--kopt-round", "1")
    assert done.code == 1, done.text
    assert [row["Check"] for row in rows(project)] == ["PASS", "ERROR", "PASS"], done.text


ALL_REDUCE = """\
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def reduce(rank, count):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    x = torch.full((1024,), float(rank + 1), device="cuda")
    dist.all_reduce(x)
    assert x.eq(sum(range(1, count + 1))).all()
    dist.destroy_process_group()


@pytest.mark.multigpu
def test_all_reduce(kopt):
    assert torch.cuda.device_count() >= 2
    mp.spawn(reduce, args=(2,), nprocs=2)
"""


@pytest.mark.gpu(count=2)
def test_a_test_over_two_gpus_runs_alone_on_request(project: Project) -> None:
    project.write("tests/test_ring.py", ALL_REDUCE)
    done = run(project, "--kopt-dist-only", "-v")
    assert done.code == 0 and "1 passed" in done.out, done.text
    assert "1 skipped" in run(project, "-v").out


LINEAR = """\
import torch


def linear(x, w):
    return {body}
"""
BACKWARD = """\
import pytest
import torch
from kernels.linear import linear


@pytest.mark.kopt(schema="gemm")
def test_linear(kopt):
    def draw(*shape):
        return torch.randn(*shape, device=kopt.device).requires_grad_()

    kopt(
        linear,
        inputs=lambda: (draw(1024, 512), draw(512, 1024)),
        reference=lambda x, w: x.double() @ w.double(),
        dims=dict(B=1, M=1024, N=1024, K=512),
        flops=(2 * 512 * 1024**2, 4 * 512 * 1024**2),
        backward=True,
        weights=(1,),
    )
"""


def arch() -> str:
    import torch

    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def test_a_forward_is_judged_by_what_it_gave_before_its_backward(project: Project) -> None:
    """Their graphs write to the same memory, and a plain product was called wrong."""
    project.write("kernels/__init__.py", "")
    project.write("kernels/linear.py", LINEAR.format(body="sum(a @ b for a, b in parts(x, w))"))
    parts = "\n\ndef parts(x, w):\n    return zip(x.split(64, 1), w.split(64, 0))\n"
    project.write("kernels/linear.py", project.read("kernels/linear.py") + parts)
    project.write("tests/test_linear.py", BACKWARD)
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "Start")):
        assert project.run("git", *command).code == 0
    words = ["--op", "linear", "--kernel", "kernels/linear.py", "--backend", "TORCH"]
    words += ["--gpu", arch()]
    begun = python(project, "pytest_kopt.cli", "init", "c", *words)
    assert begun.code == 0, begun.text
    baseline = run(project, "--kopt-campaign", "c", "--kopt-round", "1")
    assert baseline.code == 0, baseline.text
    project.write("kernels/linear.py", LINEAR.format(body="x @ w"))
    done = run(project, "--kopt-campaign", "c", "--kopt-round", "2")
    assert done.code == 0 and "ACCEPTED" in done.text, done.text
