"""out = a @ b with both operands quantised to fp8, one scale a tensor, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _matmul(
    a, b, a_scale, b_scale, out,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    rows = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        at_k = k + ks
        left_at = a + rows[:, None].to(tl.int64) * K + at_k[None, :]
        # b comes transposed, (N, K): both operands of an fp8 product are read along K.
        right_at = b + columns[None, :].to(tl.int64) * K + at_k[:, None]
        left = tl.load(left_at, (rows[:, None] < M) & (at_k[None, :] < K), 0.0)
        right = tl.load(right_at, (at_k[:, None] < K) & (columns[None, :] < N), 0.0)
        total = tl.dot(left, right, total)
    total *= tl.load(a_scale) * tl.load(b_scale)
    at = out + rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(at, total.to(out.dtype.element_ty), (rows[:, None] < M) & (columns[None, :] < N))


def _quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x / scale in fp8 and the scale, a tensor, so that nothing waits for the device."""
    limit = torch.finfo(dtype).max
    scale = (x.abs().amax().float() / limit).clamp_min(torch.finfo(torch.float32).tiny)
    return (x.float() / scale).clamp(-limit, limit).to(dtype), scale


def gemm_fp8(a: torch.Tensor, b: torch.Tensor, encoding: str) -> torch.Tensor:
    """Return a @ b of bf16 (M, K) and (K, N), computed in the fp8 that torch calls `encoding`.

    The scales are computed at every call: a cached one would serve the benchmark, not training.
    """
    dtype = getattr(torch, encoding)
    (left, left_scale), (right, right_scale) = _quantise(a, dtype), _quantise(b.T, dtype)
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), device=a.device, dtype=torch.bfloat16)
    tile_m, tile_n, tile_k, warps = (128, 128, 128, 8) if a.is_cuda else (64, 64, 64, 1)
    _matmul[(triton.cdiv(m, tile_m) * triton.cdiv(n, tile_n),)](
        *(left.contiguous(), right.contiguous(), left_scale, right_scale, out, m, n, k),
        BLOCK_M=tile_m, BLOCK_N=tile_n, BLOCK_K=tile_k, num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out
