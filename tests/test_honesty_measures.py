"""Counting work, disturbing inputs, judging outputs, precision and physics: the single measures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pytest_kopt import models
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.order import Bench
from pytest_kopt.cases.result import CaseResult, ExpectedCase
from pytest_kopt.cases.running.against_reference import controls, passing_controls
from pytest_kopt.honesty import inputs, outputs, renewal, work
from pytest_kopt.honesty.accuracy import Accuracy, downgrades, least_snr
from pytest_kopt.honesty.outputs import accuracy_of, but_for_few, most_terms
from pytest_kopt.numerics.compare import compute_snr, rounding_snr
from pytest_kopt.numerics.gates import Gate
from pytest_kopt.numerics.nested import storages
from tests.builders import few_examples

# --- operators -----------------------------------------------------------------------------------


def test_an_exception_leaves_no_listener_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        work.operators_of(lambda: 1 / 0)
    assert work.operators_of(lambda: None) == (None, [])


# --- inputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [None, 4])
def test_an_update_of_a_weight_leaves_most_of_it(most: int | None) -> None:
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    generator = torch.Generator().manual_seed(1)
    same, updated = inputs.updated([x, w], (1,), generator, most)
    assert torch.equal(same, x)
    changed = int((updated != w).sum())
    assert 0 < changed <= (most or w.numel() // 50)


def test_new_content_comes_without_a_version_but_to_weights() -> None:
    x, w = torch.zeros(4), torch.zeros(4, requires_grad=True)
    places, versions = (x.data_ptr(), w.data_ptr()), (x._version, w._version)
    inputs.overwrite([x, w], [torch.ones(4), torch.ones(4)], (1,))
    assert (x.data_ptr(), w.data_ptr()) == places
    assert x._version == versions[0] and w._version > versions[1]
    assert bool((x == 1).all()) and bool((w == 1).all())
    inputs.overwrite([x, w], [torch.zeros(4), torch.zeros(4)], (1,), only_activations=True)
    assert bool((x == 0).all()) and bool((w == 1).all())


def test_nan_in_an_input_is_no_change() -> None:
    x = torch.full((4,), math.nan)
    assert [*inputs.undeclared([x.clone()], [x], (), ())] == []
    assert [*inputs.undeclared([torch.ones(4)], [x], (), ())] != []
    assert [*inputs.undeclared([x.view(2, 2)], [x], (), ())] != []


# --- outputs and memory --------------------------------------------------------------------------


def test_a_result_is_stale_when_it_stays_although_it_had_to_change() -> None:
    one, other = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 5.0, 3.0])
    assert [*outputs.stale("it", [one], [one.clone()], [one.double()], [other.double()])]
    assert not [*outputs.stale("it", [one], [other], [one.double()], [other.double()])]
    assert not [*outputs.stale("it", [one], [one.clone()], [one.double()], [one.double() + 1e-9])]


def test_a_coarse_output_may_stay_when_only_what_it_cannot_hold_changes() -> None:
    out = torch.tensor([4.0, 0.0], dtype=torch.float16)
    before, after = torch.tensor([4.0, 1e-9]).double(), torch.tensor([4.0, 3e-9]).double()
    assert not [*outputs.stale("it", [out], [out.clone()], [before], [after])]


def test_a_view_of_an_input_is_not_a_shared_result() -> None:
    x = torch.randn(4, 4)
    held = storages([x])
    assert outputs.shared([x.t()], [x.t()], held) == []
    assert outputs.shared([x.t()], [x.t()], frozenset()) != []
    assert outputs.shared([x + 1], [x + 1], held) == []


class Unreadable(torch.Tensor):
    """A result that says that it is gone."""

    def untyped_storage(self) -> Any:
        raise RuntimeError("overwritten by a subsequent run")


def test_a_result_that_refuses_to_be_read_was_not_changed_in_silence() -> None:
    gone = torch.ones(3).as_subclass(Unreadable)
    assert outputs.shared([gone], [gone], frozenset()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_poisoned_allocations_hold_nan_and_the_mode_is_put_back(dtype: Any) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    with renewal.poisoned_allocations():
        found = [torch.empty(64, dtype=dtype), torch.ones(64, dtype=dtype).new_empty(9)]
    assert all(bool(torch.isnan(item).all()) for item in found)
    assert torch.are_deterministic_algorithms_enabled() == before


# --- precision -----------------------------------------------------------------------------------


def sequential(x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[0], dtype=x.dtype)
    for column in x.unbind(1):
        total = total + column
    return total


SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "library": lambda x: x.sum(1),
    "one after the other": sequential,
    "blocked": lambda x: torch.stack([sequential(part) for part in x.split(64, 1)], 1).sum(1),
    "in double": lambda x: x.double().sum(1).float(),
}
NARROW: dict[str, Callable[[Tensor], Tensor]] = {
    "float16": lambda x: x.half().sum(1).float(),
    "bfloat16": lambda x: x.bfloat16().sum(1).float(),
    "rounded inputs": lambda x: (x.view(torch.int32) & -8192).view(torch.float32).sum(1),
}


@pytest.mark.parametrize("columns", [64, 1000, 8192])
@pytest.mark.parametrize("baseline", SUMS)
def test_ways_to_add_up_float32_are_honest_and_narrower_ones_not(
    baseline: str, columns: int
) -> None:
    x = torch.randn(32, columns, generator=torch.Generator().manual_seed(columns))
    ref = x.double().sum(1)
    base = {"out": accuracy_of(ref, SUMS[baseline](x))}
    for name, kernel in {**SUMS, **NARROW}.items():
        out = kernel(x)
        checks = [f.check for f in downgrades({"out": accuracy_of(ref, out)}, base, [x])]
        assert checks == (["precision-downgrade"] if name in NARROW else []), name


@pytest.mark.parametrize("shape", [(4, 64), (3, 100), (6, 33)])
def test_a_few_sums_near_zero_are_no_downgrade(shape: tuple[int, int]) -> None:
    """One in 14 results of three sums, added up one term after the other, was refused."""
    generator = torch.Generator().manual_seed(0)
    refused = dict.fromkeys([*SUMS, *NARROW], 0)
    for x in torch.randn(200, *shape, generator=generator):
        ref = x.double().sum(1)
        base = {"out": accuracy_of(ref, ref.float())}
        for name, kernel in {**SUMS, **NARROW}.items():
            found = {"out": accuracy_of(ref, kernel(x))}
            refused[name] += len([*downgrades(found, base, [x])])
    assert not any(refused[name] for name in SUMS), refused
    assert all(refused[name] > 180 for name in NARROW), refused


def test_narrow_outputs_are_held_to_their_own_rounding() -> None:
    x, w = torch.randn(64, 512), torch.randn(512, 64)
    a, b = x.bfloat16(), w.bfloat16()
    ref = a.double() @ b.double()
    honest = (a.float() @ b.float()).bfloat16()
    chained = torch.zeros(64, 64, dtype=torch.bfloat16)
    for part, other in zip(a.split(4, 1), b.split(4, 0), strict=True):
        chained += part @ other
    base = {"out": accuracy_of(ref, honest)}
    assert [*downgrades({"out": accuracy_of(ref, honest)}, base, [a, b])] == []
    split = ((a.float() @ b.float()) + 0.004 * ref.abs().float()).bfloat16()
    assert [*downgrades({"out": accuracy_of(ref, split)}, base, [a, b])] == []
    coarse = (a.float().mul(8).round().div(8) @ b.float().mul(8).round().div(8)).bfloat16()
    assert [*downgrades({"out": accuracy_of(ref, coarse)}, base, [a, b])] != []


def test_a_wide_result_of_narrow_inputs_may_be_as_exact_as_they_are() -> None:
    """A loss in float32 whose terms are rounded to the inputs' bfloat16, as in liger-kernel."""
    x, y = (torch.rand(512, 1024).bfloat16() for _ in range(2))
    terms = (x.double() - y.double()).abs()
    ref = terms.sum(1)
    base = {"out": accuracy_of(ref, (x.float() - y.float()).abs().sum(1))}
    rounded = {"out": accuracy_of(ref, terms.bfloat16().float().sum(1))}
    (told,) = downgrades(rounded, base, [x, y])
    assert (told.check, told.rejects) == ("precision-downgrade", False)
    (refused,) = downgrades(rounded, base, [x.float(), y])
    assert refused.rejects
    quarters = {"out": accuracy_of(ref, terms.mul(4).round().div(4).float().sum(1))}
    assert [found.rejects for found in downgrades(quarters, base, [x, y])] == [True]


