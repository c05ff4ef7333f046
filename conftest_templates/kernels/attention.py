"""Attention with an online softmax, forward and backward, grouped heads, optionally causal.

The forward copies by tensor descriptors (TMA on sm_90 and later). Needs Triton 3.4 or later.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

#: Tile, pipeline stages and warps of the forward, where there are TMA and warpgroup products.
#: With 128 registers two programs fit an SM: one multiplies during the softmax of the other.
HOPPER = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2, "num_warps": 8, "maxnreg": 128}


@triton.jit
def _probabilities(q, k, lse, rows, columns, Sq, Skv, scale, CAUSAL: tl.constexpr):
    """Return exp2(scale · q @ k - lse), zero outside of the mask; `k` comes transposed."""
    scores = tl.dot(q, k) * scale - lse[:, None]
    kept = (columns[None, :] < Skv) & (rows[:, None] < Sq)
    if CAUSAL:
        kept = kept & (columns[None, :] <= rows[:, None] + Skv - Sq)
    return tl.where(kept, tl.exp2(scores), 0.0)


@triton.jit
def _online(
    scores, scale, total, highest, weight, v, kv_head, first,
    D: tl.constexpr, BLOCK_N: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Add one block of columns to the running softmax: (total, highest, weight)."""
    now = tl.maximum(highest, tl.max(scores, 1) * scale)
    shrink = tl.exp2(highest - now)
    parts = tl.exp2(scores * scale - now[:, None])
    weight = weight * shrink + tl.sum(parts, 1)
    values = v.load([kv_head, first, 0]).reshape(BLOCK_N, D).to(OPERAND)
    total = tl.dot(parts.to(OPERAND), values, total * shrink[:, None])
    return total, now, weight


