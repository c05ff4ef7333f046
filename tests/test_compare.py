from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt import assert_matches, assert_snr, bitwise, snr, tolerance
from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.compare import InvalidReference, compare
from pytest_kopt.numerics.gates import Gate
from tests.builders import few_examples

GATES = [tolerance(rtol=1e30, atol=1e30), snr(-1e300), bitwise()]
ANY_NUMBER = st.floats(-1e100, 1e100) | st.sampled_from([math.inf, -math.inf])


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.describe())
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_or_inf_where_the_reference_has_none_fails_whatever_the_gate(
    gate: Gate, bad: float
) -> None:
    result = compare(tensor(1.0, 2.0, 3.0), tensor(1.0, bad, 3.0), gate)
    assert not result.passed
    assert "1 NaN or Inf where the reference has none" in result.reason


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.describe())
@pytest.mark.parametrize("bad", [math.nan, -math.inf, 3e38])
def test_an_infinite_reference_excuses_nothing_but_the_same_infinity(
    gate: Gate, bad: float
) -> None:
    reference = tensor(math.inf, 1.0)
    assert compare(reference, tensor(math.inf, 1.0), gate).passed
    assert not compare(reference, tensor(bad, 1.0), gate).passed


def test_nan_in_the_reference_is_an_error_of_the_case() -> None:
    with pytest.raises(InvalidReference, match="the reference returns NaN"):
        compare(tensor(1.0, math.nan), tensor(1.0, math.nan))


def test_another_shape_fails_and_both_are_named() -> None:
    result = compare(torch.zeros(2, 3), torch.zeros(3, 2))
    assert not result.passed
    assert "(3, 2)" in result.reason and "(2, 3)" in result.reason
    assert math.isnan(result.snr_db)


def test_a_shape_that_would_broadcast_fails_as_well() -> None:
    assert not compare(torch.zeros(4, 1), torch.zeros(4, 4)).passed


@pytest.mark.parametrize("output", [None, 1.0, [1.0]])
def test_something_that_is_no_tensor_fails(output: object) -> None:
    result = compare(tensor(1.0), output)
    assert not result.passed
    assert type(output).__name__ in result.reason


def test_an_error_of_exactly_atol_plus_rtol_times_reference_passes() -> None:
    gate = tolerance(rtol=0.25, atol=0.5)
    reference = tensor(2.0, dtype=torch.float64)
    assert compare(reference, tensor(3.0, dtype=torch.float64), gate).passed
    beyond = math.nextafter(3.0, 4.0)
    assert not compare(reference, tensor(beyond, dtype=torch.float64), gate).passed


@given(
    st.lists(st.tuples(ANY_NUMBER, ANY_NUMBER), min_size=1),
    st.floats(0, 10),
    st.floats(0, 10),
)
@few_examples
def test_tolerance_is_torch_allclose(
    pairs: list[tuple[float, float]], rtol: float, atol: float
) -> None:
    reference, output = torch.tensor(pairs, dtype=torch.float64).T
    expected = torch.allclose(output, reference, rtol=rtol, atol=atol)
    assert compare(reference, output, tolerance(rtol=rtol, atol=atol)).passed == expected


def test_without_a_gate_the_outputs_dtype_chooses_it() -> None:
    reference = tensor(100.0, dtype=torch.float64)
    assert compare(reference, tensor(100.5, dtype=torch.bfloat16)).passed
    assert compare(reference, tensor(100.5, dtype=torch.float16)).passed
    assert not compare(reference, tensor(100.5, dtype=torch.float32)).passed
    assert compare(reference, tensor(100.005, dtype=torch.float32)).passed


def test_an_output_dtype_without_a_gate_is_an_error() -> None:
    with pytest.raises(BadInput, match="float64"):
        compare(tensor(1.0), tensor(1.0, dtype=torch.float64))


def test_fp8_output_is_judged_by_its_snr_gate() -> None:
    reference = torch.linspace(0.5, 8.0, 64, dtype=torch.float64)
    good = reference.to(torch.float8_e4m3fn)
    assert compare(reference, good).passed
    assert not compare(reference, (reference * 1.2).to(torch.float8_e4m3fn)).passed


def test_a_zero_reference_is_defined_for_every_gate() -> None:
    reference, near = torch.zeros(4), torch.full((4,), 1e-5)
    assert compare(reference, near).passed
    assert not compare(reference, near, snr(-100.0)).passed
    assert compare(reference, torch.zeros(4), snr("e4m3")).passed


def test_empty_tensors_match() -> None:
    assert compare(torch.empty(0, 3), torch.empty(0, 3)).passed


def test_bitwise_asks_for_equality_of_every_element() -> None:
    reference = tensor(1.0, 2.0)
    assert compare(reference, reference.clone(), bitwise()).passed
    other = tensor(1.0, math.nextafter(2.0, 3.0), dtype=torch.float64)
    assert not compare(reference.double(), other, bitwise()).passed


def test_bitwise_tells_large_integers_apart() -> None:
    reference = torch.tensor([2**53], dtype=torch.int64)
    assert not compare(reference, reference + 1, bitwise()).passed


def test_figures_locate_and_size_the_error() -> None:
    reference = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    output = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    found = compare(reference, output).figures
    assert found is not None
    assert found.max_abs == 1.0
    assert found.worst_index == (1, 1)
    assert (found.worst_ref, found.worst_out) == (4.0, 5.0)
    assert found.mismatch_share == 0.25
    assert found.relative == pytest.approx(1 / math.sqrt(30))
    assert found.cosine == pytest.approx(34 / math.sqrt(30 * 39))
    assert found.snr_db == pytest.approx(10 * math.log10(30))


def test_the_diagnosis_names_everything_a_person_needs() -> None:
    reference, output = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.full((2, 2), 3.0)
    with pytest.raises(AssertionError) as failure:
        assert_matches(reference, output, name="dA")
    text = str(failure.value)
    assert text.startswith("dA: outside the tolerance (gate: allclose(rtol=0.0001, atol=0.0001))")
    for figure in ("SNR", "max abs error", "relative error", "cosine", "worst index (0, 0)"):
        assert " ".join(figure.split()) in " ".join(text.split())
    assert "reference 1, output 3" in text
    assert "75.0000 % of the elements" in text


def test_one_line_has_the_snr_beside_the_gate() -> None:
    wrong = compare(torch.tensor([3.0]), torch.tensor([3.3]), snr(25.0))
    assert wrong.line == "out: outside the tolerance (SNR 20.00 dB, gate: SNR >= 25 dB)"
    other_shape = compare(torch.zeros(2), torch.zeros(3), snr(25.0))
    assert other_shape.line == "out: has shape (3,), the reference (2,) (gate: SNR >= 25 dB)"


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float8_e4m3fn, "OCP"), (torch.float8_e4m3fnuz, "FNUZ")]
)
def test_the_diagnosis_of_a_quantised_output_states_its_encoding(
    dtype: torch.dtype, name: str
) -> None:
    result = compare(tensor(1.0, 2.0), tensor(2.0, 1.0).to(dtype))
    assert not result.passed
    assert name in result.diagnosis()


def test_assertions_are_silent_when_the_gate_holds() -> None:
    assert_matches(tensor(1.0), tensor(1.00001))
    assert_snr(tensor(1.0), tensor(1.0), 200.0)
