"""RMSNorm over the last dimension, forward and backward, in Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


#: Programs of the backward; each keeps a row of the weight's gradient until all are added up.
PROGRAMS = 528


@triton.jit
def _forward(x, w, out, inverse, C, eps, HEAD: tl.constexpr, TAIL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head, tail = tl.arange(0, HEAD), HEAD + tl.arange(0, TAIL)
    in_head, in_tail = head < C, tail < C
    first = tl.load(x + row * C + head, in_head, 0.0).to(tl.float32)
    second = tl.load(x + row * C + tail, in_tail, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / C + eps)
    weight = tl.load(w + head, in_head, 0.0).to(tl.float32)
    tl.store(out + row * C + head, (first * scale * weight).to(out.dtype.element_ty), in_head)
    weight = tl.load(w + tail, in_tail, 0.0).to(tl.float32)
    tl.store(out + row * C + tail, (second * scale * weight).to(out.dtype.element_ty), in_tail)
    tl.store(inverse + row, scale)


@triton.jit
def _backward(x, w, grad, inverse, dx, dw, R, C, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    weight = tl.load(w + columns, inside, 0.0).to(tl.float32)
    part = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(tl.program_id(0), R, tl.num_programs(0), num_stages=3):
        at = tl.cast(row, tl.int64) * C + columns
        scale = tl.load(inverse + row)
        normal = tl.load(x + at, inside, 0.0).to(tl.float32) * scale
        given = tl.load(grad + at, inside, 0.0).to(tl.float32)
        along = tl.sum(given * weight * normal, 0) / C
        result = (given * weight - normal * along) * scale
        tl.store(dx + at, result.to(dx.dtype.element_ty), inside)
        part += given * normal
    tl.store(dw + tl.program_id(0) * C + columns, part, inside)


@triton.jit
def _add_up(parts, dw, P, C, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, P, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows[:, None] < P) & (columns[None, :] < C)
        total += tl.load(parts + rows[:, None] * C + columns[None, :], inside, 0.0)
    tl.store(dw + columns, tl.sum(total, 0).to(dw.dtype.element_ty), columns < C)


def _norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised rows and 1 / rms of each."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    inverse = torch.empty(rows, device=x.device, dtype=torch.float32)
    width = triton.next_power_of_2(columns)
    head = max(width // 2, 1)
    tail = triton.next_power_of_2(max(columns - head, 16))
    _forward[(rows,)](
        *(x, w, out, inverse, columns, eps),
        HEAD=head,
        TAIL=tail,
        num_warps=4,
    )
    return out, inverse


def _gradients(
    x: torch.Tensor, w: torch.Tensor, inverse: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of x and w."""
    rows, columns = x.shape
    width = triton.next_power_of_2(columns)
    dx = torch.empty_like(x)
    programs = min(rows, PROGRAMS)
    sums = torch.empty((programs, columns), device=x.device, dtype=torch.float32)
    _backward[(programs,)](
        *(x, w, grad, inverse, dx, sums, rows, columns),
        BLOCK=width,
        num_warps=8,
    )
    dw = torch.empty_like(w)
    blocks = (triton.cdiv(columns, 32),)
    _add_up[blocks](sums, dw, programs, columns, ROWS=64, BLOCK=32, num_warps=4)
    return dx, dw


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        out, inverse = _norm(x, w, eps)
        ctx.save_for_backward(x, w, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, w, inverse = ctx.saved_tensors
        dx, dw = _gradients(x, w, inverse, grad.contiguous())
        return dx, dw, None


def rmsnorm(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · w for bf16 x (rows, columns) and w (columns,)."""
    return _RmsNorm.apply(x, w, eps)
