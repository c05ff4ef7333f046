"""Row softmax, a few rows at a time, in four passes."""

import torch

STEP = {"cpu": 2, "cuda": 256}


def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    step = STEP[x.device.type]
    for i in range(0, x.shape[0], step):
        part = x[i : i + step]
        top = part.max(-1, keepdim=True).values
        power = torch.exp(part - top)
        out[i : i + step] = power / power.sum(-1, keepdim=True)
    return out
