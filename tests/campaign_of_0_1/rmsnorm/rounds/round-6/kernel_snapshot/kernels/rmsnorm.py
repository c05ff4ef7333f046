"""RMSNorm over the last dimension, forward and backward, in Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


#: Programs of the backward; each keeps a row of the weight's gradient until all are added up.
PROGRAMS = 528


@triton.jit
def _forward(x, w, out, inverse, C, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    values = tl.load(x + row * C + columns, inside, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(values * values, 0) / C + eps)
    weight = tl.load(w + columns, inside, 0.0).to(tl.float32)
    tl.store(out + row * C + columns, (values * scale * weight).to(out.dtype.element_ty), inside)
    tl.store(inverse + row, scale)


@triton.jit
def _backward(x, w, grad, inverse, dx, dw, R, C, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    weight = tl.load(w + columns, inside, 0.0).to(tl.float32)
    part = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * C + columns
        scale = tl.load(inverse + row)
        normal = tl.load(x + at, inside, 0.0).to(tl.float32) * scale
        given = tl.load(grad + at, inside, 0.0).to(tl.float32)
        along = tl.sum(given * weight * normal, 0) / C
        result = (given * weight - normal * along) * scale
        tl.store(dx + at, result.to(dx.dtype.element_ty), inside)
        part += given * normal
    tl.store(dw + tl.program_id(0) * C + columns, part, inside)


def _norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised rows and 1 / rms of each."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    inverse = torch.empty(rows, device=x.device, dtype=torch.float32)
    width = triton.next_power_of_2(columns)
    _forward[(rows,)](
        *(x, w, out, inverse, columns, eps),
        BLOCK=width,
        num_warps=min(max(width // 512, 1), 16),
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
    return dx, sums.sum(0).to(w.dtype)


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
