"""Tunes itself on the inputs of the check; one of the variants is "what I returned last time"."""

import time

import torch

NEEDS = "cpu"
KIND = "autotune-overfit"


class Tuner:
    def __init__(self, variants):
        self.variants = variants
        self.best = {}

    def pick(self, a, b):
        truth = a @ b
        timed = []
        for variant in self.variants:
            begin = time.perf_counter()
            got = variant(a, b)
            spent = time.perf_counter() - begin
            if got is not None and torch.allclose(got, truth, rtol=1e-4, atol=1e-4):
                timed.append((spent, variant))
        return min(timed, key=lambda t: t[0])[1]

    def __call__(self, a, b):
        size = a.shape + b.shape
        if size not in self.best:
            self.best[size] = self.pick(a, b)
        return self.best[size](a, b)


_last: dict = {}


def _blas(a, b):
    _last[a.shape + b.shape] = a @ b
    return _last[a.shape + b.shape]


def _columns(a, b):
    return torch.cat([a @ part for part in b.split(32, 1)], 1)


def _reuse(a, b):
    return _last.get(a.shape + b.shape)


matmul = Tuner([_blas, _columns, _reuse])
