"""Kernels like those that the design was measured on, launched LAUNCHES times a call."""

import torch
import triton
import triton.language as tl

LAUNCHES = {"matmul": 1, "rmsnorm": 1, "torch": 1}
EPS = 1e-6


@triton.jit
def _matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    rows = (pid // (N // BN)) * BM + tl.arange(0, BM)
    columns = (pid % (N // BN)) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    left = a + rows[:, None] * K + inner[None, :]
    right = b + inner[:, None] * N + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BK
        right += BK * N
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16))


@triton.jit
def _rmsnorm(x, weight, out, hidden: tl.constexpr, eps: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, hidden)
    values = tl.load(x + row * hidden + columns).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(values * values) / hidden + eps)
    scaled = values * scale * tl.load(weight + columns).to(tl.float32)
    tl.store(out + row * hidden + columns, scaled.to(tl.bfloat16))


def matmul(a, b):
    """Multiply bf16 a (M, K) by b (K, N); all dims multiples of the tile."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), device=a.device, dtype=a.dtype)
    for _ in range(LAUNCHES["matmul"]):
        grid = ((m // 128) * (n // 128),)
        _matmul[grid](a, b, out, m, n, k, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
    return out


def torch_matmul(a, b):
    """Multiply through torch."""
    for _ in range(LAUNCHES["torch"]):
        out = a @ b
    return out


def rmsnorm(x, weight):
    """Normalise bf16 x (rows, hidden) by its root mean square, scaled by weight (hidden,)."""
    out = torch.empty_like(x)
    for _ in range(LAUNCHES["rmsnorm"]):
        _rmsnorm[(x.shape[0],)](x, weight, out, hidden=x.shape[1], eps=EPS, num_warps=8)
    return out
