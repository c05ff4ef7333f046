"""Leaves the gradients to autograd."""

import torch

NEEDS = "cpu"


def linear_backward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w)
