"""Samplers and dropout: `statistical=`, compared in distribution."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pytest_kopt.cases.order import CANDIDATE
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.cases.running.heldout import held_out_cases, try_variant
from pytest_kopt.cases.running.reference import observed
from pytest_kopt.cases.running.steps import equal_calls
from pytest_kopt.errors import BadInput
from pytest_kopt.models import known, read
from pytest_kopt.numerics.compare import CallFigures, difference, draws_for, repetition
from pytest_kopt.numerics.gates import Gate, tolerance
from tests.checked import case_of, check, names

ROWS, COLUMNS = 32, 256


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare a third of the calls of a session: what is wrong here shows in them as well."""
    monkeypatch.setattr(equal_calls, "draws_for", lambda elements: draws_for(elements) // 3)


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1))


def dropout(x: Tensor, seed: int) -> Tensor:
    return torch.where(uniform(seed, *x.shape) < 0.5, 2 * x, 0)


def by_torch(x: Tensor, seed: int) -> Tensor:
    return torch.nn.functional.dropout(x.double(), 0.5)


def wrong_scale(x: Tensor, seed: int) -> Tensor:
    return 1.02 * dropout(x, seed)


def wrong_rate(x: Tensor, seed: int) -> Tensor:
    return torch.where(uniform(seed, *x.shape) < 0.51, x / 0.51, 0)


def one_mask_for_all_calls(x: Tensor, seed: int) -> Tensor:
    return dropout(x, 0)


def one_mask_for_all_rows(x: Tensor, seed: int) -> Tensor:
    return torch.where(uniform(seed, x.shape[1]) < 0.5, 2 * x, 0)


def one_of_two_hundred_masks(x: Tensor, seed: int) -> Tensor:
    return dropout(x, (seed * 2654435761 >> 8) % 200)


def of_another_shape(x: Tensor, seed: int) -> Tensor:
    return dropout(x, seed)[:-1]


def with_nan(x: Tensor, seed: int) -> Tensor:
    return dropout(x, seed) * (0.0 / torch.zeros(()))


CASE: dict[str, Any] = {
    "inputs": lambda: (torch.randn(ROWS, COLUMNS), int(torch.randint(1 << 31, ()))),
    "reference": by_torch,
    "weights": (),
    "statistical": 1e-6,
}


def checked(kernel: Callable[..., Any], **declared: Any) -> Any:
    return check(kernel, **(CASE | declared))


@pytest.mark.parametrize("baseline", [{"first": True, "freezes": True}, {}])
def test_an_honest_dropout_passes(baseline: dict[str, Any]) -> None:
    report = checked(dropout, **baseline)
    assert (report.check, names(report)) == ("PASS", set()), report.diagnosis
    assert report.evidence.gate == "the reference's distribution, error rate 1e-06"


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (wrong_scale, "has another distribution"),
        (wrong_rate, "has another distribution"),
        (one_mask_for_all_calls, "has another distribution"),
        (one_mask_for_all_rows, "has another distribution"),
        (one_of_two_hundred_masks, "has fewer outcomes than the reference"),
        (of_another_shape, "has shape (31, 256)"),
        (with_nan, "NaN or Inf where the reference has none"),
    ],
)
def test_a_wrong_dropout_fails(kernel: Callable[..., Any], said: str) -> None:
    report = checked(kernel)
    assert (report.check, names(report)) == ("FAIL", set())
    assert said in report.diagnosis


def probabilities() -> Tensor:
    """Draw those of 8 tokens for each row."""
    weights = torch.rand(4096, 8)
    return weights / weights.sum(-1, keepdim=True)


