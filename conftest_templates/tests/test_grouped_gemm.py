"""Grouped GEMM, forward and backward, over the distributions that routers produce.

The sizes are drawn anew for every set of inputs and reach the kernel as a tensor: a kernel that
only wins when all groups are equal loses here.
"""

import pytest
import torch
from kernels.grouped_gemm import grouped_gemm

ON_GPU = torch.cuda.is_available()
GROUPS, ROWS, N, K = (16, 16384, 4096, 2048) if ON_GPU else (4, 48, 32, 32)
DISTRIBUTIONS = ("uniform", "top2_cf1.0", "top1_cf1.25", "one_expert_half")


def group_sizes(distribution, rows, groups):
    """Return int64 (groups,) that add up to `rows`.

    top*_cf*: random routing, what exceeds capacity factor · rows / groups goes to the emptiest.
    one_expert_half: one group holds at least half of the rows, another none.
    """
    if distribution == "uniform":
        sizes = torch.full((groups,), rows // groups)
        sizes[: rows % groups] += 1
        return sizes
    if distribution == "one_expert_half":
        weights = torch.rand(groups) + 0.1
        busy, idle = torch.randperm(groups)[:2].tolist()
        weights[idle] = 0
        sizes = torch.bincount(torch.multinomial(weights, rows // 2, True), minlength=groups)
        sizes[busy] += rows - rows // 2
        return sizes
    draws = 2 if distribution.startswith("top2") else 1
    weights = torch.softmax(torch.randn(groups), 0)
    tokens = torch.multinomial(weights.expand(rows // draws, groups), draws)
    sizes = torch.bincount(tokens.flatten(), minlength=groups)
    sizes[0] += rows - int(sizes.sum())
    capacity = -(-int(float(distribution.partition("cf")[2]) * rows) // groups)
    over = int((sizes - capacity).clamp_min(0).sum())
    sizes = sizes.clamp_max(capacity)
    for _ in range(over):
        sizes[sizes.argmin()] += 1
    return sizes


def reference(x, w, sizes):
    parts = x.double().split(sizes.tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, w.double(), strict=True)])


@pytest.mark.kopt(schema="grouped_gemm")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_grouped_gemm(kopt, distribution):
    def tensor(*shape):
        return torch.randn(*shape, device=kopt.device, dtype=torch.bfloat16, requires_grad=True)

    kopt(
        grouped_gemm,
        inputs=lambda: (
            tensor(ROWS, K),
            tensor(GROUPS, K, N),
            group_sizes(distribution, ROWS, GROUPS).to(kopt.device),
        ),
        reference=reference,
        dims={"G": GROUPS, "M": ROWS, "N": N, "K": K, "distribution": distribution},
        backward=True,
        weights=(1,),
        flops=2 * ROWS * N * K,
    )
