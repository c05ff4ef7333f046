"""out = a @ b with both operands quantised to fp8, one scale a tensor: a persistent Triton GEMM.

Tiles are copied by tensor descriptors (TMA on sm_90 and later). Needs Triton 3.4 or later.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

#: Descriptors need rows that begin at multiples of 16 bytes.
ALIGNED = 16
HOPPER = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 128, "num_stages": 3, "num_warps": 8}
#: Shared memory of 64 KiB is enough: sm_89, sm_120, gfx942.
SMALLER = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 2, "num_warps": 8}
INTERPRETED = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}


@triton.jit
def _matmul(
    a, b, a_scale, b_scale, out,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    scale = tl.load(a_scale) * tl.load(b_scale)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        # Tiles of GROUP rows follow each other, so that programs share rows of a and b in L2.
        first = tile // (GROUP * tiles_n) * GROUP
        height = min(tiles_m - first, GROUP)
        inside = tile % (GROUP * tiles_n)
        row = (first + inside % height) * BLOCK_M
        column = inside // height * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            # b comes transposed, (N, K): both operands of an fp8 product are read along K.
            left = a.load([row, step * BLOCK_K])
            right = b.load([column, step * BLOCK_K])
            total = tl.dot(left, right.T, total)
        total *= scale
        # Two halves, so that the tile that waits in shared memory leaves room for the pipeline.
        halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        near, far = tl.split(halves)
        out.store([row, column], near.to(out.dtype))
        out.store([row, column + BLOCK_N // 2], far.to(out.dtype))


def _aligned(rows: int, columns: int, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an empty matrix on the device of `like` whose rows a descriptor can read."""
    wide = triton.cdiv(columns, ALIGNED) * ALIGNED
    return torch.empty(rows, wide, device=like.device, dtype=dtype)[:, :columns]


def _quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x / scale in fp8 and the scale, a tensor, so that nothing waits for the device."""
    limit = torch.finfo(dtype).max
    scale = (x.abs().amax().float() / limit).clamp_min(torch.finfo(torch.float32).tiny)
    quantised = _aligned(*x.shape, x, dtype).copy_((x.float() / scale).clamp(-limit, limit))
    return quantised, scale


def _launch(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
) -> torch.Tensor:
    """Return a @ b.T · a_scale · b_scale in bf16, of fp8 (M, K) and (N, K)."""
    (m, k), n = a.shape, b.shape[0]
    config, programs = INTERPRETED, 1
    if a.is_cuda:
        big = torch.version.hip is None and torch.cuda.get_device_capability(a.device)[0] in (9, 10)
        config = HOPPER if big else SMALLER
        programs = torch.cuda.get_device_properties(a.device).multi_processor_count
    tile_m, tile_n, tile_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    out = _aligned(m, n, a, torch.bfloat16)
    _matmul[(min(programs, triton.cdiv(m, tile_m) * triton.cdiv(n, tile_n)),)](
        TensorDescriptor.from_tensor(a, [tile_m, tile_k]),
        TensorDescriptor.from_tensor(b, [tile_n, tile_k]),
        *(a_scale, b_scale),
        TensorDescriptor.from_tensor(out, [tile_m, tile_n // 2]),
        *(m, n, k),
        GROUP=8, **config,
    )  # fmt: skip
    return out.contiguous()


def gemm_fp8(a: torch.Tensor, b: torch.Tensor, encoding: str) -> torch.Tensor:
    """Return a @ b of bf16 (M, K) and (K, N), computed in the fp8 that torch calls `encoding`.

    The scales are computed at every call: a cached one would serve the benchmark, not training.
    """
    dtype = getattr(torch, encoding)
    (left, left_scale), (right, right_scale) = _quantise(a, dtype), _quantise(b.T, dtype)
    return _launch(left, right, left_scale, right_scale)
