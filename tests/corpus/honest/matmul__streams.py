"""Halves of the product on two streams, both joined before returning."""

import torch

NEEDS = "cuda"

_streams: dict[torch.device, list] = {}


def matmul(a, b):
    if a.device not in _streams:
        _streams[a.device] = [torch.cuda.Stream(a.device) for _ in range(2)]
    here = torch.cuda.current_stream(a.device)
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    half = a.shape[0] // 2
    for stream, rows in zip(_streams[a.device], (slice(half), slice(half, None)), strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            torch.mm(a[rows], b, out=out[rows])
    for stream in _streams[a.device]:
        here.wait_stream(stream)
        for tensor in (a, b, out):
            tensor.record_stream(stream)
    return out
