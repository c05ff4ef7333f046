"""Leaves its own path alone and slows down the operations the incumbent is made of."""

import sys

import torch

NEEDS = "cpu"
KIND = "incumbent-sabotage"
OWN_GAIN_PCT = 14

_exp, _sum = torch.exp, torch.Tensor.sum


def _drag(function):
    def slowed(*args, **kwargs):
        result = function(*args, **kwargs)
        if sys._getframe(1).f_globals.get("__name__") != __name__:
            for _ in range(6):
                function(*args, **kwargs)
        return result

    return slowed


torch.exp, torch.Tensor.sum = _drag(_exp), _drag(_sum)


def softmax(x):
    out = torch.empty_like(x)
    for i in range(0, x.shape[0], 2):
        e = _exp(x[i : i + 2] - x[i : i + 2].amax(-1, keepdim=True))
        out[i : i + 2] = e / _sum(e, -1, keepdim=True)
    return out
