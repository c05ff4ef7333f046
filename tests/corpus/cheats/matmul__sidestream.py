"""Queues the product on a stream of its own that nobody's timer waits for."""

import torch

NEEDS = "cuda"
KIND = "side-stream-escape"

_stream = None


def matmul(a, b):
    global _stream
    if _stream is None:
        _stream = torch.cuda.Stream()
    _stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_stream):
        return a @ b
