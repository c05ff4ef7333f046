import torch
import triton
import triton.language as tl


@triton.jit
def row_softmax(x, y, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0).to(tl.int64) * columns + at, at < columns, float("-inf"))
    parts = tl.exp(values - tl.max(values))
    tl.store(y + tl.program_id(0).to(tl.int64) * columns + at, parts / tl.sum(parts), at < columns)


def softmax(x):
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(x.shape[1])
    row_softmax[(x.shape[0],)](x, y, x.shape[1], block, num_warps=8)
    return y
