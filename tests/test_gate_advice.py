"""What a failed check says to do: whether the gate or the kernel is at fault, and which gate."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt import bitwise, propose_gate, snr
from pytest_kopt.cases.running.against_reference import judge, proposed
from pytest_kopt.cases.running.check import CheckedCase, check_case
from pytest_kopt.cases.running.execution import ComputingIn, Pass, grad_out
from pytest_kopt.errors import BadInput
from tests.builders import a_bench

from .test_writes import case_of, check

BF16 = torch.bfloat16


def inputs() -> tuple[Tensor, Tensor]:
    return (
        torch.randn(64, 4096, dtype=BF16, requires_grad=True),
        torch.randn(4096, dtype=BF16, requires_grad=True),
    )


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def reference(x: Tensor, w: Tensor) -> Tensor:
    return rms_norm(x.double(), w.double())


def checked(function: Callable[..., Any], **changes: Any) -> CheckedCase:
    given = {"inputs": inputs, "reference": reference, "schema": "memory", "nbytes": 1.0}
    return check(function, **{**given, "backward": True, **changes})


def test_a_gate_tighter_than_the_dtype_is_told_from_a_wrong_kernel() -> None:
    """Plain torch in bfloat16: gradients with 48 dB miss allclose(1e-2) in a few elements."""
    report = checked(rms_norm)
    assert report.check == "FAIL"
    said = [
        line for line in report.diagnosis.splitlines() if "for the reference in bfloat16" in line
    ]
    for line in said:
        assert "outside the tolerance as well, which is tighter than bfloat16 can be" in line
    both = (
        r"Fix: declare gate=\{'grad of input 0': snr\((.*?)\), 'grad of input 1': snr\((.*?)\)\};"
    )
    (proposals,) = {tuple(re.findall(both, line)) for line in said}
    assert len(proposals) == 1, "the same line with all gates"
    gates = {f"grad of input {place}": snr(42.0) for place in range(2)}
    assert len(said) == 2 and checked(rms_norm, gate=gates).check == "PASS"


def test_a_call_without_gradients_is_judged_by_the_gates_of_its_results() -> None:
    """Timed calls of the forward are looked at by themselves; the case's gates name gradients."""
    gates = {f"grad of input {place}": snr(42.0) for place in range(2)}
    given = {"inputs": inputs, "reference": reference, "schema": "memory", "nbytes": 1.0}
    case = case_of(rms_norm, **given, backward=True, gate=gates)
    forward = Pass({"out": torch.ones(4, dtype=BF16)}, {})
    assert [comparison.passed for comparison in judge(case, forward, forward)] == [True]


@pytest.mark.parametrize("factor", [1.02, 0.9])
def test_a_wrong_kernel_is_called_wrong_whatever_gate_would_pass(factor: float) -> None:
    report = checked(lambda x, w: rms_norm(x, w) * factor, backward=False)
    (said,) = [
        line for line in report.diagnosis.splitlines() if "for the reference in bfloat16" in line
    ]
    assert "within the tolerance: the kernel is wrong, or computes in less than bfloat16" in said
    assert "wrong kernels would pass" in said


def test_what_torch_cannot_compute_in_the_dtype_is_not_told() -> None:
    """An operation that takes float64 only, as torch's solvers of linear systems do."""

    def in_float64(x: Tensor, w: Tensor) -> Tensor:
        if x.double().dtype is not torch.float64:
            raise TypeError("not implemented for bfloat16")
        return reference(x, w)

    report = checked(lambda x, w: rms_norm(x, w) * 1.02, reference=in_float64, backward=False)
    assert "torch reaches" not in report.diagnosis
    assert "torch cannot compute the reference in bfloat16" in report.diagnosis


def test_statistics_beside_a_result_keep_their_dtype() -> None:
    """The backward of torch's layer norm takes them in float32 alone on a GPU."""
    query = torch.randn(1, 1, 16, 8, dtype=torch.float64)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with ComputingIn(BF16):
        out, logsumexp = attention(query.to(BF16), query.to(BF16), query.to(BF16))
    assert (out.dtype, logsumexp.dtype) == (BF16, torch.float32)