def test_a_product_owes_what_its_own_terms_cost_and_a_global_norm_what_all_elements_do() -> None:
    """The corpus's product of twelve-bit halves reached 116 dB where float32 reaches 133."""
    a, b = torch.randn(96, 160), torch.randn(160, 128)
    ref = a.double() @ b.double()
    terms = most_terms([a, b], [ref], 2 * 96 * 128 * 160)
    assert terms == 160
    base = {"out": replace(accuracy_of(ref, a @ b), terms=terms)}
    short = [t.mul(2**11).round().div(2**11) for t in (a, b)]
    rest = [(t - s).mul(2**18).round().div(2**18) for t, s in zip((a, b), short, strict=True)]
    split = short[0] @ short[1] + rest[0] @ short[1] + short[0] @ rest[1]
    drawn = [a, b]
    (found,) = downgrades({"out": accuracy_of(ref, split)}, base, drawn)
    assert found.check == "precision-downgrade"
    norm = {"out": replace(base["out"], terms=None)}
    assert not [*downgrades({"out": accuracy_of(ref, split)}, norm, drawn)]
    # A weight's gradient adds up over the batch as well.
    x, w = torch.empty(4, 50, 8), torch.empty(8, 16)
    assert most_terms([x, w], [torch.empty(4, 50, 16), w, x], 2 * 4 * 50 * 8 * 16) == 200


