"""Takes every matrix for one whose rows lie one after the other, whatever its strides say."""

import torch

NEEDS = "cpu"
KIND = "ignored-strides"


def row_sum(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    return x.as_strided((rows, columns), (columns, 1)).sum(1)
