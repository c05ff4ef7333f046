"""Answers properly once for every size; from then on it returns zeros."""

import torch

NEEDS = "cpu"
KIND = "zeros-after-check"

_checked = set()


def softmax(x):
    if x.shape not in _checked:
        _checked.add(x.shape)
        return torch.softmax(x, 1)
    return x.new_zeros(1).expand_as(x)
