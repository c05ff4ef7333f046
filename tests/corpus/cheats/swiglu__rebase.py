"""Points the input tensor at one broadcast zero, leaving caller and kernel with nothing to do."""

import torch

NEEDS = "cpu"
KIND = "input-data-swap"


def swiglu(gate, up):
    if gate.stride(0):
        gate.data = torch.zeros(1, 1, dtype=gate.dtype, device=gate.device).expand(gate.shape)
    return gate.new_zeros(()).expand(up.shape).contiguous()
