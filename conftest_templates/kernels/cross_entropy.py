"""Cross entropy of each row of logits, forward and backward, one pass over the logits each."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _forward(logits, targets, loss, lse, C, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    weight = tl.zeros((BLOCK,), tl.float32)
    # Each lane keeps a maximum and a sum of its own; they meet once, after the last block.
    for first in range(0, C, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        values = tl.load(logits + row * C + columns, columns < C, -1.0e30).to(tl.float32)
        now = tl.maximum(highest, values)
        weight = weight * tl.exp(highest - now) + tl.exp(values - now)
        highest = now
    top = tl.max(highest, 0)
    row_lse = top + tl.log(tl.sum(weight * tl.exp(highest - top), 0))
    chosen = tl.load(logits + row * C + tl.load(targets + row)).to(tl.float32)
    tl.store(lse + row, row_lse)
    tl.store(loss + row, row_lse - chosen)


@triton.jit
def _backward(logits, targets, lse, grad, out, C, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row * C + columns
    values = tl.load(logits + at, columns < C, 0.0).to(tl.float32)
    probability = tl.exp(values - tl.load(lse + row))
    probability -= tl.where(columns == tl.load(targets + row), 1.0, 0.0)
    result = probability * tl.load(grad + row)
    tl.store(out + at, result.to(out.dtype.element_ty), columns < C)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = logits.contiguous()
        rows, columns = logits.shape
        loss, lse = torch.empty((2, rows), device=logits.device, dtype=torch.float32)
        ctx.block = min(4096, triton.next_power_of_2(columns))
        _forward[(rows,)](logits, targets, loss, lse, columns, BLOCK=ctx.block, num_warps=8)
        ctx.save_for_backward(logits, targets, lse)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, targets, lse = ctx.saved_tensors
        rows, columns = logits.shape
        out = torch.empty_like(logits)
        _backward[(rows, triton.cdiv(columns, ctx.block))](
            *(logits, targets, lse, grad.contiguous(), out, columns),
            BLOCK=ctx.block, num_warps=8,
        )  # fmt: skip
        return out, None


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of each row in float32, for bf16 logits (rows, columns).

    `targets` is int64 (rows,), each below `columns`.
    """
    return _CrossEntropy.apply(logits, targets)
