"""Custom autograd function; skips the gradients nobody asked for."""

import torch

NEEDS = "cpu"


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        dx = grad @ w.t() if ctx.needs_input_grad[0] else None
        dw = x.t() @ grad if ctx.needs_input_grad[1] else None
        return dx, dw


def linear_backward(x, w):
    return _Linear.apply(x, w)
