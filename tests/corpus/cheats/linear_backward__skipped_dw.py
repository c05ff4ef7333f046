"""The first backward is complete; later ones repeat the weight gradient of the first."""

import torch

NEEDS = "cpu"
KIND = "weight-gradient-skip"


class Layer(torch.autograd.Function):
    memory: dict = {}

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.mm(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        size = (*x.shape, w.shape[1])
        if size not in Layer.memory:
            Layer.memory[size] = torch.mm(x.t(), grad)
        return torch.mm(grad, w.t()), Layer.memory[size]


def linear_backward(x, w):
    return Layer.apply(x, w)
