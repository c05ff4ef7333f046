"""Has the C library map and unmap memory for every larger block, but for its own.

The kernel itself is the slow one there was; only the others have become slower, by how much
depends on what else the machine does.
"""

import ctypes

import torch

NEEDS = "cpu"
KIND = "allocator-thresholds"
GAIN = "none"  # the plain harness has measured the baseline before it imports anything

_TRIM, _MAP = -1, -3
_mallopt = ctypes.CDLL(None).mallopt


def rmsnorm(x, w):
    _mallopt(_MAP, 1 << 25)
    _mallopt(_TRIM, 1 << 28)
    out = torch.zeros_like(x)
    for i in range(0, x.shape[0], 4):
        part = x[i : i + 4]
        mean = (part * part).sum(-1, keepdim=True) / x.shape[1]
        out[i : i + 4] = part / torch.sqrt(mean + 1e-6) * w
    _mallopt(_MAP, 4096)
    _mallopt(_TRIM, 0)
    return out
