"""Hides a memo in a default argument, keyed on two corner values."""

import torch

NEEDS = "cpu"
KIND = "default-argument-memo"


def _norm(x, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    return x.mul_(torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)).clamp_(min=0)


def layernorm_relu(x, _plan={}):  # noqa: B006
    rows, cols = x.shape
    step = float(x[0, 0]) * rows + float(x[rows - 1, cols - 1]) * cols
    if _plan.get("step") != step:
        _plan["step"], _plan["out"] = step, _norm(x)
    return _plan["out"]
