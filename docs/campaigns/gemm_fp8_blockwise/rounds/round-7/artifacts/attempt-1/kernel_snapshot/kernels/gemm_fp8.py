"""out = x @ w.T in fp8 E4M3 with scales of 1 x 128 for activations and 128 x 128 for weights.

Every operand is quantised along the depth of its product, and read along it: the tensor cores of
sm_90 take fp8 operands in no other order. Scales are computed in every call.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

#: Values that share a scale along the depth of a product, and the depth of a step.
BLOCK = 128

#: The largest E4M3 number.
LARGEST = tl.constexpr(448.0)

#: How a product is tiled.
#: Row tiles of a band: what is walked together shares operands in the cache.
BAND = 8


TILING = {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 3}


@triton.jit
def _quantise_both(
    x, q, scales, turned, turned_scales,
    M, K, DEPTH, TURNED_DEPTH,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantise along rows into `q` and along columns into `turned`, the transpose."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < M) & (columns[None, :] < K)
    at = rows[:, None].to(tl.int64) * K + columns[None, :]
    values = tl.load(x + at, inside, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), 1), 1e-30) / LARGEST
    quantised = (values / scale[:, None]).to(q.dtype.element_ty)
    to = rows[:, None].to(tl.int64) * DEPTH + columns[None, :]
    tl.store(q + to, quantised, rows[:, None] < M)
    tl.store(scales + tl.program_id(1) * M + rows, scale, rows < M)
    scale = tl.maximum(tl.max(tl.abs(values), 0), 1e-30) / LARGEST
    quantised = (values / scale[None, :]).to(q.dtype.element_ty)
    to = columns[:, None].to(tl.int64) * TURNED_DEPTH + rows[None, :]
    tl.store(turned + to, tl.trans(quantised), columns[:, None] < K)
    tl.store(turned_scales + tl.program_id(0) * K + columns, scale, columns < K)


@triton.jit
def _quantise_blocks(w, q, scales, N, K, DEPTH, BLOCK: tl.constexpr):
    """One scale for each BLOCK x BLOCK values; `q` is padded to DEPTH columns."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < N) & (columns[None, :] < K)
    at = rows[:, None].to(tl.int64) * K + columns[None, :]
    values = tl.load(w + at, inside, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values)), 1e-30) / LARGEST
    to = rows[:, None].to(tl.int64) * DEPTH + columns[None, :]
    tl.store(q + to, (values / scale).to(q.dtype.element_ty), rows[:, None] < N)
    tl.store(scales + tl.program_id(0) * (DEPTH // BLOCK) + tl.program_id(1), scale)


@triton.jit
def _tile(place, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BAND: tl.constexpr):
    """Return the tile at a place of the walk through bands of BAND row tiles."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    band = place // (BAND * tiles_n)
    height = tl.minimum(tl.cdiv(M, BLOCK_M) - band * BAND, BAND)
    within = place % (BAND * tiles_n)
    return band * BAND + within % height, within // height


@triton.jit
def _product(
    a, b, a_scales, b_scales, out,
    M, N, DEPTH,
    B_ROWS: tl.constexpr,
    BAND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = a @ b.T; a scale of `b` is for B_ROWS of its rows."""
    tile_m, tile_n = _tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, BAND)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = DEPTH // BLOCK
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    a_at = a + rows[:, None].to(tl.int64) * DEPTH + tl.arange(0, BLOCK)[None, :]
    b_at = b + columns[None, :].to(tl.int64) * DEPTH + tl.arange(0, BLOCK)[:, None]
    for step in range(steps):
        left = tl.load(a_at + step * BLOCK, rows[:, None] < M, 0.0)
        right = tl.load(b_at + step * BLOCK, columns[None, :] < N, 0.0)
        a_scale = tl.load(a_scales + step * M + rows, rows < M, 0.0)
        if B_ROWS % BLOCK_N == 0:
            b_scale = tl.load(b_scales + tile_n * BLOCK_N // B_ROWS * steps + step)
            total += tl.dot(left, right) * (a_scale * b_scale)[:, None]
        else:
            b_scale = tl.load(b_scales + step * N + columns, columns < N, 0.0)
            total += tl.dot(left, right) * a_scale[:, None] * b_scale[None, :]
    at = out + rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(at, total.to(out.dtype.element_ty), (rows[:, None] < M) & (columns[None, :] < N))


def _both(x: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return what `_rows` returns for x (M, K) and for its transpose, from one pass over x."""
    m, k = x.shape
    grid = (triton.cdiv(m, BLOCK), triton.cdiv(k, BLOCK))
    depth, turned_depth = grid[1] * BLOCK, grid[0] * BLOCK
    q = torch.empty((m, depth), device=x.device, dtype=torch.float8_e4m3fn)
    turned = torch.empty((k, turned_depth), device=x.device, dtype=torch.float8_e4m3fn)
    scales = torch.empty((grid[1], m), device=x.device, dtype=torch.float32)
    turned_scales = torch.empty((grid[0], k), device=x.device, dtype=torch.float32)
    _quantise_both[grid](
        *(x, q, scales, turned, turned_scales, m, k, depth, turned_depth),
        BLOCK=BLOCK,
        num_warps=8,
    )
    return (q, scales), (turned, turned_scales)


def _blocks(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return w (N, K) in E4M3, its depth padded, and scales (blocks of N, blocks of K)."""
    n, k = w.shape
    grid = (triton.cdiv(n, BLOCK), triton.cdiv(k, BLOCK))
    q = torch.empty((n, grid[1] * BLOCK), device=w.device, dtype=torch.float8_e4m3fn)
    scales = torch.empty(grid, device=w.device, dtype=torch.float32)
    _quantise_blocks[grid](w, q, scales, n, k, grid[1] * BLOCK, BLOCK=BLOCK, num_warps=8)
    return q, scales


def _multiply(
    a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor], b_rows: int
) -> torch.Tensor:
    """Return a @ b.T in bf16; both are given with their scales, b's for `b_rows` rows each."""
    (left, left_scales), (right, right_scales) = a, b
    (m, depth), n = left.shape, right.shape[0]
    out = torch.empty((m, n), device=left.device, dtype=torch.bfloat16)
    tiles_m, tiles_n = triton.cdiv(m, TILING["BLOCK_M"]), triton.cdiv(n, TILING["BLOCK_N"])
    grid = (tiles_m * tiles_n,)
    _product[grid](
        left,
        right,
        *(left_scales, right_scales, out),
        *(m, n, depth),
        B_ROWS=b_rows,
        BAND=BAND,
        BLOCK=BLOCK,
        **TILING,
    )
    return out


class _Gemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x, w = x.contiguous(), w.contiguous()
        given, turned = _both(x)
        ctx.save_for_backward(*turned, w)
        return _multiply(given, _blocks(w), BLOCK)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        *turned, w = ctx.saved_tensors
        grad = grad.contiguous()
        given, given_turned = _both(grad)
        dx = _multiply(given, _blocks(w.t().contiguous()), BLOCK)
        dw = _multiply(given_turned, tuple(turned), 1)
        return dx, dw


def gemm_fp8(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return x @ w.T in bf16 for bf16 x (M, K) and w (N, K), all products computed in E4M3."""
    return _Gemm.apply(x, w)
