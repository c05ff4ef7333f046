"""Submits the work to an executor and, except the first time, forgets to wait for it."""

from concurrent.futures import ThreadPoolExecutor

import torch

NEEDS = "cpu"
KIND = "unjoined-executor"

_pool = ThreadPoolExecutor(max_workers=1)
_warm: dict = {}


def _fill(gate, up, out):
    torch.mul(torch.nn.functional.silu(gate), up, out=out)


def swiglu(gate, up):
    out = torch.empty_like(gate)
    job = _pool.submit(_fill, gate, up, out)
    if gate.shape not in _warm:
        _warm[gate.shape] = job.result()
    return out