@given(st.integers(0, 1000), st.floats(1e-5, 1e-3), st.integers(8, 16))
def test_few_elements_excuse_a_result_that_is_else_as_exact(
    seed: int, error: float, rows: int
) -> None:
    """A row that is rounded the other way does; an error of all elements, larger in few, not."""
    generator = torch.Generator().manual_seed(seed)
    ref = torch.randn(rows, 64, generator=generator, dtype=torch.float64).exp()
    best = ref.float()
    before = accuracy_of(ref, best)
    a_row = best.clone()
    a_row[1] *= 1 + error
    least = min(before.snr_db, before.rounding_db) - 12
    assert but_for_few(accuracy_of(ref, a_row), before, ref, a_row).snr_db > least
    everywhere = (ref * (1 + error * torch.rand(ref.shape, generator=generator))).float()
    worse = accuracy_of(ref, everywhere)
    assert but_for_few(worse, before, ref, everywhere) == worse


def test_another_dtype_than_the_baselines_is_named_and_a_poor_baseline_excuses() -> None:
    x = torch.randn(16, 64)
    ref = x.double().tanh()
    base = {"out": accuracy_of(ref, x.tanh())}
    found = downgrades({"out": accuracy_of(ref, x.tanh().half())}, base, [torch.zeros(1)])
    assert [f.check for f in found] == ["output-dtype"]
    poor = accuracy_of(ref, x.half().tanh().float())
    assert [*downgrades({"out": poor}, {"out": poor}, [torch.zeros(1)])] == []
    assert [*downgrades({"out": poor}, {}, [torch.zeros(1)])] == []


def test_a_reference_that_is_rounded_itself_asks_for_no_bits_of_its_own() -> None:
    x, grad = torch.randn(512, 256).bfloat16(), torch.randn(512, 256).bfloat16()
    exact = (x.double() * grad.double()).sum(0).bfloat16()
    another_order = exact.clone()
    another_order[17] = torch.nextafter(exact[17], torch.tensor(9e9).bfloat16())
    base = {"dw": accuracy_of(exact, exact)}
    found = accuracy_of(exact, another_order)
    assert base["dw"].snr_db == math.inf > found.snr_db
    assert [*downgrades({"dw": found}, base, [torch.zeros(512)])] == []
    coarse = accuracy_of(exact, (exact.float() / 4).round().bfloat16() * 4)
    assert [f.check for f in downgrades({"dw": coarse}, base, [torch.zeros(512)])] != []


def test_a_reference_in_the_results_dtype_tells_only_narrower_arithmetic() -> None:
    x = torch.rand(64, 512) + 3.0
    library = x.var(1, unbiased=False)
    base = {"out": accuracy_of(library, library, torch.float32)}
    moments = x.square().mean(1) - x.mean(1).square()
    halved = x.half().float().var(1, unbiased=False)
    for out, checks in ((moments, []), (halved, ["precision-downgrade"])):
        narrow = {"out": accuracy_of(library, out, torch.float32)}
        assert [f.check for f in downgrades(narrow, base, [torch.zeros(512)])] == checks


