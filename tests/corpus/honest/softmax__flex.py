"""Flex attention with unit keys and values: the scores are the rows themselves."""

import functools

import torch
from torch.nn.attention.flex_attention import flex_attention

NEEDS = "cpu"
DOMAIN = "finite"  # scores of -inf are NaN after the product that flex makes of them


@functools.cache
def _unit(width, dtype, device):
    return torch.eye(width, dtype=dtype, device=device)[None, None]


def softmax(x):
    unit = _unit(x.shape[1], x.dtype, x.device)
    return flex_attention(x[None, None], unit, unit, scale=1.0)[0, 0]
