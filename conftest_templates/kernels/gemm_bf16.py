"""out = a @ b in bf16 with fp32 accumulation, forward and backward: a persistent Triton GEMM.

Tiles are copied by tensor descriptors (TMA on sm_90 and later). Needs Triton 3.4 or later.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

#: Descriptors need rows that begin at multiples of 16 bytes: 8 elements of bf16.
ALIGNED = 8
#: Tile, pipeline stages and warps. Two of the accumulators of 128 x 256 do not fit one warpgroup.
HOPPER = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_stages": 3, "num_warps": 8}
#: Where tiles of 128 x 256 would leave half of the SMs without work.
HOPPER_FEW_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 256, "num_stages": 3, "num_warps": 4}
#: Shared memory of 64 KiB is enough: sm_80, sm_89, sm_120, gfx942.
SMALLER = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "num_stages": 2, "num_warps": 8}
INTERPRETED = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}


@triton.jit
def _matmul(
    a, b, out,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        # Tiles of GROUP rows follow each other, so that programs share rows of a and b in L2.
        first = tile // (GROUP * tiles_n) * GROUP
        height = min(tiles_m - first, GROUP)
        inside = tile % (GROUP * tiles_n)
        row = (first + inside % height) * BLOCK_M
        column = inside // height * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            k = step * BLOCK_K
            left = a.load([k, row]).T if A_TURNED else a.load([row, k])
            right = b.load([column, k]).T if B_TURNED else b.load([k, column])
            total = tl.dot(left.to(OPERAND), right.to(OPERAND), total)
        # Two halves, so that the tile that waits in shared memory leaves room for the pipeline.
        halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        near, far = tl.split(halves)
        out.store([row, column], near.to(out.dtype))
        out.store([row, column + BLOCK_N // 2], far.to(out.dtype))


def _operand(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return `x` or its transpose in memory that a descriptor can read, and whether it is turned.

    A matrix whose rows cannot be aligned is copied into rows that are.
    """
    turned = x.stride(0) == 1 and x.stride(1) != 1
    stored = x.T if turned else x
    if stored.stride(1) != 1 or stored.stride(0) % ALIGNED or stored.data_ptr() % 16:
        rows, columns = stored.shape
        wide = stored.new_empty(rows, triton.cdiv(columns, ALIGNED) * ALIGNED)
        stored = wide[:, :columns].copy_(stored)
    return stored, turned


def _config(device: torch.device, m: int, n: int) -> tuple[dict[str, int], int]:
    """Return the configuration for a result of (m, n), and the programs that run at a time."""
    if device.type != "cuda":
        return INTERPRETED, 1
    programs = torch.cuda.get_device_properties(device).multi_processor_count
    if torch.version.hip or torch.cuda.get_device_capability(device)[0] not in (9, 10):
        return SMALLER, programs
    tiles = triton.cdiv(m, HOPPER["BLOCK_M"]) * triton.cdiv(n, HOPPER["BLOCK_N"])
    return HOPPER if tiles > programs // 2 else HOPPER_FEW_TILES, programs


def _launch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    (left, a_turned), (right, b_turned) = _operand(a), _operand(b)
    config, programs = _config(a.device, m, n)
    tile_m, tile_n, tile_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    out, _ = _operand(a.new_empty(m, n))
    tiles = triton.cdiv(m, tile_m) * triton.cdiv(n, tile_n)
    _matmul[(min(programs, tiles),)](
        TensorDescriptor.from_tensor(left, [tile_k, tile_m] if a_turned else [tile_m, tile_k]),
        TensorDescriptor.from_tensor(right, [tile_n, tile_k] if b_turned else [tile_k, tile_n]),
        TensorDescriptor.from_tensor(out, [tile_m, tile_n // 2]),
        *(m, n, k),
        GROUP=8, A_TURNED=a_turned, B_TURNED=b_turned,
        # Triton's interpreter multiplies float32 only.
        OPERAND=tl.bfloat16 if a.is_cuda else tl.float32,
        **config,
    )  # fmt: skip
    return out.contiguous()


class _Gemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return _launch(a, b)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        return _launch(grad, b.T), _launch(a.T, grad)


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b for bf16 matrices (M, K) and (K, N) of any strides."""
    return _Gemm.apply(a, b)
