"""The two gradients overlap on two streams, and the caller's stream waits for both."""

import torch

NEEDS = "cuda"

_side: list[torch.cuda.Stream] = []


class Overlapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        if not _side:
            _side.append(torch.cuda.Stream())
        here, side = torch.cuda.current_stream(), _side[0]
        dw = torch.empty_like(w)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            torch.mm(x.t(), grad, out=dw)
        dx = grad @ w.t()
        here.wait_stream(side)
        for tensor in (x, grad, dw):
            tensor.record_stream(side)
        return dx, dw


linear_backward = Overlapped.apply
