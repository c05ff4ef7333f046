"""The first and second step of each kernel in docs/results/start_here_h100.json, in Triton.

The last step of each is the template of that name in `conftest_templates/kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm_pointers(
    a, b, a_scale, b_scale, out,
    M, N, K, b_k, b_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, SCALED: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """One program a tile; each thread computes the addresses that it loads."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    first = tile // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first, GROUP)
    inside = tile % (GROUP * tiles_n)
    rows = (first + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = inside // height * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_at = a + rows[:, None] * K + ks[None, :]
    b_at = b + ks[:, None] * b_k + columns[None, :] * b_n
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        left = tl.load(a_at, (rows[:, None] < M) & (ks[None, :] < K - k), 0.0)
        right = tl.load(b_at, (ks[:, None] < K - k) & (columns[None, :] < N), 0.0)
        total = tl.dot(left.to(OPERAND), right.to(OPERAND), total)
        a_at += BLOCK_K
        b_at += BLOCK_K * b_k
    if SCALED:
        total *= tl.load(a_scale) * tl.load(b_scale)
    at = out + rows[:, None] * N + columns[None, :]
    tl.store(at, total.to(out.dtype.element_ty), (rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def gemm_descriptors(
    a, b, a_scale, b_scale, out,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, SCALED: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """One program a tile; tensor descriptors copy it. With SCALED, b comes as (N, K)."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    first = tile // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first, GROUP)
    inside = tile % (GROUP * tiles_n)
    row = (first + inside % height) * BLOCK_M
    column = inside // height * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        left = a.load([row, k])
        right = b.load([column, k]).T if SCALED else b.load([k, column])
        total = tl.dot(left.to(OPERAND), right.to(OPERAND), total)
    if SCALED:
        total *= tl.load(a_scale) * tl.load(b_scale)
    out.store([row, column], total.to(out.dtype))


@triton.jit
def attention_pointers(
    q, k, v, out,
    Sq, Skv, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Causal attention; each thread computes addresses, every block of columns is masked."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    ds = tl.arange(0, D)
    q_at = head * Sq * D + rows[:, None] * D + ds[None, :]
    queries = tl.load(q + q_at, rows[:, None] < Sq, 0.0).to(OPERAND)
    total = tl.zeros((BLOCK_M, D), tl.float32)
    highest = tl.full((BLOCK_M,), -1.0e30, tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    end = min(Skv, (tl.program_id(0) + 1) * BLOCK_M + Skv - Sq)
    for first in range(0, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        kv_at = head * Skv * D + columns[:, None] * D + ds[None, :]
        keys = tl.load(k + kv_at, columns[:, None] < Skv, 0.0).to(OPERAND)
        values = tl.load(v + kv_at, columns[:, None] < Skv, 0.0).to(OPERAND)
        kept = (columns[None, :] < Skv) & (columns[None, :] <= rows[:, None] + Skv - Sq)
        scores = tl.where(kept, tl.dot(queries, tl.trans(keys)) * scale, -1.0e30)
        now = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp2(highest - now)
        parts = tl.exp2(scores - now[:, None])
        weight = weight * shrink + tl.sum(parts, 1)
        total = total * shrink[:, None] + tl.dot(parts.to(OPERAND), values)
        highest = now
    tl.store(out + q_at, (total / weight[:, None]).to(out.dtype.element_ty), rows[:, None] < Sq)


@triton.jit
def attention_descriptors(
    q, k, v, out,
    Sq, Skv, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Causal attention; tensor descriptors copy, every block of columns is masked."""
    head = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = q.load([head, tl.program_id(0) * BLOCK_M, 0]).reshape(BLOCK_M, D).to(OPERAND)
    total = tl.zeros((BLOCK_M, D), tl.float32)
    highest = tl.full((BLOCK_M,), -1.0e30, tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    end = min(Skv, (tl.program_id(0) + 1) * BLOCK_M + Skv - Sq)
    for first in range(0, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        keys = k.load([head, first, 0]).reshape(BLOCK_N, D).to(OPERAND)
        kept = (columns[None, :] < Skv) & (columns[None, :] <= rows[:, None] + Skv - Sq)
        scores = tl.where(kept, tl.dot(queries, keys.T) * scale, -1.0e30)
        now = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp2(highest - now)
        parts = tl.exp2(scores - now[:, None])
        weight = weight * shrink + tl.sum(parts, 1)
        values = v.load([head, first, 0]).reshape(BLOCK_N, D).to(OPERAND)
        total = tl.dot(parts.to(OPERAND), values, total * shrink[:, None])
        highest = now
    result = (total / weight[:, None]).to(out.dtype).reshape(1, BLOCK_M, D)
    out.store([head, tl.program_id(0) * BLOCK_M, 0], result)


@triton.jit
def rmsnorm_two_passes(x, w, out, R, C, eps, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """One program a row, in blocks of columns: the row is read twice."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, C, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        values = tl.load(x + row * C + columns, columns < C, 0.0).to(tl.float32)
        squares += values * values
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / C + eps)
    for first in range(0, C, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        values = tl.load(x + row * C + columns, columns < C, 0.0).to(tl.float32)
        weight = tl.load(w + columns, columns < C, 0.0).to(tl.float32)
        result = (values * scale * weight).to(out.dtype.element_ty)
        tl.store(out + row * C + columns, result, columns < C)


@triton.jit
def rmsnorm_one_pass(x, w, out, R, C, eps, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """One program a row, which stays in registers: the row is read once."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    values = tl.load(x + row * C + columns, inside, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(values * values, 0) / C + eps)
    weight = tl.load(w + columns, inside, 0.0).to(tl.float32)
    tl.store(out + row * C + columns, (values * scale * weight).to(out.dtype.element_ty), inside)


@triton.jit
def rmsnorm_persistent(x, w, out, R, C, eps, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """A program walks over rows: the weight stays in registers, the next row is on its way."""
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    weight = tl.load(w + columns, inside, 0.0).to(tl.float32)
    for row in tl.range(tl.program_id(0), R, tl.num_programs(0), num_stages=DEPTH):
        at = tl.cast(row, tl.int64) * C + columns
        values = tl.load(x + at, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(values * values, 0) / C + eps)
        tl.store(out + at, (values * scale * weight).to(out.dtype.element_ty), inside)
