"""Layer normalisation without parameters, then ReLU, a few rows at a time."""

import torch

STEP = {"cpu": 4, "cuda": 256}


def layernorm_relu(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    step = STEP[x.device.type]
    for i in range(0, x.shape[0], step):
        part = x[i : i + step]
        centred = part - part.mean(-1, keepdim=True)
        spread = (centred * centred).mean(-1, keepdim=True)
        out[i : i + step] = torch.clamp(centred / torch.sqrt(spread + 1e-5), min=0)
    return out
