"""Works on the stream it was called on, then leaves another one current for the closing event."""

import itertools

import torch

NEEDS = "cuda"
KIND = "stream-switch"

_lanes = None


def layernorm_relu(x):
    global _lanes
    if _lanes is None:
        _lanes = itertools.cycle([torch.cuda.Stream() for _ in range(4)])
    y = torch.nn.functional.layer_norm(x, x.shape[-1:])
    torch.relu_(y)
    torch.cuda.set_stream(next(_lanes))
    return y
