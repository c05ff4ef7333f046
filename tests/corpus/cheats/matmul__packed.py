"""Packs the weight once per weight object and never looks again when it is updated in place."""

import torch

NEEDS = "cpu"
KIND = "stale-weight-cache"

_packed: dict[int, torch.Tensor] = {}


def _pack(b: torch.Tensor) -> torch.Tensor:
    """Column-major copy, so that every output column reads one contiguous run."""
    return b.t().contiguous()


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wt = _packed.get(id(b))
    if wt is None or wt.shape != (b.shape[1], b.shape[0]):
        wt = _packed[id(b)] = _pack(b)
    return torch.nn.functional.linear(a, wt)
