"""Grouped GEMM, forward and backward, over the distributions that routers produce.

The sizes are drawn anew for every set of inputs and reach the kernel as a tensor: a kernel that
only wins when all groups are equal loses here.
"""

import pytest
import torch
from kernels.grouped_gemm import grouped_gemm

from pytest_kopt import skewed_groups

ON_GPU = torch.cuda.is_available()
GROUPS, ROWS, N, K = (16, 16384, 4096, 2048) if ON_GPU else (3, 24, 16, 16)
#: Name of a distribution, and how many experts a token goes to there.
DISTRIBUTIONS = {"uniform": 1, "top2_cf1.0": 2, "top1_cf1.25": 1, "one_expert": 1}


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
            skewed_groups(GROUPS, ROWS // DISTRIBUTIONS[distribution], distribution, rows=ROWS).to(
                kopt.device
            ),
        ),
        reference=reference,
        dims={"G": GROUPS, "M": ROWS, "N": N, "K": K, "distribution": distribution},
        backward=True,
        weights=(1,),
        flops=2 * ROWS * N * K,
    )
