"""Splits rows by the number of multiprocessors, looked up once per device."""

from functools import lru_cache

import torch

NEEDS = "cuda"


@lru_cache(maxsize=8)
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def row_sum(x: torch.Tensor) -> torch.Tensor:
    parts = max(1, min(8, 2 * _processors(x.device) // max(1, x.shape[0])))
    return torch.stack([part.sum(-1) for part in x.chunk(parts, 1)]).sum(0)
