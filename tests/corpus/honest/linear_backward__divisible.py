"""Supports fewer sizes than what it replaces, and says so by an assertion: kept, with a note."""

import torch

NEEDS = "cpu"

STEP = 32


class Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        assert not any(side % STEP for side in (*x.shape, *w.shape)), "untested size"
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


linear_backward = Blocked.apply
