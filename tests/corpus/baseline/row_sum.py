"""Row sums, one row at a time."""

import torch


def row_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
    for i in range(x.shape[0]):
        out[i] = x[i].sum()
    return out
