"""Grouped GEMM in bf16, forward and backward: the gate and up projection of an expert layer.

Qwen3-30B-A3B (config.json: hidden_size 2048, moe_intermediate_size 768, num_experts 128) with its
experts spread over 8 ranks: 16 local experts, N = 2 · 768. M are the rows that reach a rank: many
in training, few in decoding. The sizes are drawn anew for every set of inputs; one group is empty
wherever the distribution is not uniform.
"""

import pytest
import torch
from kernels.grouped_gemm import grouped_gemm

from pytest_kopt import skewed_groups

REAL = {"G": 16, "N": 1536, "K": 2048, "many": 16384, "few": 512}
SMALL = {"G": 4, "N": 24, "K": 24, "many": 24, "few": 8}
SIZES = REAL if torch.cuda.is_available() else SMALL
G, N, K = (SIZES[name] for name in "GNK")
#: Name of a distribution, and how many experts a token goes to there.
DISTRIBUTIONS = {"uniform": 1, "top2_cf1.0": 2, "top1_cf1.25": 1, "one_expert": 1}
CASES = [(SIZES["many"], name) for name in DISTRIBUTIONS] + [(SIZES["few"], "uniform")]
if SIZES is SMALL:
    # An interpreted case takes most of a minute: one of each class.
    CASES = CASES[-2:]


def group_sizes(M, distribution):
    """Return int32 (G,) that add up to M."""
    tokens = M // DISTRIBUTIONS[distribution]
    return skewed_groups(G, tokens, distribution, rows=M).to(torch.int32)


def reference(x, w, sizes):
    parts = x.double().split(sizes.tolist())
    return torch.cat([part @ matrix.T for part, matrix in zip(parts, w.double(), strict=True)])


@pytest.mark.kopt(schema="grouped_gemm")
@pytest.mark.parametrize(("M", "distribution"), CASES)
def test_grouped_gemm(kopt, M, distribution):
    def tensor(*shape):
        return torch.randn(*shape, device=kopt.device, dtype=torch.bfloat16, requires_grad=True)

    kopt(
        grouped_gemm,
        inputs=lambda: (
            tensor(M, K),
            tensor(G, N, K),
            group_sizes(M, distribution).to(kopt.device),
        ),
        reference=reference,
        dims={"G": G, "M": M, "N": N, "K": K, "distribution": distribution},
        backward=True,
        weights=(1,),
        flops=2 * M * N * K,
    )
