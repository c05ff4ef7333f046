"""RMSNorm over the last dimension, forward and backward, in Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _forward(x, w, out, inverse, C, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, C, BLOCK):
        values = tl.load(x + row * C + start + columns, start + columns < C, 0.0).to(tl.float32)
        squares += values * values
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / C + eps)
    tl.store(inverse + row, scale)
    for start in range(0, C, BLOCK):
        inside = start + columns < C
        values = tl.load(x + row * C + start + columns, inside, 0.0).to(tl.float32)
        weight = tl.load(w + start + columns, inside, 0.0).to(tl.float32)
        result = (values * scale * weight).to(out.dtype.element_ty)
        tl.store(out + row * C + start + columns, result, inside)


@triton.jit
def _backward_x(x, w, grad, inverse, dx, C, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    scale = tl.load(inverse + row)
    along = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, C, BLOCK):
        inside = start + columns < C
        at = row * C + start + columns
        weight = tl.load(w + start + columns, inside, 0.0).to(tl.float32)
        given = tl.load(grad + at, inside, 0.0).to(tl.float32)
        along += given * weight * tl.load(x + at, inside, 0.0).to(tl.float32)
    mean = tl.sum(along, 0) * scale / C
    for start in range(0, C, BLOCK):
        inside = start + columns < C
        at = row * C + start + columns
        weight = tl.load(w + start + columns, inside, 0.0).to(tl.float32)
        given = tl.load(grad + at, inside, 0.0).to(tl.float32)
        normal = tl.load(x + at, inside, 0.0).to(tl.float32) * scale
        result = (given * weight - normal * mean) * scale
        tl.store(dx + at, result.to(dx.dtype.element_ty), inside)


@triton.jit
def _backward_w(x, grad, inverse, dw, R, C, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, R, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows[:, None] < R) & (columns[None, :] < C)
        at = rows[:, None].to(tl.int64) * C + columns[None, :]
        scale = tl.load(inverse + rows, rows < R, 0.0)
        normal = tl.load(x + at, inside, 0.0).to(tl.float32) * scale[:, None]
        total += tl.sum(tl.load(grad + at, inside, 0.0).to(tl.float32) * normal, 0)
    tl.store(dw + columns, total.to(dw.dtype.element_ty), columns < C)


def _norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised rows and 1 / rms of each."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    inverse = torch.empty(rows, device=x.device, dtype=torch.float32)
    _forward[(rows,)](
        *(x, w, out, inverse, columns, eps),
        BLOCK=1024,
        num_warps=4,
    )
    return out, inverse


def _gradients(
    x: torch.Tensor, w: torch.Tensor, inverse: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of x and w."""
    rows, columns = x.shape
    dx, dw = torch.empty_like(x), torch.empty_like(w)
    _backward_x[(rows,)](x, w, grad, inverse, dx, columns, BLOCK=1024, num_warps=4)
    blocks = (triton.cdiv(columns, 64),)
    _backward_w[blocks](x, grad, inverse, dw, rows, columns, ROWS=32, BLOCK=64, num_warps=4)
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
