"""Gates that kopt derives from what torch reaches, and what a failed check says to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pytest_kopt import bitwise, snr, tolerance
from pytest_kopt.cases.case import Case
from pytest_kopt.cases.result import ExpectedCase
from pytest_kopt.cases.running.against_reference import derived_gates, judge, with_gates
from pytest_kopt.cases.running.check import CheckedCase, check_case
from pytest_kopt.cases.running.execution import CandidateFunction, ComputingIn, Pass, grad_out
from pytest_kopt.cases.running.reference import Reference
from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.gates import Gate
from tests.builders import a_bench

from .test_writes import case_of

BF16 = torch.bfloat16
ROWS, COLUMNS = 16, 256


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def jsd(x: Tensor, y: Tensor) -> Tensor:
    mean = (x + y) / 2
    first, second = ((p * (p.log() - mean.log())).sum(-1).mean() for p in (x, y))
    return (first + second) / 2


def poly_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    ones = x.new_ones(())
    return sum((w[i] * rms_norm(x ** (3 - i), ones) for i in range(3)), b)


def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rope(q: Tensor, k: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    return q * c[:, None] + turned(q) * s[:, None], k * c[:, None] + turned(k) * s[:, None]


def drawn(*shape: int, dtype: torch.dtype, grad: bool = True) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


def shares(dtype: torch.dtype, grad: bool = True) -> Tensor:
    return torch.randn(ROWS, COLUMNS).softmax(-1).to(dtype).requires_grad_(grad)


def x_and(*others: tuple[int, ...]) -> Callable[[torch.dtype], tuple[Tensor, ...]]:
    shapes = ((ROWS, COLUMNS), *others)
    return lambda dtype: tuple(drawn(*shape, dtype=dtype) for shape in shapes)


def two_shares(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return shares(dtype), shares(dtype, False)


#: Operations as public packages have them, in torch's own words, and what each draws.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[torch.dtype], tuple[Tensor, ...]]]] = {
    "rms_norm": (rms_norm, x_and((COLUMNS,))),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        x_and((COLUMNS,), (COLUMNS,)),
    ),
    "softmax": (lambda x: x.softmax(-1), x_and()),
    "kl_div": (lambda x, y: F.kl_div(x.log(), y, reduction="none").sum() / len(x), two_shares),
    "tvd": (lambda x, y: (x - y).abs().sum() / 2 / len(x), two_shares),
    "jsd": (jsd, two_shares),
    "dyt": (lambda x, a, w, b: torch.tanh(a * x) * w + b, x_and((1,), (COLUMNS,), (COLUMNS,))),
    "poly_norm": (poly_norm, x_and((3,), (1,))),
    "fused_add_rms_norm": (
        lambda x, y, w: (rms_norm(x + y, w), x + y),
        x_and((ROWS, COLUMNS), (COLUMNS,)),
    ),
    "swiglu": (lambda x, y: F.silu(x) * y, x_and((ROWS, COLUMNS))),
    "cross_entropy": (
        F.cross_entropy,
        lambda dtype: (drawn(ROWS, COLUMNS, dtype=dtype), torch.randint(COLUMNS, (ROWS,))),
    ),
    "rope": (
        rope,
        lambda dtype: (
            drawn(2, 4, ROWS, 64, dtype=dtype),
            drawn(2, 2, ROWS, 64, dtype=dtype),
            drawn(1, ROWS, 64, dtype=dtype, grad=False),
            drawn(1, ROWS, 64, dtype=dtype, grad=False),
        ),
    ),
}


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    def reference(*arguments: Tensor) -> Any:
        return function(*(x.double() if x.is_floating_point() else x for x in arguments))

    return reference


def an_operation(name: str, dtype: torch.dtype, **changes: Any) -> Case:
    function, draw = OPERATIONS[name]
    declared: dict[str, Any] = {
        "inputs": lambda: draw(dtype),
        "reference": in_double(function),
        "schema": "memory",
        "nbytes": 1.0,
        "backward": True,
    }
    return case_of(changes.pop("function", function), **(declared | changes))


def baseline(case: Case, seed: int = 20260101) -> CheckedCase:
    return check_case(case, a_bench(case, freezes=True, seed=seed))


def gates_of(case: Case) -> dict[str, Gate | None]:
    run = CandidateFunction(case, case.function)([*case.inputs()], 1)
    return {name: derived.gate for name, derived in derived_gates(case, run.live).items()}


def in_less(x: Tensor) -> Tensor:
    """Return what is left of a result in the next narrower dtype."""
    return x.to(BF16 if x.dtype is torch.float32 else torch.float8_e5m2).to(x.dtype)


def wrong_in(case: Case, change: Callable[[Tensor], Tensor], seed: int) -> set[str]:
    """Return the derived gates that each a changed right result misses."""
    torch.manual_seed(seed)
    inputs = [*case.inputs()]
    run = CandidateFunction(case, case.function)(inputs, seed)
    expected = Reference(case)(inputs, run.live, seed)
    changed = Pass(
        {name: change(out) for name, out in run.copies.outputs.items()},
        {at: None if out is None else change(out) for at, out in run.copies.gradients.items()},
    )
    missed = {found.name for found in judge(case, expected, changed) if not found.passed}
    return missed & case.derived_gates.keys()


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_case_of_a_public_operation_needs_no_gate(name: str, dtype: torch.dtype) -> None:
    report = baseline(an_operation(name, dtype))
    assert report.check == "PASS" and not report.findings, report.diagnosis
    derived = report.case.derived_gates
    assert report.evidence.derived_gates == (derived or None)
    assert bool(derived) == ("gates that kopt derived" in (report.evidence.note or ""))
    for change in (torch.zeros_like, torch.neg, in_less):
        # Of a single number what is left may be right by chance.
        missed = wrong_in(report.case, change, 7)
        large = {n for n in derived if change is not in_less or n in ("out", "grad of input 0")}
        assert missed >= large, (change, large - missed)


def test_the_note_says_which_gates_were_derived_and_why() -> None:
    note = baseline(an_operation("rms_norm", BF16)).evidence.note or ""
    assert "\n" not in note
    assert "SNR gates that kopt derived: out 40 dB (torch reaches " in note
    assert note.endswith(", because torch in bfloat16 uses up the tolerance 0.01")


def test_small_results_get_a_gate_that_zeros_miss() -> None:
    def tiny(x: Tensor) -> Tensor:
        return x * 1e-4

    inputs: Any = lambda: (torch.randn(64, 64, dtype=BF16),)  # noqa: E731
    report = baseline(case_of(tiny, inputs=inputs, reference=in_double(tiny)))
    assert report.check == "PASS" and report.case.derived_gates["out"].threshold == 40
    assert "the tolerance 0.01 accepts zeros or other wrong answers" in (report.evidence.note or "")
    zeros = baseline(case_of(lambda x: x * 0, inputs=inputs, reference=in_double(tiny)))
    assert zeros.check == "FAIL", "the gate follows from the reference, never from the kernel"


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_a_mean_passes_whatever_is_drawn(seed: int) -> None:
    """It is below the absolute tolerance of float32, and its SNR varies from draw to draw."""

    def loss(x: Tensor) -> Tensor:
        return x.tanh().mean()

    case = case_of(
        loss,
        inputs=lambda: (torch.randn(100_000, requires_grad=True),),
        reference=in_double(loss),
        schema="memory",
        nbytes=1.0,
        backward=True,
    )
    report = baseline(case, seed)
    assert report.check == "PASS"
    assert report.case.derived_gates["grad of input 0"].threshold == 80


def test_a_sum_that_cancels_is_judged_by_the_size_of_its_like() -> None:
    """In one content of many its SNR is that of noise."""

    case = an_operation("dyt", BF16)
    gate = gates_of(case)["grad of input 1"]
    assert gate and gate.threshold and gate.rms_error > 0
    case = replace(case, derived_gates={"out": gate})

    def passes(expected: float, result: float) -> bool:
        results = (Pass({"out": torch.tensor([x])}, {}) for x in (expected, result))
        return judge(case, *results)[0].passed

    assert passes(1e-3 * gate.rms_error, 0.5 * gate.rms_error)
    assert not passes(2 * gate.rms_error, 0.0)
    size = gate.rms_error * 10 ** (gate.threshold / 20)
    assert not passes(size, size + 3 * gate.rms_error)


@pytest.mark.parametrize(("error", "check"), [(2e-12, "PASS"), (1e-5, "PASS"), (1e-2, "FAIL")])
def test_the_error_of_a_zero_counts_against_the_terms_that_cancel(error: float, check: str) -> None:
    """The variance of rows of one value is zero: no SNR says anything of a rounding error."""
    report = baseline(
        case_of(
            lambda x: x.var(-1, correction=0) + error,
            inputs=lambda: (torch.randn(ROWS, 1).repeat(1, COLUMNS),),
            reference=lambda x: x.double().var(-1, correction=0),
            gate=snr(60.0),
        )
    )
    assert report.check == check, report.diagnosis


def test_a_finite_number_for_an_infinity_is_wrong() -> None:
    """Any error is small compared with terms that are infinite."""

    def with_infinity() -> tuple[torch.Tensor]:
        x = torch.randn(ROWS, COLUMNS)
        x[:, -1] = -torch.inf
        return (x,)

    for least, check in ((-torch.inf, "PASS"), (-1e30, "FAIL")):
        report = baseline(
            case_of(
                lambda x, least=least: (2 * x).clamp_min(least),
                inputs=with_infinity,
                reference=lambda x: 2 * x.double(),
            )
        )
        assert report.check == check, report.diagnosis


def test_the_error_of_a_small_result_counts_against_itself() -> None:
    """A variance that is small beside the mean is not zero: the difference of squares loses it."""
    report = baseline(
        case_of(
            lambda x: x.square().mean(-1) - x.mean(-1).square(),
            inputs=lambda: (torch.randn(ROWS, COLUMNS) + 4096,),
            reference=lambda x: x.double().var(-1, correction=0),
            gate=snr(20.0),
        )
    )
    assert report.check == "FAIL"


def test_the_declared_gate_is_never_replaced() -> None:
    assert gates_of(an_operation("rms_norm", BF16, gate=snr(44.0))) == {}
    named = {"grad of input 0": tolerance(rtol=1e-2, atol=1e-2)}
    assert {*gates_of(an_operation("rms_norm", BF16, gate=named))} == {"out", "grad of input 1"}


def test_two_versions_get_the_same_gates() -> None:
    """The kernel gives names and dtypes alone, and no seed of a session decides."""
    case = an_operation("dyt", BF16)
    other = replace(case, function=lambda *arguments: OPERATIONS["dyt"][0](*arguments) * 1.5)
    bench = a_bench(case, freezes=True)
    gates = with_gates(case, bench, case.function).derived_gates
    assert gates and gates == with_gates(other, bench, other.function).derived_gates
    assert gates == baseline(case, 1).case.derived_gates == baseline(case, 2).case.derived_gates


def test_a_round_is_judged_by_the_gates_of_the_baseline() -> None:
    case = an_operation("rms_norm", BF16)
    gates = {"out": snr(90.0)}
    known = ExpectedCase(case.nodeid, case.label, case.header, case.dims, gates=gates)
    bench = replace(a_bench(case), expected=(known,))
    report = check_case(case, bench)
    assert report.check == "FAIL" and "out: outside the tolerance (gate: SNR >= 90 dB)" in (
        report.diagnosis
    )
    assert report.case.derived_gates == gates and not report.evidence.note
    assert with_gates(case, bench, case.function).derived_gates == gates


def test_what_torch_cannot_compute_in_the_dtype_is_asked_of_the_user() -> None:
    """An operation that takes float64 only, as torch's solvers of linear systems do."""

    def in_float64(x: Tensor, w: Tensor) -> Tensor:
        if x.double().dtype is not torch.float64:
            raise TypeError("not implemented for bfloat16")
        return rms_norm(x.double(), w.double()) * 1e-4

    given: dict[str, Any] = {"reference": in_float64, "backward": False}
    small = baseline(an_operation("rms_norm", BF16, function=in_bfloat16(in_float64), **given))
    assert small.check == "ERROR" and "the case accepts wrong answers for out: zeros" in (
        small.diagnosis
    )
    assert "declare a gate, such as gate={'out': snr(40.0)}" in small.diagnosis
    wrong = baseline(an_operation("rms_norm", BF16, **given))
    assert "torch cannot compute the reference in bfloat16. Fix: correct the kernel, or" in (
        wrong.diagnosis
    )


