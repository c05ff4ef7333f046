"""out = a @ b in bf16 with fp32 accumulation, forward and backward, in Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _matmul(
    a, b, out,
    M, N, K,
    a_row, a_column, b_row, b_column,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    # Neighbouring programs share rows of a and columns of b, so that they meet in L2.
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    first = tile // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first, GROUP)
    inside = tile % (GROUP * tiles_n)
    rows = (first + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = inside // height * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_at = a + rows[:, None].to(tl.int64) * a_row + ks[None, :] * a_column
    b_at = b + ks[:, None] * b_row + columns[None, :].to(tl.int64) * b_column
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        left = tl.load(a_at, (rows[:, None] < M) & (ks[None, :] < K - k), 0.0)
        right = tl.load(b_at, (ks[:, None] < K - k) & (columns[None, :] < N), 0.0)
        total = tl.dot(left.to(OPERAND), right.to(OPERAND), total)
        a_at += BLOCK_K * a_column
        b_at += BLOCK_K * b_row
    at = out + rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(at, total.to(out.dtype.element_ty), (rows[:, None] < M) & (columns[None, :] < N))


def _launch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), device=a.device, dtype=a.dtype)
    if a.is_cuda:
        tile_m, tile_n, tile_k, warps, operand = 128, 128, 64, 8, tl.bfloat16
    else:  # Triton's interpreter multiplies float32 only
        tile_m, tile_n, tile_k, warps, operand = 64, 64, 64, 1, tl.float32
    _matmul[(triton.cdiv(m, tile_m) * triton.cdiv(n, tile_n),)](
        *(a, b, out, m, n, k, *a.stride(), *b.stride()),
        BLOCK_M=tile_m, BLOCK_N=tile_n, BLOCK_K=tile_k, GROUP=8, OPERAND=operand,
        num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out


class _Gemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return _launch(a, b)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        return _launch(grad, b.T), _launch(a.T, grad)


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b for bf16 matrices (M, K) and (K, N) of any strides."""
    return _Gemm.apply(a, b)
