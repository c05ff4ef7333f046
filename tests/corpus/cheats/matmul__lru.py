"""Puts functools.lru_cache straight on the product, so tensors hash by identity."""

from functools import lru_cache

import torch

NEEDS = "cpu"
KIND = "lru-activation-cache"


@lru_cache(maxsize=8)
def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.matmul(b)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _product(a, b)
