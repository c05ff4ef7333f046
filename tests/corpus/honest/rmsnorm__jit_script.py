"""Scripted once at import, with a warm-up per shape and a tensor epsilon built lazily per device."""

from __future__ import annotations

import warnings

import torch

NEEDS = "cpu"

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)

    @torch.jit.script
    def _normalise(x: torch.Tensor, w: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        inverse = torch.rsqrt(torch.mean(x * x, -1, keepdim=True) + eps)
        return x * inverse * w


_warm: set[tuple] = set()
_eps: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}


def _epsilon(x: torch.Tensor) -> torch.Tensor:
    key = (x.dtype, x.device)
    if key not in _eps:
        _eps[key] = torch.full((), 1e-6, dtype=x.dtype, device=x.device)
    return _eps[key]


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    eps = _epsilon(x)
    key = (x.shape, x.dtype)
    if key not in _warm:  # the profiling executor specialises in its first two runs
        for _ in range(2):
            _normalise(x.detach(), w.detach(), eps)
        _warm.add(key)
    return _normalise(x, w, eps)
