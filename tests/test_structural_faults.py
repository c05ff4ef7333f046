"""Faults in the structure of a kernel that pass its tolerance, and that exact inputs find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.nearby.near_inputs import variants
from pytest_kopt.cases.nearby.variant import Variant
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.running.heldout import try_variant
from pytest_kopt.numerics.gates import snr

ROWS, COLUMNS, K, GROUP = 384, 16, 1024, 32
#: Of K the last elements are padding, which counts for nothing.
VALID = K - 8
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Parts:
    """What a product of scaled groups is made of, in float64; `scale` has one factor for each k."""

    a: Tensor
    b: Tensor
    scale: Tensor
    bias: Tensor

    def product(self, begin: int = 0, end: int = VALID) -> Tensor:
        scaled = self.b[begin:end] * self.scale[begin:end, None]
        return self.a[:, begin:end] @ scaled


Fault = Callable[[Parts], Tensor]


def right(p: Parts) -> Tensor:
    return p.product() + p.bias


def lost_tail_of_k(p: Parts) -> Tensor:
    return p.product(end=VALID - 1) + p.bias


def swapped_scales(p: Parts) -> Tensor:
    return right(Parts(p.a, p.b, p.scale.roll(GROUP), p.bias))


def wrong_group_boundary(p: Parts) -> Tensor:
    return right(Parts(p.a, p.b, p.scale.roll(-1), p.bias))


def dropped_part_of_a_split(p: Parts) -> Tensor:
    return p.product(end=512) + p.product(begin=514) + p.bias


def mask_off_by_one(p: Parts) -> Tensor:
    return p.product(end=VALID + 1) + p.bias


def wrong_stride_in_the_last_step(p: Parts) -> Tensor:
    b = p.b.clone()
    b[VALID - 1] = b[VALID - 1].roll(1)
    return right(Parts(p.a, b, p.scale, p.bias))


def missing_last_row(p: Parts) -> Tensor:
    out = right(p)
    out[-1] = 0
    return out


def wrong_bias_index(p: Parts) -> Tensor:
    return p.product() + p.bias.roll(1)


def doubled_element(p: Parts) -> Tensor:
    return right(p) + p.product(begin=VALID - 1)


def coarse_last_tile(p: Parts) -> Tensor:
    out = right(p)
    scale = out[-64:].abs().amax() / 8
    out[-64:] = (out[-64:] / scale * 16).round() * scale / 16
    return out


def last_tile_of_another_row(p: Parts) -> Tensor:
    """Adds the last element of K with the row before."""
    last = p.a[:, VALID - 1 : VALID].roll(1, 0) @ (p.b[VALID - 1 : VALID] * p.scale[VALID - 1])
    return p.product(end=VALID - 1) + last + p.bias


FAULTS = (
    *(lost_tail_of_k, swapped_scales, wrong_group_boundary, dropped_part_of_a_split),
    *(mask_off_by_one, wrong_stride_in_the_last_step, wrong_bias_index, doubled_element),
    *(coarse_last_tile, last_tile_of_another_row),
)
#: By dtype, how large the factors are: an element of a sum lies below the absolute tolerance, and
#: the sum above it. fp8 has a gate in dB.
FACTORS = {torch.float32: 8e-6**0.5, torch.bfloat16: 8e-4**0.5, FP8: 1.0}
PLANTED = [
    *((fault, dtype) for fault in FAULTS for dtype in FACTORS),
    # All of a row is more than any element's tolerance, and little of the whole.
    (missing_last_row, FP8),
]


def kernel(fault: Fault) -> Callable[..., Tensor]:
    """Return a kernel: a, b, a scale for each group and a bias, to a's dtype; of fp8 to float32."""

    def function(a: Tensor, b: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        parts = Parts(
            a.double(), b.double(), scale.double().repeat_interleave(GROUP), bias.double()
        )
        return fault(parts).to(torch.float32 if a.dtype is FP8 else a.dtype)

    return function


def case_of(dtype: torch.dtype) -> Case:
    factor = FACTORS[dtype]

    def inputs() -> tuple[Tensor, ...]:
        a, b = torch.randn(ROWS, K) * factor, torch.randn(K, COLUMNS) * factor
        scale = 1 + 0.01 * torch.randn(K // GROUP)
        return a.to(dtype), b.to(dtype), scale, torch.randn(COLUMNS) * factor**2

    def reference(a: Tensor, b: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        scaled = b.double() * scale.double().repeat_interleave(GROUP)[:, None]
        return a.double()[:, :VALID] @ scaled[:VALID] + bias.double()

    declared: dict[str, Any] = {"inputs": inputs, "reference": reference, "dims": {"n": 1}}
    gate = snr("e4m3") if dtype is FP8 else None
    return declare("t.py::t", "single", kernel(right), weights=(1, 2, 3), gate=gate, **declared)


def outcome(near: Variant, fault: Fault) -> str | None:
    tried = try_variant(near, {INCUMBENT: kernel(right), CANDIDATE: kernel(fault)}, "cpu", 7)
    assert tried is not None and tried.outcomes.get(INCUMBENT, "right") == "right"
    return tried.outcomes.get(CANDIDATE)


def exact_variants(case: Case) -> list[Variant]:
    return [near for near in variants(case, 7) if near.kind == "exact"]


@pytest.mark.parametrize(
    ("fault", "dtype"), PLANTED, ids=lambda x: getattr(x, "__name__", str(x).rpartition(".")[2])
)
def test_a_fault_that_passes_the_tolerance_is_found_by_exact_inputs(
    fault: Fault, dtype: torch.dtype
) -> None:
    case = case_of(dtype)
    assert outcome(Variant(case, kind="values"), fault) == "right"
    assert any(outcome(near, fault) == "wrong" for near in exact_variants(case))


@pytest.mark.parametrize("dtype", FACTORS)
def test_a_right_kernel_is_right_on_exact_inputs(dtype: torch.dtype) -> None:
    assert [outcome(near, right) for near in exact_variants(case_of(dtype))] == ["right", "right"]


def test_one_wrong_element_of_a_million_is_found_by_exact_inputs() -> None:
    """An SNR of all elements does not show it."""

    def doubled(x: Tensor) -> Tensor:
        return 2 * x

    def wrong_in_a_corner(x: Tensor) -> Tensor:
        out = doubled(x)
        out[-1, -1] -= x[-1, -1]
        return out

    case = declare(
        *("t.py::t", "single", doubled),
        inputs=lambda: (torch.randn(1024, 1024),),
        reference=lambda x: 2 * x.double(),
        gate=snr("e4m3"),
        dims={"n": 1},
    )
    versions = {INCUMBENT: doubled, CANDIDATE: wrong_in_a_corner}
    tried = [try_variant(near, versions, "cpu", 7) for near in exact_variants(case)]
    assert {trial.variant: trial.outcomes[CANDIDATE] for trial in tried if trial} == {
        "as a whole": "right",
        "each element": "wrong",
    }
