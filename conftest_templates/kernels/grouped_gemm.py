"""out[rows of g] = x[rows of g] @ w[g] for groups of rows of any size, in Triton.

The sizes are known on the device only: nothing is specialised on them, nothing waits for them, an
empty group costs nothing. That is what makes a gain hold when the router is skewed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _rows_by_matrix(
    x, w, sizes, out,
    G, N, K,
    w_group, w_k, w_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    # Every group's rows are cut into tiles of their own; this program finds the group of its tile.
    tile = tl.program_id(0)
    group, start, size, before = -1, 0, 0, 0
    row = 0
    for g in range(G):
        rows_here = tl.load(sizes + g).to(tl.int32)
        tiles = tl.cdiv(rows_here, BLOCK_M)
        mine = (tile >= before) & (tile < before + tiles)
        group = tl.where(mine, g, group)
        start = tl.where(mine, row + (tile - before) * BLOCK_M, start)
        size = tl.where(mine, rows_here - (tile - before) * BLOCK_M, size)
        before += tiles
        row += rows_here
    if group >= 0:
        inside = tl.arange(0, BLOCK_M)
        columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        x_row = x + (start + inside[:, None]).to(tl.int64) * K
        matrix = w + group.to(tl.int64) * w_group
        for k in range(0, K, BLOCK_K):
            ks = k + tl.arange(0, BLOCK_K)
            left = tl.load(x_row + ks[None, :], (inside[:, None] < size) & (ks[None, :] < K), 0.0)
            right_at = matrix + ks[:, None] * w_k + columns[None, :] * w_n
            right = tl.load(right_at, (ks[:, None] < K) & (columns[None, :] < N), 0.0)
            total = tl.dot(left.to(OPERAND), right.to(OPERAND), total)
        at = out + (start + inside[:, None]).to(tl.int64) * N + columns[None, :]
        kept = (inside[:, None] < size) & (columns[None, :] < N)
        tl.store(at, total.to(out.dtype.element_ty), kept)


@triton.jit
def _columns_by_rows(
    x, grad, sizes, out,
    G, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """dw[g] = x[rows of g].T @ grad[rows of g]; an empty group's gradient is zero."""
    group = tl.program_id(2)
    start = 0
    for g in range(group):
        start += tl.load(sizes + g).to(tl.int32)
    size = tl.load(sizes + group).to(tl.int32)
    ks = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    for m in range(0, size, BLOCK_M):
        inside = m + tl.arange(0, BLOCK_M)
        rows = (start + inside).to(tl.int64)
        left_at = x + rows[None, :] * K + ks[:, None]
        left = tl.load(left_at, (ks[:, None] < K) & (inside[None, :] < size), 0.0)
        right_at = grad + rows[:, None] * N + columns[None, :]
        right = tl.load(right_at, (inside[:, None] < size) & (columns[None, :] < N), 0.0)
        total = tl.dot(left.to(OPERAND), right.to(OPERAND), total)
    at = out + group.to(tl.int64) * K * N + ks[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(at, total.to(out.dtype.element_ty), (ks[:, None] < K) & (columns[None, :] < N))


def _tiles(x: torch.Tensor) -> dict[str, Any]:
    if x.is_cuda:
        tiles = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
        return {**tiles, "OPERAND": tl.bfloat16}
    return {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "OPERAND": tl.float32}


def _forward(x: torch.Tensor, w: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    (rows, k), (groups, _, n) = x.shape, w.shape
    out = torch.empty((rows, n), device=x.device, dtype=x.dtype)
    tiles = _tiles(x)
    # At most one tile a group is not full.
    most = triton.cdiv(rows, tiles["BLOCK_M"]) + groups
    grid = (most, triton.cdiv(n, tiles["BLOCK_N"]))
    _rows_by_matrix[grid](x, w, sizes, out, groups, n, k, *w.stride(), **tiles)
    return out


class _GroupedGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w, sizes)
        return _forward(x.contiguous(), w, sizes)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, w, sizes = ctx.saved_tensors
        grad = grad.contiguous()
        groups, k, n = w.shape
        dw = torch.empty((groups, k, n), device=w.device, dtype=w.dtype)
        tiles = _tiles(x)
        grid = (triton.cdiv(k, tiles["BLOCK_K"]), triton.cdiv(n, tiles["BLOCK_N"]), groups)
        _columns_by_rows[grid](x.contiguous(), grad, sizes, dw, groups, n, k, **tiles)
        return _forward(grad, w.transpose(1, 2), sizes), dw, None


def grouped_gemm(x: torch.Tensor, w: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return x's groups of rows times their matrices.

    `x` is bf16 (rows, K), `w` bf16 (groups, K, N), `sizes` integers (groups,) that add up to rows.
    """
    return _GroupedGemm.apply(x, w, sizes)
