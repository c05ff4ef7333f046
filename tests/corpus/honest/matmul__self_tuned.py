"""Times two orders of the same exact product once per shape, on data of its own, and keeps one."""

import time

import torch

NEEDS = "cpu"


def _direct(a, b):
    return a @ b


def _swapped(a, b):
    return (b.t() @ a.t()).t()


_choice: dict[tuple[int, int, int, str], object] = {}


def _tune(m, n, k, device):
    a, b = torch.ones(m, k, device=device), torch.ones(k, n, device=device)
    seconds = {}
    for variant in (_direct, _swapped):
        variant(a, b)
        begin = time.perf_counter()
        variant(a, b)
        seconds[variant] = time.perf_counter() - begin
    return min(seconds, key=seconds.get)


def matmul(a, b):
    key = (a.shape[0], b.shape[1], a.shape[1], str(a.device))
    if key not in _choice:
        _choice[key] = _tune(*key)
    return _choice[key](a, b)
