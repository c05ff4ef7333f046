"""The two-method style of autograd function, with a contiguous weight saved for the backward."""

import torch

NEEDS = "cpu"


class Dense(torch.autograd.Function):
    @staticmethod
    def forward(x, w):
        return torch.einsum("ti,io->to", x, w)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return torch.nn.functional.linear(g, w), torch.nn.functional.linear(x.t(), g.t())


linear_backward = Dense.apply
