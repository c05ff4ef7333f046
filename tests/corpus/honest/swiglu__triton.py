"""Elementwise Triton kernel over the flattened tensors."""

import torch
import triton
import triton.language as tl

NEEDS = "cpu"
LANG = "triton"


@triton.heuristics({"BLOCK": lambda args: min(16384, triton.next_power_of_2(args["count"]))})
@triton.jit
def _unit(gate, up, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < count
    g = tl.load(gate + at, mask=keep)
    tl.store(out + at, g * tl.sigmoid(g) * tl.load(up + at, mask=keep), mask=keep)


def swiglu(gate, up):
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    count = gate.numel()
    _unit[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](gate, up, out, count)
    return out