def in_bfloat16(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *arguments: function(*arguments).to(BF16)


@pytest.mark.parametrize("factor", [1.02, 0.9])
def test_a_wrong_baseline_fails_whatever_gate_it_would_pass(factor: float) -> None:
    report = baseline(an_operation("rms_norm", BF16, function=lambda x, w: rms_norm(x, w) * factor))
    assert report.check == "FAIL"
    (said,) = {
        line.partition(" dB ")[2] for line in report.diagnosis.splitlines() if "torch" in line
    }
    assert "within the tolerance: the kernel is wrong, or computes in less than bfloat16" in said


def test_a_declared_gate_that_torch_misses_is_to_be_removed() -> None:
    report = baseline(an_operation("rms_norm", BF16, gate=snr(60.0), backward=False))
    assert report.check == "FAIL"
    assert "outside the tolerance as well. Fix: correct the kernel, or remove gate=" in (
        report.diagnosis
    )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, w: rms_norm(x, w)[:1],
        lambda x, w: rms_norm(x, w) / 0,
        lambda x, w: x.zero_(),
    ],
    ids=["shape", "infinite", "undeclared write"],
)
def test_nothing_is_said_of_torch_where_no_gate_may_pass(wrong: Callable[..., Any]) -> None:
    def inputs() -> tuple[Tensor, ...]:
        return tuple(x.detach() for x in OPERATIONS["rms_norm"][1](BF16))

    report = baseline(an_operation("rms_norm", BF16, function=wrong, inputs=inputs, backward=False))
    assert report.check == "FAIL" and "torch reaches" not in report.diagnosis


