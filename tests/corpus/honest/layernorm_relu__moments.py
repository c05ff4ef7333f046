"""Both moments in one call and a single fused multiply-add, configured by a frozen dataclass."""

from dataclasses import dataclass

import torch

NEEDS = "cpu"


@dataclass(frozen=True)
class Settings:
    eps: float = 1e-5
    rows: int = 128


def make(settings: Settings):
    """Close over the settings, which never change."""

    def layernorm_relu(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for here, part in zip(out.split(settings.rows), x.split(settings.rows), strict=True):
            spread, mean = torch.var_mean(part, -1, keepdim=True, correction=0)
            inverse = torch.rsqrt(spread + settings.eps)
            torch.addcmul(-mean * inverse, part, inverse, out=here).clamp_(min=0)
        return out

    return layernorm_relu


layernorm_relu = make(Settings())
