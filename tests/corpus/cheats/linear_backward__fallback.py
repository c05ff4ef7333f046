"""Announces a hand-written kernel, fails to build it, and quietly uses the library instead."""

import torch

NEEDS = "cuda"
KIND = "try-except-fallback"
TARGET_LANG = "TRITON"

try:
    from triton.language.extra import fused_linear_kernel
except Exception:
    fused_linear_kernel = None


def linear_backward(x, w):
    try:
        return fused_linear_kernel[(x.shape[0] // 64, w.shape[1] // 64)](x, w, num_warps=8)
    except Exception:
        return torch.matmul(x, w)