def test_a_reference_that_draws_is_refused() -> None:
    def random(x: Tensor, w: Tensor) -> Tensor:
        return torch.randn_like(x)

    case = an_operation("rms_norm", BF16, function=random, reference=random, backward=False)
    with pytest.raises(BadInput, match="the reference gives different results for equal arguments"):
        baseline(case)


def test_only_the_floating_point_outputs_are_told_about() -> None:
    def top(x: Tensor) -> Any:
        values, places = torch.topk(x, 3)
        return values * 1.1, places + 1

    report = baseline(
        case_of(
            top,
            inputs=lambda: (torch.randn(16, 64, dtype=BF16),),
            reference=lambda x: torch.topk(x.double(), 3),
        )
    )
    lines = report.diagnosis.splitlines()
    assert sum(line.startswith("out[") for line in lines) == 2
    (said,) = [line for line in lines if "torch reaches" in line]
    assert "reaches every bit" in said and "within the tolerance" in said


def test_a_call_without_gradients_is_judged_by_the_gates_of_its_results() -> None:
    """Timed calls of the forward are looked at by themselves; the case's gates name gradients."""
    gates = {f"grad of input {place}": snr(42.0) for place in range(2)}
    case = an_operation("rms_norm", BF16, gate=gates)
    forward = Pass({"out": torch.ones(4, dtype=BF16)}, {})
    assert [comparison.passed for comparison in judge(case, forward, forward)] == [True]


