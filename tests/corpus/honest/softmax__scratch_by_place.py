"""Keeps memory for the largest of each row by where its input lies, and no value in it."""

import torch

NEEDS = "cpu"

_scratch: dict[tuple[int, int], torch.Tensor] = {}


def softmax(x: torch.Tensor) -> torch.Tensor:
    key = x.data_ptr(), x.shape[0]
    if key not in _scratch:
        if len(_scratch) > 512:
            _scratch.clear()
        _scratch[key] = x.new_empty(x.shape[0], 1)
    largest = torch.amax(x, -1, keepdim=True, out=_scratch[key])
    powers = torch.sub(x, largest).exp_()
    return powers.div_(powers.sum(-1, keepdim=True))
