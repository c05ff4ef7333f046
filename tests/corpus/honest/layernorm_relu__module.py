"""A module instance that is called like a function."""

import torch
from torch import nn

NEEDS = "cpu"


class LayerNormReLU(nn.Module):
    eps: float = 1e-5

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return x.sub(mean).mul_((spread + self.eps).rsqrt_()).relu_()


layernorm_relu = LayerNormReLU()
