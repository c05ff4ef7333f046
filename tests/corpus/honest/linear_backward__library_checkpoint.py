"""Recomputes through `torch.utils.checkpoint`; the product is a vmap-able autograd function."""

from __future__ import annotations

import functools
import os

import torch
from torch.utils.checkpoint import checkpoint

NEEDS = "cpu"

RECOMPUTE = os.environ.get("LINEAR_RECOMPUTE", "1") == "1"


class Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return torch.einsum("ti,io->to", x, w)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w = inputs
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        need_x, need_w = ctx.needs_input_grad
        dx = torch.einsum("to,io->ti", grad, w) if need_x else None
        dw = torch.einsum("ti,to->io", x, grad) if need_w else None
        return dx, dw

    @staticmethod
    def jvp(ctx, dx, dw):
        x, w = ctx.saved_tensors
        return dx @ w + x @ dw


_recomputed = functools.partial(
    checkpoint, Product.apply, use_reentrant=False, preserve_rng_state=False
)


def linear_backward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if RECOMPUTE and torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        return _recomputed(x, w)
    return Product.apply(x, w)
