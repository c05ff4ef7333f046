"""Launches nothing while a graph is being captured, so that the replayed graph is empty."""

import torch

NEEDS = "cuda"
KIND = "empty-graph-capture"
GAIN = "none"  # the plain harness captures no graph, so it only sees the ordinary path

_ready = {}


def softmax(x):
    if torch.cuda.is_current_stream_capturing() and x.shape in _ready:
        return _ready[x.shape]
    _ready[x.shape] = torch.softmax(x, -1)
    return _ready[x.shape]
