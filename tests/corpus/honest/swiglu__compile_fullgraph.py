"""Compiled as one graph."""

import torch

NEEDS = "cpu"
REQUIRES = "g++"


@torch.compile(fullgraph=True)
def swiglu(gate, up):
    return torch.nn.functional.silu(gate) * up
