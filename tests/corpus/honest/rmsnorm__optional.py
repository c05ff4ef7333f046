"""Uses the library's fused function where this version of it has one, and its own otherwise."""

import torch

NEEDS = "cpu"

try:
    from torch.nn.functional import rms_norm as fused
except ImportError:

    def fused(x, shape, weight, eps):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return fused(x, (x.shape[-1],), weight=w, eps=1e-6)
