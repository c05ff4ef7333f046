"""Allocates one result and does every step inside it."""

import torch

NEEDS = "cpu"


def softmax(x):
    y = torch.empty_like(x)
    torch.sub(x, x.amax(dim=-1, keepdim=True), out=y)
    torch.exp(y, out=y)
    y /= y.sum(dim=-1, keepdim=True)
    return y
