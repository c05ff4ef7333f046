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
    """Run pytest where it sees the GPUs that this process sees."""
    unset = [word for name in MASKS if name not in os.environ for word in ("-u", name)]
    kept = {name: os.environ[name] for name in MASKS if name in os.environ}
    return project.run("env", *unset, sys.executable, "-m", "pytest", *words, **kept)


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
        assert cold["l2_bytes"] == torch.cuda.get_device_properties(0).L2_cache_size
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
