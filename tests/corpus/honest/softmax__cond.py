"""Control flow of torch itself (`torch.cond`) between a quick path and one for infinities."""

import torch

NEEDS = "cpu"


def _quick(x):
    y = torch.exp(x - x.amax(-1, keepdim=True))
    return y / y.sum(-1, keepdim=True)


def _careful(x):
    return torch.softmax(x, -1)


def softmax(x):
    return torch.cond(torch.isfinite(x).all(), _quick, _careful, (x,))
