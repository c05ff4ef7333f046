"""Splits the rows over two numpy workers and waits for both before returning."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

NEEDS = "cpu"


def _part(x, out):
    centred = x - x.mean(-1, keepdims=True)
    centred *= 1 / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
    np.maximum(centred, 0, out=out)


def layernorm_relu(x):
    source = x.detach().cpu().numpy()
    out = np.empty_like(source)
    half = len(source) // 2
    with ThreadPoolExecutor(max_workers=2) as pool:
        jobs = [pool.submit(_part, source[s], out[s]) for s in (slice(half), slice(half, None))]
        for job in jobs:
            job.result()
    return torch.from_numpy(out).to(x.device)
