"""Keeps one transposed copy of the weight, renewed whenever the weight's version moves."""

import weakref

import torch

NEEDS = "cpu"
BUCKET = "W1"


class Transposed:
    """A weight's contiguous transpose, valid for one object and one version of it."""

    def __init__(self) -> None:
        self.owner = lambda: None
        self.version = -1
        self.copy = None

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        if self.owner() is not weight or self.version != weight._version:
            self.owner = weakref.ref(weight)
            self.version = weight._version
            self.copy = weight.detach().t().contiguous()
        return self.copy


_weight = Transposed()


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(a, _weight.of(b))
