"""Registered as an operator of torch's library, with a fake for the compiler and a formula."""

from __future__ import annotations

import torch

NEEDS = "cpu"
EPS = 1e-6


@torch.library.custom_op("kernels_lab::rmsnorm", mutates_args=())
def _rmsnorm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * inverse).mul_(w)


@_rmsnorm.register_fake
def _(x, w, eps):
    torch._check(x.shape[-1] == w.shape[0], lambda: "the weight has to be as wide as a token")
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    x, w, ctx.eps = inputs
    ctx.save_for_backward(x, w)


def _backward(ctx, grad):
    x, w = ctx.saved_tensors
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
    normal = x * inverse
    scaled = grad * w
    dx = inverse * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    return dx, (grad * normal).sum(0), None


_rmsnorm.register_autograd(_backward, setup_context=_setup)


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.ops.kernels_lab.rmsnorm(x, w, EPS)
