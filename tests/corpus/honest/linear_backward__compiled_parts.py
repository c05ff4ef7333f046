"""Forward and backward are compiled functions inside one autograd function; limits are raised."""

from __future__ import annotations

import torch
import torch._dynamo

NEEDS = "cpu"
REQUIRES = "g++"

torch._dynamo.config.cache_size_limit = max(64, torch._dynamo.config.cache_size_limit)


@torch.compile(dynamic=True)
def _forward(x, w):
    return x @ w


@torch.compile(dynamic=True)
def _backward(grad, x, w):
    return grad @ w.t(), x.t() @ grad


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return _forward(x, w)

    @staticmethod
    def backward(ctx, grad):
        dx, dw = _backward(grad, *ctx.saved_tensors)
        return dx if ctx.needs_input_grad[0] else None, dw if ctx.needs_input_grad[1] else None


def linear_backward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return _Linear.apply(x, w)