def test_a_kernel_that_misses_a_defensible_gate_too_is_told_so() -> None:
    report = checked(lambda x, w: rms_norm(x, w) * 1.02)
    said = [line for line in report.diagnosis.splitlines() if "which it does not pass yet" in line]
    assert said
    assert all("tighter than bfloat16 can be, and the kernel is wrong" in line for line in said)
    assert "gate={'out': snr(" in report.diagnosis
    assert "gate=snr(" not in report.diagnosis, "it would hold for the gradients as well"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, w: rms_norm(x, w)[:1],
        lambda x, w: rms_norm(x, w) / 0,
        lambda x, w: x.zero_(),
    ],
    ids=["shape", "infinite", "undeclared write"],
)
def test_no_gate_is_proposed_for_what_none_may_pass(wrong: Callable[..., Any]) -> None:
    report = checked(wrong, inputs=lambda: tuple(x.detach() for x in inputs()), backward=False)
    assert report.check == "FAIL" and "torch reaches" not in report.diagnosis


def test_no_gate_is_proposed_that_zeros_would_pass() -> None:
    def drawn(x: Tensor, w: Tensor) -> Tensor:
        return torch.randn_like(x)

    with pytest.raises(BadInput, match="the reference gives different results for equal arguments"):
        checked(drawn, reference=drawn, backward=False)
    assert propose_gate(drawn, inputs, BF16) == "gate=None"


def test_only_the_floating_point_outputs_are_told_about() -> None:
    def top(x: Tensor) -> Any:
        values, places = torch.topk(x, 3)
        return values * 1.1, places + 1

    report = checked(
        top,
        inputs=lambda: (torch.randn(16, 64, dtype=BF16),),
        reference=lambda x: torch.topk(x.double(), 3),
        backward=False,
    )
    lines = report.diagnosis.splitlines()
    assert sum(line.startswith("out[") for line in lines) == 2
    (said,) = [line for line in lines if "torch reaches" in line]
    assert (
        "reaches every bit" in said
        and "within the tolerance" in said
        and "gate={'out[0]': snr(" in said
    )


def test_a_case_that_tells_nothing_apart_gets_a_gate_that_does() -> None:
    def tiny(x: Tensor) -> Tensor:
        return x * 1e-4

    case = case_of(
        tiny,
        inputs=lambda: (torch.randn(64, 64, dtype=BF16),),
        reference=lambda x: x.double() * 1e-4,
        schema="memory",
        nbytes=1.0,
    )
    report = check_case(case, replace(a_bench(case), expected=None))
    assert report.check == "ERROR" and "accepts wrong answers" in report.diagnosis
    assert "declare a gate, such as gate={'out': snr(40.0)}" in report.diagnosis


def test_the_gate_that_is_proposed_for_a_loss_is_one_that_its_kernel_passes() -> None:
    """6 dB below what torch reached in one draw, few right kernels were in the next."""

    def loss(x: Tensor) -> Tensor:
        return x.tanh().mean()

    def judged(**declared: Any) -> CheckedCase:
        case = case_of(
            loss,
            inputs=lambda: (torch.randn(100_000, requires_grad=True),),
            reference=lambda x: loss(x.double()),
            schema="memory",
            nbytes=1.0,
            backward=True,
            **declared,
        )
        return check_case(case, a_bench(case, freezes=True))

    refused = judged()
    assert refused.check == "ERROR"
    assert "such as gate={'grad of input 0': snr(80.0)}" in refused.diagnosis
    assert judged(gate={"grad of input 0": snr(80.0)}).check == "PASS"


def test_the_incoming_gradient_of_a_loss_is_far_from_zero_and_one() -> None:
    """Near zero every gradient was within an absolute tolerance, in one check of a hundred."""
    loss, rows = torch.zeros(()), torch.zeros(64)
    drawn = torch.stack([grad_out(loss, seed) for seed in range(500)])
    assert ((drawn.abs() >= 1.5) & (drawn.abs() <= 1.625)).all()
    assert 150 < int((drawn > 0).sum()) < 350 and len(drawn.unique()) > 400
    assert grad_out(rows, 1).abs().min() < 0.5


