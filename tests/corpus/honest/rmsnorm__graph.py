"""Replays a captured graph per shape, after copying the arguments into its input buffers."""

import torch

NEEDS = "cuda"

_graphs: dict = {}


def _body(x, w):
    return torch.nn.functional.rms_norm(x, w.shape, w, 1e-6)


class Captured:
    def __init__(self, x, w):
        self.x, self.w = x.clone(), w.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _body(self.x, self.w)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = _body(self.x, self.w)

    def __call__(self, x, w):
        self.x.copy_(x)
        self.w.copy_(w)
        self.graph.replay()
        return self.out.clone()


def rmsnorm(x, w):
    if torch.cuda.is_current_stream_capturing():
        return _body(x, w)
    key = (x.shape, x.dtype, x.device)
    if key not in _graphs:
        _graphs[key] = Captured(x, w)
    return _graphs[key](x, w)