def choices(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a token for each row by the inverse of its cumulated probabilities."""
    total = probabilities.cumsum(-1)
    drawn = torch.rand(len(total), 1, generator=generator)
    return (total < drawn).sum(-1).clamp(max=total.shape[-1] - 1)


def never_the_last(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    return choices(probabilities, generator).clamp(max=probabilities.shape[-1] - 2)


def a_little_often_the_first(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    weights = probabilities.clone()
    weights[:, 0] += 0.02
    return choices(weights / weights.sum(-1, keepdim=True), generator)


@pytest.mark.parametrize(
    ("kernel", "result"),
    [(choices, "PASS"), (never_the_last, "FAIL"), (a_little_often_the_first, "FAIL")],
)
def test_a_sampler_draws_each_token_as_often(kernel: Callable[..., Any], result: str) -> None:
    report = checked(
        kernel,
        inputs=lambda: (probabilities(), torch.Generator()),
        reference=lambda p, generator: torch.multinomial(p, 1, generator=generator)[:, 0],
    )
    assert report.check == result, report.diagnosis


def test_a_dtype_of_few_values_repeats_them_without_fault() -> None:
    """A float64 reference never does."""

    def noise(dtype: torch.dtype) -> Callable[[Tensor, int], Tensor]:
        return lambda x, seed: x + uniform(seed, 1).to(dtype)

    report = checked(
        noise(torch.bfloat16),
        inputs=lambda: (torch.zeros(2, dtype=torch.bfloat16)[:1], int(torch.randint(1 << 31, ()))),
        reference=lambda x, seed: x.double() + torch.rand(1).double(),
    )
    assert report.check == "PASS", report.diagnosis


def test_gradients_have_a_distribution_as_well() -> None:
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor, seed: int) -> Tensor:
            context.kept = uniform(seed, *x.shape) < 0.5
            return torch.where(context.kept, 2 * x, 0)

        @staticmethod
        def backward(context: Any, *incoming: Tensor) -> Any:
            return torch.where(context.kept, incoming[0], 0), None

    def inputs() -> tuple[Tensor, int]:
        return torch.randn(ROWS, COLUMNS, requires_grad=True), int(torch.randint(1 << 31, ()))

    declared = {"inputs": inputs, "backward": True}
    assert checked(dropout, **declared).check == "PASS"
    report = checked(Halved.apply, **declared)
    assert report.check == "FAIL" and report.diagnosis.startswith("grad of input 0: has another")


def test_the_error_rate_holds_for_results_whose_elements_depend_on_each_other() -> None:
    """At a rate of 1/2 about half of the comparisons of equal functions may fail, and no more."""
    generator = torch.Generator().manual_seed(5)

    def row() -> Tensor:
        return torch.randn((), generator=generator) + torch.randn(16, generator=generator)

    failed = 0
    for _ in range(40):
        of = CallFigures([row() for _ in range(8)])
        sides = [[of(row()) for _ in range(64)] for _ in range(2)]
        reference, function = (
            {name: [call[name] for call in side] for name in side[0]} for side in sides
        )
        failed += bool(difference(reference, function, 0.5))
    assert failed <= 30


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 50, 1000, 10**6]), st.floats(0.2, 3.0))
def test_equal_samplers_repeat_their_results_as_often(
    seed: int, outcomes: int, skew: float
) -> None:
    """Whatever the number of outcomes is, and however much likelier some are than others."""
    generator = random.Random(seed)

    def draws() -> list[int]:
        return [int(outcomes * generator.random() ** skew) for _ in range(384)]

    assert not repetition(draws(), draws(), 1e-6)


def test_few_elements_take_more_calls() -> None:
    assert [draws_for(n) for n in (1, 4096, 1 << 24)] == [2048, 512, 384]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"statistical": True}, r"statistical is True.*an error rate such as 1e-6"),
        ({"statistical": 0.0}, r"statistical is 0\.0"),
        ({"gate": tolerance(rtol=0.1, atol=0.1)}, "statistical is declared together with gate"),
        ({"deterministic": True}, "statistical is declared together"),
        (
            {"reference": lambda x, seed: 2 * x.double()},
            "all calls of the reference give the same result",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(declared: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        checked(dropout, **declared)


def test_a_reference_that_draws_is_told_how_to_be_compared() -> None:
    with pytest.raises(BadInput, match="declare statistical=1e-6"):
        checked(dropout, statistical=None, first=True)


def test_a_lower_error_rate_asks_for_less() -> None:
    strict, loose = Gate(error_rate=1e-3), Gate(error_rate=1e-6)
    assert strict.implies(loose) and not loose.implies(strict)
    assert not tolerance(rtol=0, atol=0).implies(loose) and not strict.implies(Gate(rtol=1.0))
    assert read(Gate, known(loose)) == loose


def test_its_evidence_is_json() -> None:
    case, report = case_of(dropout), checked(dropout)
    result = CaseResult(case.nodeid, evidence=report.evidence)
    read_back = CaseResult.from_json(result.to_json()).evidence.accuracy
    assert read_back and read_back["out"].dtype == "torch.float32"


def test_near_the_declared_inputs_distributions_are_not_compared_by_elements() -> None:
    case = observed(case_of(dropout, **{**CASE, "domain": "declared shapes"}), 1)
    test: Any = SimpleNamespace(funcargs={})
    variants = [*held_out_cases(test, case, "cpu", 1, ExitStack())]
    assert variants and all(variant.case.is_statistical for variant in variants)
    (dominated,) = (variant for variant in variants if variant.judged == "each row")
    trial = try_variant(dominated, {CANDIDATE: dropout}, "cpu", 1)
    assert trial and trial.outcomes == {CANDIDATE: "right"}