def test_statistics_beside_a_result_keep_their_dtype() -> None:
    """The backward of torch's layer norm takes them in float32 alone on a GPU."""
    query = torch.randn(1, 1, 16, 8, dtype=torch.float64)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with ComputingIn(BF16):
        out, logsumexp = attention(query.to(BF16), query.to(BF16), query.to(BF16))
    assert (out.dtype, logsumexp.dtype) == (BF16, torch.float32)


def test_the_incoming_gradient_of_a_loss_is_far_from_zero_and_one() -> None:
    """Near zero every gradient was within an absolute tolerance, in one check of a hundred."""
    loss, rows = torch.zeros(()), torch.zeros(64)
    drawn = torch.stack([grad_out(loss, seed) for seed in range(500)])
    assert ((drawn.abs() >= 1.5) & (drawn.abs() <= 1.625)).all()
    assert 150 < int((drawn > 0).sum()) < 350 and len(drawn.unique()) > 400
    assert grad_out(rows, 1).abs().min() < 0.5


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


def test_code_that_computes_in_bfloat16_and_returns_float32_is_told_its_gate() -> None:
    def rounded(x: Tensor) -> Tensor:
        return x.bfloat16().square().float()

    case = case_of(
        rounded,
        inputs=lambda: (torch.randn(64, 64),),
        reference=lambda x: x.double().square(),
    )
    report = baseline(case)
    assert report.check == "FAIL"
    assert "; only if half precision is meant, declare gate={'out': snr(4" in report.diagnosis
