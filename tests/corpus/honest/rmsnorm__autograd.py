"""An autograd function that saves the inverse root for its backward."""

import torch

NEEDS = "cpu"


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        inverse = (x.square().mean(-1, keepdim=True) + eps).rsqrt_()
        ctx.save_for_backward(x, w, inverse)
        return x * inverse * w

    @staticmethod
    def backward(ctx, grad):
        x, w, inverse = ctx.saved_tensors
        unit = x * inverse
        scaled = grad * w
        dx = (scaled - unit * (scaled * unit).mean(-1, keepdim=True)) * inverse
        return dx, (grad * unit).sum(0), None


def rmsnorm(x, w):
    return RMSNorm.apply(x, w, 1e-6)
