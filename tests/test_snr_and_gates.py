from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt import assert_snr, compute_snr, get_tolerances, snr, tolerance
from pytest_kopt.cases.running.steps.fresh_content import computing_dtype
from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.compare import InvalidReference
from pytest_kopt.numerics.gates import Figures, Gate, bitwise, default_gate, encoding
from tests.builders import few_examples

FINITE = st.floats(-1e3, 1e3, width=32)


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def figures(snr_db: float, mismatch_share: float = 0.0) -> Figures:
    return Figures(snr_db, 0.0, 1.0, 0.0, 1.0, (0,), 1.0, 1.0, mismatch_share, False)


def test_snr_is_ten_log10_of_signal_power_over_noise_power() -> None:
    assert compute_snr(tensor(3.0, 4.0), tensor(3.0, 4.5)) == pytest.approx(20.0, abs=1e-12)


def test_the_reference_comes_first() -> None:
    assert compute_snr(tensor(1.0), tensor(2.0)) == 0.0
    assert compute_snr(tensor(2.0), tensor(1.0)) == pytest.approx(10 * math.log10(4))


def test_power_is_accumulated_in_float64() -> None:
    reference = torch.ones(70_000, dtype=torch.bfloat16)
    output = reference.clone()
    output[123] = 0
    assert compute_snr(reference, output) == pytest.approx(10 * math.log10(70_000), abs=1e-9)


def test_the_largest_float32_values_do_not_overflow() -> None:
    largest = torch.finfo(torch.float32).max
    snr_db = compute_snr(tensor(largest, largest), tensor(largest, largest * 0.5))
    assert snr_db == pytest.approx(10 * math.log10(8), abs=1e-5)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1), st.integers(-20, 20))
@few_examples
def test_scaling_both_tensors_by_a_power_of_two_keeps_the_snr(
    pairs: list[tuple[float, float]], exponent: int
) -> None:
    reference, output = torch.tensor(pairs, dtype=torch.float64).T
    scale = 2.0**exponent
    assert compute_snr(reference * scale, output * scale) == compute_snr(reference, output)


@pytest.mark.parametrize(
    "same",
    [tensor(1.0, -2.0), tensor(0.0, 0.0), torch.empty(0), tensor(math.inf, 1.0)],
    ids=["plain", "all zero", "empty", "with an infinity"],
)
def test_identical_tensors_have_infinite_snr(same: torch.Tensor) -> None:
    assert compute_snr(same, same.clone()) == math.inf


def test_a_zero_reference_with_another_output_has_no_signal() -> None:
    assert compute_snr(tensor(0.0, 0.0), tensor(0.0, 1e-30)) == -math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_or_inf_in_the_output_passes_no_threshold(bad: float) -> None:
    found = compute_snr(tensor(1.0, 2.0), tensor(1.0, bad))
    assert not snr(-1e300).passes(figures(found))


def test_a_finite_output_for_an_infinite_reference_passes_no_threshold() -> None:
    assert compute_snr(tensor(math.inf, 1.0), tensor(3.0, 1.0)) == -math.inf
    assert compute_snr(tensor(math.inf), tensor(-math.inf)) == -math.inf


def test_nan_in_the_reference_is_an_error_of_the_case() -> None:
    with pytest.raises(InvalidReference):
        compute_snr(tensor(math.nan), tensor(math.nan))


def test_a_signal_far_below_its_noise_has_no_snr_that_a_number_holds() -> None:
    signal, output = (torch.tensor([x], dtype=torch.float64) for x in (1e-131, 2e31))
    assert compute_snr(signal, output) == -math.inf


def test_different_shapes_have_no_snr() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(1,\)"):
        compute_snr(tensor(1.0, 2.0), tensor(1.0))


def test_complex_tensors_are_not_judged_by_their_real_part_alone() -> None:
    reference = torch.tensor([1 + 1j])
    with pytest.raises((BadInput, TypeError, ValueError)):
        compute_snr(reference, reference.conj())


@pytest.mark.parametrize(("name", "threshold"), [("e4m3", 25.0), ("e5m2", 20.0), ("fp4", 10.0)])
def test_each_low_precision_format_has_its_gate_and_reaching_it_passes(
    name: str, threshold: float
) -> None:
    gate = snr(name)
    assert gate.threshold == threshold
    assert gate.passes(figures(threshold))
    assert not gate.passes(figures(math.nextafter(threshold, 0)))


def test_tensors_exactly_at_the_gate_pass_it() -> None:
    assert_snr(tensor(10.0), tensor(11.0), "e5m2")
    assert_snr(tensor(3.0, 1.0), tensor(3.0, 2.0), "fp4")
    with pytest.raises(AssertionError, match=r"20\.00 dB"):
        assert_snr(tensor(10.0), tensor(11.0), "e4m3")


def test_a_result_three_hundredths_below_the_gate_is_not_written_as_the_gate() -> None:
    with pytest.raises(AssertionError, match=r"gate: SNR >= 20 dB\)\n  SNR +19\.97 dB"):
        assert_snr(tensor(10.0), tensor(11.0035), "e5m2")


