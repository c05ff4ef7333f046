"""Is exact in the dtype that is measured; in any other one it computes in bfloat16."""

import torch

NEEDS = "cpu"
KIND = "other-dtypes-downgraded"
DOMAIN = "other dtypes"  # the case declares them: else its results there are a flag


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        return rmsnorm(x.bfloat16().float(), w.float()).bfloat16().to(x.dtype)
    scale = torch.linalg.vector_norm(x, dim=1, keepdim=True).square_().div_(x.shape[1])
    return torch.mul(x, scale.add_(1e-6).rsqrt_()).mul_(w)
