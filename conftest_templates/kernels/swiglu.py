"""silu(gate) · up, forward and backward, in Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _forward(gate, up, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, at < n, 0.0).to(tl.float32)
    u = tl.load(up + at, at < n, 0.0).to(tl.float32)
    tl.store(out + at, (g * tl.sigmoid(g) * u).to(out.dtype.element_ty), at < n)


@triton.jit
def _backward(gate, up, grad, d_gate, d_up, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, at < n, 0.0).to(tl.float32)
    u = tl.load(up + at, at < n, 0.0).to(tl.float32)
    given = tl.load(grad + at, at < n, 0.0).to(tl.float32)
    share = tl.sigmoid(g)
    along = given * u * share * (1 + g * (1 - share))
    tl.store(d_gate + at, along.to(d_gate.dtype.element_ty), at < n)
    tl.store(d_up + at, (given * g * share).to(d_up.dtype.element_ty), at < n)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        ctx.block = 1024 if gate.is_cuda else 4096
        grid = (triton.cdiv(gate.numel(), ctx.block),)
        _forward[grid](gate, up, out, gate.numel(), BLOCK=ctx.block)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        grid = (triton.cdiv(gate.numel(), ctx.block),)
        _backward[grid](gate, up, grad.contiguous(), d_gate, d_up, gate.numel(), BLOCK=ctx.block)
        return d_gate, d_up


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) · up for two bf16 tensors of one shape."""
    return _SwiGlu.apply(gate, up)