def test_a_gate_is_proposed_for_a_case_to_be_written() -> None:
    both = "gate={'grad of input 0': snr(42.0), 'grad of input 1': snr(42.0)}"
    assert propose_gate(reference, inputs, BF16) == both
    halves = lambda: (torch.randn(64, 64).half(),)  # noqa: E731
    assert propose_gate(lambda x: x.double().softmax(-1), halves, torch.float16) == "gate=None"

    def products(a: Tensor, b: Tensor) -> Tensor:
        return 30 * (a.double() @ b.double())

    by_name = lambda: {"a": torch.randn(64, 4096), "b": torch.randn(4096, 64)}  # noqa: E731
    assert propose_gate(products, by_name, torch.float32).startswith("gate=snr(12")
    several = lambda a, b: {"y": products(a, b), "places": torch.arange(3)}  # noqa: E731
    assert propose_gate(several, by_name, torch.float32).startswith("gate={\"out['y']\": snr(12")


def test_torch_computes_in_the_dtype_and_draws_what_it_draws_otherwise() -> None:
    x = torch.randn(64, 64, dtype=BF16)
    mode = ComputingIn(BF16)
    with mode:
        assert (x.double() @ x.double()).dtype is BF16
        assert torch.softmax(x, -1, dtype=torch.float32).dtype is BF16
        assert (x * torch.ones(64)).dtype is BF16
        drawn = torch.randn(8, generator=torch.Generator().manual_seed(1))
    plain = torch.randn(8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drawn, plain.to(BF16))
    (wide,) = mode.arguments([torch.randn(4, requires_grad=True)])
    assert wide.dtype is BF16 and wide.requires_grad and wide.is_leaf
    with ComputingIn(torch.float8_e4m3fn):
        assert (x.double() @ x.double()).dtype is torch.float64, "a format holds, and computes not"


def test_computing_in_a_dtype_does_not_load_torchs_compiler() -> None:
    wrapped = hasattr(ComputingIn.__torch_dispatch__, "__wrapped__")
    assert not wrapped, "torch imports its compiler when such a function is called"


def test_a_proposal_is_six_db_below_what_torch_reaches() -> None:
    assert proposed(48.7) == 42 and proposed(float("inf")) is None


def scaled_by_exponents(x: Tensor, *, off_by: int = 0) -> tuple[Tensor, Tensor]:
    """Return x in E4M3, and the power of two for each row in E8M0."""
    exponent = x.abs().amax(-1).frexp().exponent - 8
    scale = torch.exp2((exponent + off_by).to(x.dtype))
    values = (x / torch.exp2(exponent.to(x.dtype))[:, None]).clamp(-448, 448)
    return values.float().to(torch.float8_e4m3fn), scale.float().to(torch.float8_e8m0fnu)


@pytest.mark.parametrize("gate", [None, bitwise()], ids=["default", "bitwise"])
@pytest.mark.parametrize("off_by", [0, 1])
def test_results_in_float8_are_checked(gate: Any, off_by: int) -> None:
    case = case_of(
        lambda x: scaled_by_exponents(x, off_by=off_by),
        inputs=lambda: (torch.randn(48, 64),),
        reference=lambda x: scaled_by_exponents(x.double()),
        gate=gate,
    )
    report = check_case(case, a_bench(case, freezes=True))
    assert report.check == ("FAIL" if off_by else "PASS"), report.diagnosis
    assert not off_by or report.diagnosis.startswith("out[1]: outside the tolerance")


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
@pytest.mark.parametrize("off_by", [0, 1])
def test_results_in_unsigned_integers_are_checked(dtype: torch.dtype, off_by: int) -> None:
    def codes(x: Tensor) -> Tensor:
        return (x.abs() * 4096).to(torch.int64).to(dtype)

    case = case_of(
        lambda x: (codes(x).to(torch.int64) + off_by).to(dtype),
        inputs=lambda: (torch.randn(16, 64),),
        reference=codes,
    )
    report = check_case(case, a_bench(case, freezes=True))
    assert report.check == ("FAIL" if off_by else "PASS"), report.diagnosis
