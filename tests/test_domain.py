"""Inputs of the incumbent's domain that a case does not draw itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.domain import cases_of
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.running.heldout import try_shape
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.heldout import DOMAIN, PATTERNS, Tried, held_out_findings


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def case_of(function: Callable[..., Any] = softmax, **changes: Any) -> Case:
    given: dict[str, Any] = {
        "inputs": lambda: (torch.randn(8, 64),),
        "reference": lambda x: torch.softmax(x.double(), -1),
        "dims": {"rows": 8},
        "label": None,
        "backward": False,
        "weights": (),
        "flops": None,
        "nbytes": 4096,
        "gate": None,
    }
    return declare("t.py::t", "memory", function, **(given | changes))


def content(case: Case, kind: str) -> Tensor:
    (found,) = [near for other, near in cases_of(case, 5) if other == kind]
    (first,) = found.arguments()
    assert isinstance(first, Tensor)
    return first


def test_the_patterns_are_what_they_are_called() -> None:
    case = case_of()
    assert bool((content(case, "outlier").amax(1) == 256).all())
    masked = content(case, "masked")
    assert bool(masked[:, 0].isfinite().all()) and bool((masked[:, -1] == -torch.inf).any())
    constant = content(case, "constant")
    assert bool((constant == constant[:, :1]).all())
    assert float(content(case, "tiny").abs().max()) < 1e-2
    strided = content(case, "strided")
    assert strided.stride() == (1, 8) and strided.shape == (8, 64)
    assert content(case, "wider").dtype is torch.float64


def test_weights_keep_their_content_and_gradients_their_leaves() -> None:
    case = case_of(
        lambda x, w: x * w,
        inputs=lambda: (torch.randn(4, 8).requires_grad_(), torch.ones(8)),
        weights=(1,),
    )
    for kind, near in cases_of(case, 5):
        x, w = near.arguments()
        assert x.requires_grad and x.is_leaf, kind
        assert bool((w == 1).all())


def test_the_order_is_drawn() -> None:
    orders = {tuple(kind for kind, _ in cases_of(case_of(), seed)) for seed in range(8)}
    assert len(orders) > 4


@pytest.mark.parametrize("word", [word for word in DOMAIN if word != "declared shapes"])
def test_a_case_may_declare_less(word: str) -> None:
    kinds = {kind for kind, _ in cases_of(case_of(domain=word), 5)}
    assert kinds == {k for k, p in PATTERNS.items() if p.excluded_by != word}


def test_several_words_are_a_line() -> None:
    assert case_of(domain="contiguous, finite").domain == ("contiguous", "finite")
    assert case_of(domain=["finite"]).domain == ("finite",)
    with pytest.raises(BadInput, match=r"domain has 'dense'.*contiguous"):
        case_of(domain="contiguous, dense")


def quarter(x: Tensor) -> Tensor:
    power = torch.exp(x - x[:, :16].amax(1, keepdim=True))
    return power / power.sum(1, keepdim=True)


def flat(x: Tensor) -> Tensor:
    return torch.softmax(x.as_strided(x.shape, (x.shape[1], 1)), -1)


def coarse(x: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return torch.softmax(x, -1)
    return torch.softmax(x.bfloat16(), -1).to(x.dtype)


def blind(x: Tensor) -> Tensor:
    return torch.softmax(x.view(torch.float32)[..., : x.shape[-1]], -1).to(x.dtype)


def summed(x: Tensor) -> Tensor:
    return x.sum(-1)


def test_infinite_results_are_compared_too() -> None:
    case = case_of(summed, reference=lambda x: x.double().sum(-1))
    (masked,) = [near for kind, near in cases_of(case, 7) if kind == "masked"]
    found = try_shape("masked", case, masked, {INCUMBENT: summed, CANDIDATE: summed}, "cpu", 7)
    assert found is None or set(found.outcomes.values()) == {"right"}


def timid(x: Tensor) -> Tensor:
    if not x.is_contiguous():
        raise ValueError("rows have to lie in one piece")
    return torch.softmax(x, -1)


def said_of(candidate: Callable[..., Any], **changes: Any) -> list[tuple[str, bool]]:
    case, tried = case_of(candidate, **changes), list[Tried]()
    for kind, near in cases_of(case, 7):
        versions = {INCUMBENT: softmax, CANDIDATE: candidate}
        found = try_shape(kind, case, near, versions, "cpu", 7)
        tried += [found] if found else []
    assert {item.kind for item in tried} >= {"outlier", "masked", "strided", "wider"}
    found_of = held_out_findings(tried, CANDIDATE, INCUMBENT, {})
    return [(finding.check, finding.rejects) for finding in found_of]


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (softmax, []),
        (quarter, [("held-out-range", True)]),
        (flat, [("held-out-layout", True)]),
        (coarse, [("held-out-dtype", True)]),
        (timid, [("held-out-layout", False)]),
        (blind, [("held-out-dtype", False)]),
    ],
)
def test_a_kernel_keeps_the_incumbents_domain(
    candidate: Callable[..., Any], said: Sequence[tuple[str, bool]]
) -> None:
    assert said_of(candidate) == said
