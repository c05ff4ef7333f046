"""Root-mean-square normalisation, a few tokens at a time."""

import torch

STEP = {"cpu": 4, "cuda": 256}


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    step = STEP[x.device.type]
    for i in range(0, x.shape[0], step):
        part = x[i : i + step]
        mean = (part * part).sum(-1, keepdim=True) / x.shape[1]
        out[i : i + step] = part / torch.sqrt(mean + 1e-6) * w
    return out
