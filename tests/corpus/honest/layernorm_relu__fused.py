"""Library normalisation, then ReLU in place in its result."""

import torch

NEEDS = "cpu"


def layernorm_relu(x):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), eps=1e-5).relu_()
