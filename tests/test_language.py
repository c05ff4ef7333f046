"""What was to be written by hand has to do the work: torch's operators alone must not be enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import declare
from pytest_kopt.cases.running.check import CheckedCase, check_case
from tests.builders import a_bench


def by_hand(x: Tensor, out: Tensor) -> None:
    """Compute behind torch's back, as a kernel launched on raw pointers does."""
    out.numpy()[...] = x.detach().numpy() * 2 + 1


_scratch: dict[torch.Size, Tensor] = {}
_two = torch.tensor(2.0)
_library = torch.library.Library("language_test", "DEF")
_library.define("twice(Tensor x) -> Tensor")


def _registered(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    by_hand(x, out)
    return out


_library.impl("twice", _registered, "CPU")


def wholly(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    by_hand(x, out)
    return out


def at_the_end(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    by_hand(x.contiguous(), out)
    return out.clone()


def into_kept_memory(x: Tensor) -> Tensor:
    held = _scratch.setdefault(x.shape, torch.empty_like(x))
    by_hand(x, held)
    return held[:, :].clone()


def registered(x: Tensor) -> Tensor:
    found: Tensor = torch.ops.language_test.twice(x)
    return found.clone()


def by_torch(x: Tensor) -> Tensor:
    return x * 2 + 1


def by_torch_with_a_constant(x: Tensor) -> Tensor:
    return torch.add(x * _two, 1)


def ghost(x: Tensor) -> Tensor:
    by_hand(x, torch.empty_like(x))
    return by_torch(x)


def fallback(x: Tensor) -> Tensor:
    try:
        raise RuntimeError("does not build")
    except RuntimeError:
        return by_torch(x)


def checked(function: Callable[..., Tensor], **given: Any) -> CheckedCase:
    case = declare(
        "tests/test_it.py::test_it",
        "memory",
        function,
        inputs=lambda: (torch.randn(16, 64),),
        reference=lambda x: x.double() * 2 + 1,
        dims={"rows": 16},
        nbytes=8192,
    )
    report = check_case(case, a_bench(case, **given))
    assert report.check == "PASS", report.diagnosis
    return report


def found(function: Callable[..., Tensor], language: str, **given: Any) -> set[str]:
    report = checked(function, language=language, **given)
    return {item.check for item in report.findings if item.rejects}


@pytest.mark.parametrize("function", [wholly, at_the_end, into_kept_memory, registered])
def test_what_does_the_work_by_hand_is_let_be(function: Callable[..., Tensor]) -> None:
    assert found(function, "HIP") == set()


@pytest.mark.parametrize("function", [by_torch, by_torch_with_a_constant, ghost, fallback])
def test_torch_in_its_place_is_seen(function: Callable[..., Tensor]) -> None:
    assert found(function, "TRITON") == {"vendor-operator"}
    assert found(function, "TORCH") == set()


def test_what_the_baseline_left_to_torch_may_be_left_to_it_alike() -> None:
    baseline = checked(by_torch, language="TRITON", freezes=True)
    assert baseline.evidence.by_torch and not baseline.findings
    assert checked(wholly, language="TRITON").evidence.by_torch == ""
    assert found(by_torch, "TRITON", by_torch=baseline.evidence.by_torch) == set()
    another = lambda x: torch.add(x, x).add(1)  # noqa: E731
    assert found(another, "TRITON", by_torch=baseline.evidence.by_torch) == {"vendor-operator"}