def test_a_gate_may_be_a_number_of_decibels() -> None:
    assert snr(17.5).threshold == 17.5
    assert snr(17.5).describe() == "SNR >= 17.5 dB"


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"'e3m4'.*e4m3, e5m2, fp4"):
        snr("e3m4")


@pytest.mark.parametrize("threshold", [math.nan, math.inf, -math.inf])
def test_a_threshold_that_is_no_finite_number_is_refused(threshold: float) -> None:
    with pytest.raises(BadInput, match="finite number of dB"):
        snr(threshold)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float32, 1e-4),
        (torch.float16, 1e-2),
        (torch.bfloat16, 1e-2),
        (torch.float8_e4m3fn, 1e-1),
        (torch.float8_e5m2, 1e-1),
        (torch.float4_e2m1fn_x2, 0.5),
    ],
    ids=str,
)
def test_tolerances_follow_the_dtype(dtype: torch.dtype, expected: float) -> None:
    assert get_tolerances(dtype) == {"rtol": expected, "atol": expected}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.complex64])
def test_a_dtype_without_a_tolerance_is_an_error(dtype: torch.dtype) -> None:
    with pytest.raises(BadInput, match=str(dtype).removeprefix("torch.")):
        get_tolerances(dtype)


@pytest.mark.parametrize(
    ("dtype", "threshold"),
    [
        (torch.float8_e4m3fn, 25.0),
        (torch.float8_e4m3fnuz, 25.0),
        (torch.float8_e5m2, 20.0),
        (torch.float8_e5m2fnuz, 20.0),
        (torch.float4_e2m1fn_x2, 10.0),
    ],
    ids=str,
)
def test_fp8_and_fp4_gate_by_snr_and_never_by_tolerance(
    dtype: torch.dtype, threshold: float
) -> None:
    gate = default_gate(dtype)
    assert gate.threshold is not None
    assert gate.threshold == threshold
    assert gate.passes(figures(threshold, mismatch_share=1.0))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float8_e4m3fn, "OCP"),
        (torch.float8_e5m2, "OCP"),
        (torch.float8_e4m3fnuz, "FNUZ"),
        (torch.float8_e5m2fnuz, "FNUZ"),
        (torch.bfloat16, None),
    ],
    ids=str,
)
def test_the_encoding_of_8_bit_floats_is_told(dtype: torch.dtype, expected: str | None) -> None:
    assert encoding(dtype) == expected


@pytest.mark.parametrize(("rtol", "atol"), [(-1e-9, 0.0), (0.0, -1.0), (math.nan, 0.0)])
def test_a_tolerance_below_zero_is_refused(rtol: float, atol: float) -> None:
    with pytest.raises(BadInput, match="a number >= 0"):
        tolerance(rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (tolerance(rtol=0.01, atol=0.001), "allclose(rtol=0.01, atol=0.001)"),
        (snr("e4m3"), "SNR >= 25 dB"),
        (bitwise(), "bitwise equal"),
    ],
)
def test_a_gate_says_what_it_asks(gate: Gate, words: str) -> None:
    assert gate.describe() == words


@pytest.mark.parametrize(
    ("gate", "dtype"),
    [
        (None, "bfloat16"),
        (snr("e4m3"), "float8_e4m3fn"),
        (snr("E5M2"), "float8_e5m2"),
        (snr(25.0), "bfloat16"),
        (snr("fp4"), "float4_e2m1fn_x2"),
        (tolerance(rtol=0.1, atol=0.1), "bfloat16"),
    ],
)
def test_a_gate_named_by_a_format_says_what_a_kernel_computes_in(
    gate: Gate | None, dtype: str
) -> None:
    inputs = [torch.zeros(64, dtype=torch.bfloat16), torch.zeros(4), 3, torch.arange(900)]
    assert computing_dtype(inputs, gate) == dtype
    assert computing_dtype([torch.arange(9), "x"], None) is None


def of(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


E4M3, SCALES = torch.float8_e4m3fn, of(1, 64, dtype=torch.float32)


@pytest.mark.parametrize(
    ("inputs", "dtype"),
    [
        ([of(4, 64), of(64, 64, dtype=torch.int8), SCALES], "bfloat16"),
        ([of(1, 64), of(64, 64, dtype=E4M3), SCALES], "bfloat16"),
        ([of(4, 64, dtype=torch.float16), of(64, 64, dtype=torch.int8)], "float16"),
        ([of(64, 64, dtype=E4M3), of(64, 64, dtype=E4M3), SCALES, of(64)], "float8_e4m3fn"),
        ([of(64, 64, dtype=E4M3), of(64, 64, dtype=E4M3), of(4, 64)], "float8_e4m3fn"),
        ([of(64, 64, dtype=torch.int8), of(64)], "int8"),
    ],
    ids=["W8A16", "fp8 weights", "float16", "fp8", "fp8 and a residual", "a bias"],
)
def test_a_narrow_weight_multiplies_at_the_rate_of_its_activations(
    inputs: list[torch.Tensor], dtype: str
) -> None:
    assert computing_dtype(inputs, None) == dtype
