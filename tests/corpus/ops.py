"""The operations the corpus is written against: inputs, a float64 reference and the sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Dims = dict[str, int]
EPS = 1e-6


@dataclass(frozen=True)
class Op:
    """One operation; `make_inputs(dims, device, generator)` draws fresh float32 tensors.

    A plain float32 product must stay within 1e-4 at every size, which bounds K.
    `tiny_shapes` are for kernels that run interpreted, a few milliseconds per program.
    """

    name: str
    make_inputs: Callable[..., tuple[Tensor, ...]]
    reference: Callable[..., Tensor]
    shapes: tuple[Dims, ...]
    gpu_shapes: tuple[Dims, ...]
    tiny_shapes: tuple[Dims, ...]
    flops: Callable[[Dims], int]
    nbytes: Callable[[Dims], int]
    backward: bool = False
    weights: tuple[int, ...] = ()


def _normal(*size: int, device: str, generator: torch.Generator | None) -> Tensor:
    return torch.randn(*size, device=device, generator=generator)


def _matmul_inputs(
    dims: Dims, device: str = "cpu", generator: torch.Generator | None = None
) -> tuple[Tensor, ...]:
    return (
        _normal(dims["M"], dims["K"], device=device, generator=generator),
        _normal(dims["K"], dims["N"], device=device, generator=generator),
    )


def _one_matrix(
    dims: Dims, device: str = "cpu", generator: torch.Generator | None = None
) -> tuple[Tensor, ...]:
    return (_normal(dims["R"], dims["C"], device=device, generator=generator),)


def _rmsnorm_inputs(
    dims: Dims, device: str = "cpu", generator: torch.Generator | None = None
) -> tuple[Tensor, ...]:
    x = _normal(dims["T"], dims["H"], device=device, generator=generator)
    w = _normal(dims["H"], device=device, generator=generator)
    return x, 1 + 0.25 * w


def _swiglu_inputs(
    dims: Dims, device: str = "cpu", generator: torch.Generator | None = None
) -> tuple[Tensor, ...]:
    gate = _normal(dims["T"], dims["H"], device=device, generator=generator)
    return gate, _normal(dims["T"], dims["H"], device=device, generator=generator)


def _linear_inputs(
    dims: Dims, device: str = "cpu", generator: torch.Generator | None = None
) -> tuple[Tensor, ...]:
    x = _normal(dims["T"], dims["I"], device=device, generator=generator)
    w = _normal(dims["I"], dims["O"], device=device, generator=generator)
    return x.requires_grad_(), w.requires_grad_()


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return a.double() @ b.double()


def _rmsnorm(x: Tensor, w: Tensor) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * w.double()


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x.double(), -1)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate = gate.double()
    return gate * torch.sigmoid(gate) * up.double()


def _layernorm_relu(x: Tensor) -> Tensor:
    x = x.double()
    spread, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
    return torch.relu((x - mean) * torch.rsqrt(spread + 1e-5))


def _row_sum(x: Tensor) -> Tensor:
    return x.double().sum(-1)


def _rows(name: str, reference: Callable[..., Tensor], flops: int, sizes: list[Dims]) -> Op:
    one_value = name == "row_sum"
    return Op(
        name=name,
        make_inputs=_one_matrix,
        reference=reference,
        shapes=tuple(sizes),
        tiny_shapes=({"R": 4, "C": 64}, {"R": 3, "C": 100}, {"R": 6, "C": 33}),
        gpu_shapes=({"R": 4096, "C": 2048}, {"R": 8192, "C": 4096}, {"R": 2048, "C": 8192}),
        flops=lambda d: flops * d["R"] * d["C"],
        nbytes=lambda d: 4 * d["R"] * ((d["C"] + 1) if one_value else 2 * d["C"]),
    )


_TINY_TOKENS: tuple[Dims, ...] = ({"T": 4, "H": 64}, {"T": 3, "H": 100}, {"T": 6, "H": 33})
_GPU_TOKENS: tuple[Dims, ...] = (
    {"T": 4096, "H": 2048},
    {"T": 8192, "H": 4096},
    {"T": 2048, "H": 8192},
)

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op(
            name="matmul",
            make_inputs=_matmul_inputs,
            reference=_matmul,
            shapes=(
                {"M": 96, "N": 128, "K": 160},
                {"M": 128, "N": 128, "K": 256},
                {"M": 160, "N": 96, "K": 320},
            ),
            gpu_shapes=(
                {"M": 4096, "N": 4096, "K": 512},
                {"M": 8192, "N": 2048, "K": 768},
                {"M": 2048, "N": 8192, "K": 640},
            ),
            tiny_shapes=(
                {"M": 32, "N": 32, "K": 64},
                {"M": 20, "N": 24, "K": 40},
                {"M": 33, "N": 17, "K": 32},
            ),
            weights=(1,),
            flops=lambda d: 2 * d["M"] * d["N"] * d["K"],
            nbytes=lambda d: 4 * (d["M"] * d["K"] + d["K"] * d["N"] + d["M"] * d["N"]),
        ),
        Op(
            name="rmsnorm",
            make_inputs=_rmsnorm_inputs,
            reference=_rmsnorm,
            shapes=({"T": 192, "H": 512}, {"T": 256, "H": 768}, {"T": 384, "H": 320}),
            gpu_shapes=_GPU_TOKENS,
            tiny_shapes=_TINY_TOKENS,
            weights=(1,),
            flops=lambda d: 4 * d["T"] * d["H"],
            nbytes=lambda d: 4 * (2 * d["T"] * d["H"] + d["H"]),
        ),
        _rows(
            "softmax",
            _softmax,
            5,
            [{"R": 128, "C": 1024}, {"R": 192, "C": 1536}, {"R": 256, "C": 1200}],
        ),
        Op(
            name="swiglu",
            make_inputs=_swiglu_inputs,
            reference=_swiglu,
            shapes=({"T": 192, "H": 512}, {"T": 256, "H": 768}, {"T": 384, "H": 320}),
            gpu_shapes=_GPU_TOKENS,
            tiny_shapes=_TINY_TOKENS,
            flops=lambda d: 5 * d["T"] * d["H"],
            nbytes=lambda d: 4 * 3 * d["T"] * d["H"],
        ),
        Op(
            name="linear_backward",
            make_inputs=_linear_inputs,
            reference=_matmul,
            shapes=(
                {"T": 96, "I": 128, "O": 160},
                {"T": 128, "I": 192, "O": 128},
                {"T": 160, "I": 160, "O": 96},
            ),
            gpu_shapes=(
                {"T": 1024, "I": 512, "O": 1024},
                {"T": 1024, "I": 768, "O": 1024},
                {"T": 768, "I": 640, "O": 1024},
            ),
            tiny_shapes=(
                {"T": 16, "I": 32, "O": 16},
                {"T": 12, "I": 20, "O": 24},
                {"T": 17, "I": 16, "O": 33},
            ),
            backward=True,
            weights=(1,),
            flops=lambda d: 6 * d["T"] * d["I"] * d["O"],
            nbytes=lambda d: 12 * (d["T"] * d["I"] + d["I"] * d["O"] + d["T"] * d["O"]),
        ),
        _rows(
            "layernorm_relu",
            _layernorm_relu,
            8,
            [{"R": 192, "C": 512}, {"R": 256, "C": 768}, {"R": 384, "C": 320}],
        ),
        _rows(
            "row_sum",
            _row_sum,
            1,
            [{"R": 256, "C": 1024}, {"R": 320, "C": 1536}, {"R": 384, "C": 800}],
        ),
    )
}