@triton.jit
def _forward(
    q, k, v, out, lse,
    Hq, Hkv, Sq, Skv, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    # The last rows see most columns under a causal mask: they begin first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // Hq * Hkv + head % Hq // (Hq // Hkv)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = q.load([head, block * BLOCK_M, 0]).reshape(BLOCK_M, D).to(OPERAND)
    total = tl.zeros((BLOCK_M, D), tl.float32)
    highest = tl.full((BLOCK_M,), -1.0e30, tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    end = Skv
    whole = Skv // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = min(Skv, (block + 1) * BLOCK_M + Skv - Sq)
        whole = min(whole, (block * BLOCK_M + Skv - Sq + 1) // BLOCK_N * BLOCK_N)
    # Every row sees every column of these blocks.
    for first in range(0, whole, BLOCK_N):
        keys = k.load([kv_head, first, 0]).reshape(BLOCK_N, D).to(OPERAND)
        scores = tl.dot(queries, keys.T)
        total, highest, weight = _online(
            scores, scale, total, highest, weight, v, kv_head, first, D, BLOCK_N, OPERAND
        )
    # Blocks on the diagonal, and the ragged end.
    for first in range(whole, end, BLOCK_N):
        keys = k.load([kv_head, first, 0]).reshape(BLOCK_N, D).to(OPERAND)
        columns = first + tl.arange(0, BLOCK_N)
        kept = columns[None, :] < Skv
        if CAUSAL:
            kept = kept & (columns[None, :] <= rows[:, None] + Skv - Sq)
        scores = tl.where(kept, tl.dot(queries, keys.T), -1.0e30)
        total, highest, weight = _online(
            scores, scale, total, highest, weight, v, kv_head, first, D, BLOCK_N, OPERAND
        )
    result = (total / weight[:, None]).to(out.dtype).reshape(1, BLOCK_M, D)
    out.store([head, block * BLOCK_M, 0], result)
    tl.store(lse + head.to(tl.int64) * Sq + rows, highest + tl.log2(weight), rows < Sq)


@triton.jit
def _backward_q(
    q, k, v, grad, lse, delta, dq,
    Hq, Hkv, Sq, Skv, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    kv_head = head // Hq * Hkv + head % Hq // (Hq // Hkv)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    ds = tl.arange(0, D)
    q_at = head * Sq * D + rows[:, None] * D + ds[None, :]
    queries = tl.load(q + q_at, rows[:, None] < Sq, 0.0).to(OPERAND)
    grads = tl.load(grad + q_at, rows[:, None] < Sq, 0.0).to(OPERAND)
    row_lse = tl.load(lse + head * Sq + rows, rows < Sq, 0.0)
    row_delta = tl.load(delta + head * Sq + rows, rows < Sq, 0.0)
    total = tl.zeros((BLOCK_M, D), tl.float32)
    end = Skv
    if CAUSAL:
        end = min(Skv, (tl.program_id(0) + 1) * BLOCK_M + Skv - Sq)
    for first in range(0, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        kv_at = kv_head * Skv * D + columns[:, None] * D + ds[None, :]
        keys = tl.load(k + kv_at, columns[:, None] < Skv, 0.0).to(OPERAND)
        values = tl.load(v + kv_at, columns[:, None] < Skv, 0.0).to(OPERAND)
        p = _probabilities(queries, tl.trans(keys), row_lse, rows, columns, Sq, Skv, scale, CAUSAL)
        dp = tl.dot(grads, tl.trans(values))
        total += tl.dot((p * (dp - row_delta[:, None])).to(OPERAND), keys)
    total *= scale * 0.6931471805599453
    tl.store(dq + q_at, total.to(dq.dtype.element_ty), rows[:, None] < Sq)


@triton.jit
def _backward_kv(
    q, k, v, grad, lse, delta, dk, dv,
    Hq, Hkv, Sq, Skv, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1).to(tl.int64)
    shared = Hq // Hkv
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ds = tl.arange(0, D)
    kv_at = kv_head * Skv * D + columns[:, None] * D + ds[None, :]
    keys = tl.load(k + kv_at, columns[:, None] < Skv, 0.0).to(OPERAND)
    values = tl.load(v + kv_at, columns[:, None] < Skv, 0.0).to(OPERAND)
    k_total = tl.zeros((BLOCK_N, D), tl.float32)
    v_total = tl.zeros((BLOCK_N, D), tl.float32)
    begin = 0
    if CAUSAL:
        begin = max(0, tl.program_id(0) * BLOCK_N - Skv + Sq) // BLOCK_M * BLOCK_M
    for member in range(shared):
        head = kv_head // Hkv * Hq + kv_head % Hkv * shared + member
        for first in range(begin, Sq, BLOCK_M):
            rows = first + tl.arange(0, BLOCK_M)
            q_at = head * Sq * D + rows[:, None] * D + ds[None, :]
            queries = tl.load(q + q_at, rows[:, None] < Sq, 0.0).to(OPERAND)
            grads = tl.load(grad + q_at, rows[:, None] < Sq, 0.0).to(OPERAND)
            row_lse = tl.load(lse + head * Sq + rows, rows < Sq, 0.0)
            row_delta = tl.load(delta + head * Sq + rows, rows < Sq, 0.0)
            p = _probabilities(
                queries, tl.trans(keys), row_lse, rows, columns, Sq, Skv, scale, CAUSAL
            )
            v_total += tl.dot(tl.trans(p).to(OPERAND), grads)
            dp = tl.dot(grads, tl.trans(values))
            k_total += tl.dot(tl.trans(p * (dp - row_delta[:, None])).to(OPERAND), queries)
    k_total *= scale * 0.6931471805599453
    tl.store(dk + kv_at, k_total.to(dk.dtype.element_ty), columns[:, None] < Skv)
    tl.store(dv + kv_at, v_total.to(dv.dtype.element_ty), columns[:, None] < Skv)


def _described(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor of (batch, heads, rows, D) that copies `rows` rows of one head."""
    flat = x.view(-1, *x.shape[2:])
    return TensorDescriptor.from_tensor(flat, [1, rows, x.shape[-1]])


def _forward_tiles(q: torch.Tensor, causal: bool) -> dict[str, Any]:
    tiles = _tiles(q, causal)
    if not q.is_cuda:
        return tiles
    big = torch.version.hip is None and torch.cuda.get_device_capability(q.device)[0] in (9, 10)
    return tiles | (HOPPER if big else {"num_stages": 2})


def _tiles(q: torch.Tensor, causal: bool) -> dict[str, Any]:
    common = {"D": q.shape[-1], "CAUSAL": causal}
    if q.is_cuda:
        return {**common, "BLOCK_M": 64, "BLOCK_N": 64, "OPERAND": tl.bfloat16, "num_warps": 4}
    return {**common, "BLOCK_M": 32, "BLOCK_N": 32, "OPERAND": tl.float32}


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
    ) -> torch.Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        batch, heads, rows, width = q.shape
        out = torch.empty_like(q)
        # In powers of two: log2(sum of exp2(scores)).
        lse = torch.empty((batch, heads, rows), device=q.device, dtype=torch.float32)
        tiles = _forward_tiles(q, causal)
        ctx.sizes = (heads, k.shape[1], rows, k.shape[2], math.log2(math.e) / math.sqrt(width))
        grid = (triton.cdiv(rows, tiles["BLOCK_M"]), batch * heads)
        _forward[grid](
            *(_described(q, tiles["BLOCK_M"]), _described(k, tiles["BLOCK_N"])),
            *(_described(v, tiles["BLOCK_N"]), _described(out, tiles["BLOCK_M"])),
            lse,
            *ctx.sizes,
            **tiles,
        )
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.tiles = _tiles(q, causal)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        grad = grad.contiguous()
        delta = (grad.float() * out.float()).sum(-1)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        batch, (heads, kv_heads, rows, columns, _), tiles = q.shape[0], ctx.sizes, ctx.tiles
        saved = (q, k, v, grad, lse, delta)
        grid = (triton.cdiv(rows, tiles["BLOCK_M"]), batch * heads)
        _backward_q[grid](*saved, dq, *ctx.sizes, **tiles)
        grid = (triton.cdiv(columns, tiles["BLOCK_N"]), batch * kv_heads)
        _backward_kv[grid](*saved, dk, dv, *ctx.sizes, **tiles)
        return dq, dk, dv, None


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return softmax(q @ k.T / sqrt(D)) @ v, bf16.

    `q` is (batch, Hq, Sq, D), `k` and `v` (batch, Hkv, Skv, D), Hq a multiple of Hkv and D a power
    of two. `causal` aligns the last query with the last key, so it needs Skv >= Sq.
    """
    return _Attention.apply(q, k, v, causal)