@given(st.integers(0, 2**32), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
@few_examples
def test_one_rounding_costs_what_it_is_said_to(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(4096, generator=generator, dtype=torch.float64)
    rounded = compute_snr(values, values.to(dtype))
    assert rounding_snr(values, dtype) == pytest.approx(rounded, abs=0.5)
    assert rounding_snr(values.to(dtype), dtype) == pytest.approx(rounded, abs=0.5)


def test_what_is_no_number_costs_no_rounding() -> None:
    values = torch.tensor([1.0, math.inf, -3.0, math.nan, 0.0])
    expected = rounding_snr(torch.tensor([1.0, -3.0]), torch.float32)
    assert rounding_snr(values, torch.float32) == pytest.approx(expected) and expected < 200


def test_zeros_cost_no_rounding_and_tiny_values_that_of_the_smallest_normal_one() -> None:
    assert rounding_snr(torch.zeros(3), torch.float32) == math.inf
    smallest = torch.finfo(torch.float16).smallest_normal
    tiny = torch.tensor([smallest / 8], dtype=torch.float64)
    normal = torch.tensor([smallest], dtype=torch.float64)
    lost = rounding_snr(normal, torch.float16) - rounding_snr(tiny, torch.float16)
    assert lost == pytest.approx(20 * math.log10(8))


def test_the_baselines_accuracy_comes_back_from_the_record_to_where_cases_run() -> None:
    reached = Accuracy("torch.float32", 140.0, math.inf)
    evidence = CaseEvidence(engine="wall", accuracy={"out": reached})
    result = CaseResult("t.py::test_x", header=("label", "Check"), evidence=evidence)
    document = json.loads(json.dumps(asdict(ExpectedCase.of(result))))
    bench = Bench("cpu", "wall", 1, expected=(models.read(ExpectedCase, document),))
    assert bench.frozen("t.py::test_x").accuracy == {"out": reached}


def test_what_is_owed_falls_with_the_number_of_terms() -> None:
    accuracy = Accuracy("torch.float32", 140.0, 152.0)
    assert least_snr(accuracy, 2) == pytest.approx(146.0)
    assert least_snr(accuracy, 2000) == pytest.approx(116.0)
    assert least_snr(replace(accuracy, dtype="torch.bfloat16"), 2000) == pytest.approx(137.0)


def test_a_sum_over_everything_is_owed_no_more_than_it_can_reach() -> None:
    """A clipped gradient depends on the norm of all, which adds up one term after the other."""
    x = torch.randn(512, 1024)
    ref = x.double() / x.double().norm()
    base = {"out": accuracy_of(ref, ref.float())}
    norm = x.new_zeros(())
    for row in x.square().t().contiguous():
        norm += row.sum()
    clipped = accuracy_of(ref, x / (norm.sqrt() * (1 + 2e-6)))
    assert [*downgrades({"out": clipped}, base, [x])] == []
    halved = accuracy_of(ref, x.half().float() / norm.sqrt())
    assert [f.check for f in downgrades({"out": halved}, base, [x])] == ["precision-downgrade"]


# --- physics and controls ------------------------------------------------------------------------


def test_the_floor_counts_what_is_written_and_what_is_multiplied() -> None:
    assert work.floor_ms(1e6, 0, 1e9, 1e12) == pytest.approx(1.0)
    assert work.floor_ms(1e6, 1e10, 1e9, 1e12) == pytest.approx(10.0)


def test_shared_elements_are_written_once() -> None:
    assert work.written_bytes([torch.ones(1, 8).expand(1000, 8)]) == 32
    assert work.written_bytes([torch.ones(4, 8).t(), torch.empty(0, 5)]) == 128


def test_a_call_is_faster_than_physics_below_the_floor_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for measured in ("ceilings", "_measured"):
        monkeypatch.setattr(work, measured, {"cpu": (1e9, 1e12)}.__getitem__)
    assert [*work.too_fast(1.01, 1e6, 0, "cpu")] == []
    (finding,) = work.too_fast(0.99, 1e6, 0, "cpu")
    assert finding.check == "faster-than-physics"


def test_controls_that_are_right_by_accident_say_nothing() -> None:
    def passing(expected: Tensor, given_: list[Tensor], atol: float) -> list[str]:
        wrong = controls(expected, given_, torch.float32)
        return passing_controls(expected, wrong, Gate(atol, atol))

    x = torch.randn(4, 4).double()
    assert passing(torch.zeros(4, 4).double(), [x], 1e-4) == []
    assert passing(x, [x.float()], 1e-4) == []
    assert passing(x + 0.5, [x.float()], 1e-4) == []
    assert passing(x + 0.5, [x.float()], 10.0) == [
        "zeros",
        "the answer with the other sign",
        "the answer in another order",
        "a copy of input 0",
    ]
