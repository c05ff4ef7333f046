"""The shapes (M, N, K) that all harnesses measure, and how their inputs are drawn."""

import torch

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
SHAPES = [(2048, 2048, 2048), (1024, 4096, 2048), (4096, 1024, 4096)]
if not ON_GPU:
    SHAPES = [(64, 64, 64), (32, 128, 64), (96, 32, 128)]


def draw(m, n, k):
    """Return a (M, K) and b (K, N)."""
    return (
        torch.randn(m, k, device=DEVICE, dtype=DTYPE),
        torch.randn(k, n, device=DEVICE, dtype=DTYPE),
    )
