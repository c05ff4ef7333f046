"""Attention, forward and backward: grouped heads, with and without the causal mask."""

import math

import pytest
import torch
from kernels.attention import attention

from pytest_kopt import snr

REAL = [
    # B, Hq, Hkv, Sq, Skv, D, causal
    (1, 16, 16, 4096, 4096, 128, True),
    (2, 16, 4, 2048, 2048, 128, False),
    (4, 16, 4, 1024, 1024, 64, True),
]
SMALL = [(1, 2, 1, 40, 40, 16, True), (1, 1, 1, 16, 24, 16, False)]
SHAPES = REAL if torch.cuda.is_available() else SMALL


def reference(q, k, v, causal):
    q, k, v = q.double(), k.double(), v.double()
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(hidden.triu(columns - rows + 1), -math.inf)
    return scores.softmax(-1) @ v


@pytest.mark.kopt(schema="attention")
@pytest.mark.parametrize(("B", "Hq", "Hkv", "Sq", "Skv", "D", "causal"), SHAPES)
def test_attention(kopt, B, Hq, Hkv, Sq, Skv, D, causal):
    def tensor(heads, rows):
        return torch.randn(
            *(B, heads, rows, D), device=kopt.device, dtype=torch.bfloat16, requires_grad=True
        )

    # Two products forward and five backward; the mask leaves half of them.
    forward = 4 * B * Hq * Sq * Skv * D / (2 if causal else 1)
    kopt(
        attention,
        inputs=lambda: (tensor(Hq, Sq), tensor(Hkv, Skv), tensor(Hkv, Skv), causal),
        reference=reference,
        dims={
            "B": B,
            "Hq": Hq,
            "Hkv": Hkv,
            "Sq": Sq,
            "Skv": Skv,
            "D": D,
            "causal": causal,
        },
        backward=True,
        flops=(forward, 2.5 * forward),
        # Gradients carry the rounding of the output that is saved in bf16: about 47 dB.
        gate=snr(40.0),
    )
