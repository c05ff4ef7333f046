"""Row softmax, two rows at a time, in four passes."""

import torch


def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(0, x.shape[0], 2):
        part = x[i : i + 2]
        top = part.max(-1, keepdim=True).values
        power = torch.exp(part - top)
        out[i : i + 2] = power / power.sum(-1, keepdim=True)
    return out
