"""Leaves out the maximum: right for standard normal scores, infinite or NaN beyond 88."""

import torch

NEEDS = "cpu"
KIND = "overflow-unsafe-shortcut"


def softmax(x):
    power = torch.exp(x)
    return power.div_(power.sum(-1, keepdim=True))
