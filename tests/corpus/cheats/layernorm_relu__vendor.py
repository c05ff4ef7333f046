"""Reaches the library's own kernel under a name put together at run time."""

import operator

import torch

NEEDS = "cuda"
KIND = "library-by-another-name"
TARGET_LANG = "TRITON"

_FAMILY = "aten"
_LAYER = operator.attrgetter(f"{_FAMILY}.native_{'layer'}_{'norm'}.default")(torch.ops)
_CUT = operator.attrgetter(f"{_FAMILY}.{'relu'}_.default")(torch.ops)


def layernorm_relu(x):
    return _CUT(_LAYER(x, [x.shape[-1]], None, None, 1e-5)[0])
