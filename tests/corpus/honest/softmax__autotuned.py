"""Triton softmax, tuned over two warp counts for each width."""

import torch
import triton
import triton.language as tl

NEEDS = "cpu"
LANG = "triton"

CONFIGS = [triton.Config({}, num_warps=4), triton.Config({}, num_warps=8)]


@triton.jit
def _rows(x, out, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    keep = tl.arange(0, BLOCK) < columns
    value = tl.load(x + at, mask=keep, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + at, power / tl.sum(power, axis=0), mask=keep)


if not triton.knobs.runtime.interpret:  # the interpreter has nothing to tune
    _rows = triton.autotune(configs=CONFIGS, key=["columns"])(_rows)


def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    _rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
