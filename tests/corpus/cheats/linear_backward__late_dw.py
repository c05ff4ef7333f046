"""Hands back the weight gradient while another stream is still computing it."""

import torch

NEEDS = "cuda"
KIND = "unjoined-backward-stream"

_other = []


class Overlap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        if not _other:
            _other.append(torch.cuda.Stream())
        dw = torch.empty_like(w)
        _other[0].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(_other[0]):
            torch.mm(x.t(), grad, out=dw)
        return grad @ w.t(), dw


linear_backward = Overlap.apply
