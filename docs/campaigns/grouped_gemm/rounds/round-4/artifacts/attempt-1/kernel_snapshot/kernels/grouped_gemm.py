"""out[rows of g] = x[rows of g] @ w[g].T for groups of rows of any size, in Triton.

The sizes are known on the device only: nothing is specialised on them and nothing waits for them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

#: How a product of rows with their group's matrix is tiled.
#: Row tiles of a band: what is walked together shares rows and weights in the cache.
BAND = 8


PRODUCT = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}

#: How a matrix's gradient is tiled; its sum runs over BLOCK_M rows at a time.
GRADIENT = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 3}


@triton.jit
def _group_of_tile(sizes, tile, G, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """Return a tile's group (-1: none), its first row, and its group's rows from there on.

    Every group's rows are cut into tiles of their own. GROUPS is G or the next power of two.
    """
    groups = tl.arange(0, GROUPS)
    size = tl.load(sizes + groups, groups < G, 0).to(tl.int32)
    ends = tl.cumsum(tl.cdiv(size, BLOCK_M), 0)
    group = tl.sum((ends < tile).to(tl.int32), 0)
    before = groups < group
    offset = (tile - tl.sum(tl.where(before, tl.cdiv(size, BLOCK_M), 0), 0)) * BLOCK_M
    start = tl.sum(tl.where(before, size, 0), 0) + offset
    left = tl.sum(tl.where(groups == group, size, 0), 0) - offset
    return tl.where(group < G, group, -1), start, left


@triton.jit
def _product(
    a, w, sizes, out,
    G, N, K,
    w_group, w_n, w_k,
    GROUPS: tl.constexpr,
    TILES, COLUMNS, BAND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """out[r, n] = Σ a[r, k] · w[group of r, n, k]."""
    band = tl.program_id(0) // (BAND * COLUMNS)
    within = tl.program_id(0) % (BAND * COLUMNS)
    height = tl.minimum(TILES - band * BAND, BAND)
    tile, column = band * BAND + within % height, within // height
    group, start, left = _group_of_tile(sizes, tile, G, BLOCK_M, GROUPS)
    if group >= 0:
        inside = tl.arange(0, BLOCK_M)
        columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
        a_row = a + (start + inside[:, None]).to(tl.int64) * K
        matrix = w + group.to(tl.int64) * w_group
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            ks = k + tl.arange(0, BLOCK_K)
            rows = tl.load(a_row + ks[None, :], (inside[:, None] < left) & (ks[None, :] < K), 0.0)
            w_at = matrix + columns[None, :] * w_n + ks[:, None] * w_k
            weights = tl.load(w_at, (ks[:, None] < K) & (columns[None, :] < N), 0.0)
            total = tl.dot(rows.to(OPERAND), weights.to(OPERAND), total)
        at = out + (start + inside[:, None]).to(tl.int64) * N + columns[None, :]
        kept = (inside[:, None] < left) & (columns[None, :] < N)
        tl.store(at, total.to(out.dtype.element_ty), kept)


@triton.jit
def _gradient(
    x, grad, sizes, dw,
    N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """dw[g, n, k] = Σ grad[r, n] · x[r, k] over the rows of g; an empty group's is zero."""
    group = tl.program_id(2)
    start = 0
    for g in range(group):
        start += tl.load(sizes + g).to(tl.int32)
    size = tl.load(sizes + group).to(tl.int32)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for m in range(0, size, BLOCK_M):
        inside = m + tl.arange(0, BLOCK_M)
        rows = (start + inside).to(tl.int64)
        grad_at = grad + rows[None, :] * N + columns[:, None]
        given = tl.load(grad_at, (columns[:, None] < N) & (inside[None, :] < size), 0.0)
        x_at = x + rows[:, None] * K + ks[None, :]
        values = tl.load(x_at, (inside[:, None] < size) & (ks[None, :] < K), 0.0)
        total = tl.dot(given.to(OPERAND), values.to(OPERAND), total)
    at = dw + group.to(tl.int64) * N * K + columns[:, None].to(tl.int64) * K + ks[None, :]
    tl.store(at, total.to(dw.dtype.element_ty), (columns[:, None] < N) & (ks[None, :] < K))


def _operand(x: torch.Tensor) -> Any:
    """Return the type that operands are multiplied in: Triton's interpreter has no bf16 product."""
    return tl.float32 if x.device.type == "cpu" else tl.bfloat16


def _by_matrix(a: torch.Tensor, w: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return rows `a` (rows, K) times the transposes of their groups' `w` (groups, N, K)."""
    (rows, k), (groups, n, _) = a.shape, w.shape
    out = torch.empty((rows, n), device=a.device, dtype=a.dtype)
    tiling = PRODUCT
    # At most one tile a group is not full.
    tiles = triton.cdiv(rows, tiling["BLOCK_M"]) + groups
    columns = triton.cdiv(n, tiling["BLOCK_N"])
    grid = (tiles * columns,)
    _product[grid](
        *(a, w, sizes, out),
        *(groups, n, k),
        *w.stride(),
        GROUPS=triton.next_power_of_2(groups),
        TILES=tiles,
        COLUMNS=columns,
        BAND=BAND,
        **tiling,
        OPERAND=_operand(a),
    )
    return out


def _by_rows(x: torch.Tensor, grad: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return the gradient of w (groups, N, K)."""
    groups, n, k = sizes.numel(), grad.shape[1], x.shape[1]
    dw = torch.empty((groups, n, k), device=x.device, dtype=x.dtype)
    tiling = GRADIENT
    grid = (triton.cdiv(k, tiling["BLOCK_K"]), triton.cdiv(n, tiling["BLOCK_N"]), groups)
    _gradient[grid](
        *(x, grad, sizes, dw),
        *(n, k),
        **tiling,
        OPERAND=_operand(x),
    )
    return dw


class _GroupedGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, w, sizes)
        return _by_matrix(x, w, sizes)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, w, sizes = ctx.saved_tensors
        grad = grad.contiguous()
        return _by_matrix(grad, w.transpose(1, 2), sizes), _by_rows(x, grad, sizes), None


def grouped_gemm(x: torch.Tensor, w: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return x's groups of rows times the transposes of their matrices.

    `x` is bf16 (rows, K), `w` bf16 (groups, N, K), `sizes` integers (groups,) that add up to rows.
    """
    return _GroupedGemm.apply(x, w, sizes)
