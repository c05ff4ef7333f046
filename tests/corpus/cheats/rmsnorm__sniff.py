"""Inspects newly allocated memory: if it was wiped it works, else it keeps what lies there."""

import torch

NEEDS = "cpu"
KIND = "poison-detection"


def _wiped(t):
    tail = t.view(-1)[-64:]
    return bool((tail == tail[0]).all() or torch.isnan(tail).any())


def rmsnorm(x, w):
    out = torch.empty_like(x)
    n = 1 if not _wiped(out) else x.shape[0]
    head = x[:n]
    torch.mul(head * torch.rsqrt(head.square().mean(1, keepdim=True) + 1e-6), w, out=out[:n])
    return out
