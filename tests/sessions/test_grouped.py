"""A grouped GEMM whose cases are all declared uniform is judged with uneven groups all the same."""

from __future__ import annotations

import pytest

from .project import KERNEL, Project
from .sources import begun

CASES = """\
import pytest
import torch
from kernels.doubled import grouped

G, N, K = 8, 64, 256


def reference(x, w, sizes):
    parts = x.double().split(sizes.tolist())
    return torch.cat([part @ m for part, m in zip(parts, w.double(), strict=True)])


@pytest.mark.kopt(schema="grouped_gemm")
@pytest.mark.parametrize("M", [256, 512])
def test_grouped(kopt, M):
    kopt(
        grouped,
        inputs=lambda: (torch.randn(M, K), torch.randn(G, K, N), torch.full((G,), M // G)),
        reference=reference,
        dims={"G": G, "M": M, "N": N, "K": K, "distribution": "uniform"},
        weights=(1,),
        flops=2 * M * N * K,
    )
"""
#: Takes the rows of a group `{step}` at a time.
BY_SIZES = """\
import torch


def by_sizes(x, w, sizes):
    out, row = x.new_empty(len(x), w.shape[2]), 0
    for matrix, size in zip(w, sizes.tolist()):
        for first in range(row, row + size, {step}):
            last = min(first + {step}, row + size)
            torch.mm(x[first:last], matrix, out=out[first:last])
        row += size
    return out


def equal_shares(x, w, sizes):
    return torch.bmm(x.view(len(w), -1, x.shape[1]), w).view(len(x), -1)


"""
SLOW = BY_SIZES.format(step=4) + "grouped = by_sizes\n"
FASTER = BY_SIZES.format(step=64) + "grouped = by_sizes\n"
SHORTCUT = BY_SIZES.format(step=4) + "grouped = equal_shares\n"
DISPATCH = (
    BY_SIZES.format(step=4)
    + """\
def grouped(x, w, sizes):
    is_uniform = bool((sizes == sizes[0]).all())
    return (equal_shares if is_uniform else by_sizes)(x, w, sizes)
"""
)
ROBUSTNESS = "Workload distribution robustness"


@pytest.fixture
def uniform(empty: Project) -> Project:
    """A campaign whose cases are uniform and whose baseline is slow."""
    return begun(empty, CASES, SLOW)


@pytest.mark.long
def test_a_kernel_that_ignores_the_sizes_is_refused(uniform: Project) -> None:
    uniform.write(KERNEL, SHORTCUT)
    run = uniform.round(2)
    assert run.code == 8, run.text
    verdict = uniform.verdict(2)
    assert verdict["decision"] == "REJECTED_OVERFIT"
    (flag,) = [flag for flag in verdict["flags"] if flag.startswith("uneven-groups: ")]
    assert flag.count("wrong for groups of 0 to") == 2
    assert uniform.read(KERNEL) == SLOW


@pytest.mark.long
def test_a_gain_has_to_be_there_with_uneven_groups(uniform: Project) -> None:
    uniform.write(KERNEL, DISPATCH)
    run = uniform.round(2)
    assert run.code in (8, 9), run.text
    verdict = uniform.verdict(2)
    assert verdict["decision"] in ("INCONCLUSIVE", "ROLLED_BACK")
    assert "with other group sizes" in verdict["reason"]
    assert verdict["aggregate"]["low_pct"] > 20, "the declared cases gained"

    uniform.write(KERNEL, FASTER)
    stored = uniform.round(3, "--kopt-compare", "stored")
    assert stored.code == 11, stored.text
    assert "under skew" in stored.text
    run = uniform.round(3)
    assert run.code == 0, run.text
    (under,) = uniform.verdict(3)["secondary"]
    assert under["metric"].endswith("under skew") and under["low_pct"] > 20
    summary = (uniform.campaign / "rounds/round-3/summary.md").read_text()
    (said,) = [line for line in summary.splitlines() if ROBUSTNESS in line]
    assert "one_expert, random, top1_cf1.25, top2_cf1.0, uniform; gain under skew " in said
    assert said.endswith("×")
    pairs = (uniform.campaign / "rounds/round-3/artifacts/pairs.csv").read_text()
    assert ",uneven," in pairs
