"""Calls on equal content, and results that differ from the reference by a rounding."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.running import against_reference
from pytest_kopt.cases.running import check as checks
from pytest_kopt.cases.running.steps import equal_calls
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.numerics.gates import snr, tolerance
from tests.checked import check, names
from tests.waiting import HANG


def reference(x: Tensor) -> Tensor:
    return x.double().sum(-1)


def inputs() -> tuple[Tensor]:
    return (torch.randn(64, 256),)


def row_sums(x: Tensor) -> Tensor:
    return x.sum(-1)


#: Of those that are right at first.
_raced = itertools.count(1)


def racing(x: Tensor) -> Tensor:
    out = x.sum(-1)
    if not next(_raced) % 16:
        out[-1] = out[0]
    return out


_calls = itertools.count(1)


def now_and_then(x: Tensor) -> Tensor:
    out = x.sum(-1)
    return out if next(_calls) % 16 else out.roll(1)


def in_any_order(x: Tensor) -> Tensor:
    """Sums in an order that changes, as atomics do: other bits, and right."""
    return x[:, torch.randperm(x.shape[1])].sum(-1)


@pytest.mark.parametrize("kernel", [racing, now_and_then])
def test_a_race_is_a_failed_check_and_no_cheat(
    kernel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine would make fewer calls than it takes to meet a race.
    monkeypatch.setattr(equal_calls, "_SECONDS", HANG)
    report = check(kernel, inputs=inputs, reference=reference, weights=())
    assert report.check == "FAIL"
    assert [found.check for found in report.findings] == ["not-deterministic"]
    assert not names(report)


@pytest.mark.parametrize(
    ("kernel", "declared", "result", "found"),
    [
        (row_sums, {"deterministic": True, "bitwise_stable": True}, "PASS", []),
        (in_any_order, {}, "PASS", ["other-bits"]),
        (in_any_order, {"first": True}, "PASS", ["other-bits"]),
        (in_any_order, {"deterministic": True}, "FAIL", ["not-deterministic"]),
        (in_any_order, {"bitwise_stable": True}, "FAIL", ["not-deterministic"]),
    ],
)
def test_other_bits_that_are_right_count_where_equal_ones_are_owed(
    kernel: Callable[..., Any], declared: dict[str, Any], result: str, found: list[str]
) -> None:
    report = check(kernel, inputs=inputs, reference=reference, weights=(), **declared)
    assert (report.check, [finding.check for finding in report.findings]) == (result, found)
    assert report.evidence.bitwise_stable is (kernel is row_sums)
    for finding in report.findings:
        assert re.search(r"\d+ of \d+ calls differ, in up to [\d.]+ % of the", finding.message)
        assert not finding.rejects


def test_deterministic_is_a_switch() -> None:
    with pytest.raises(BadInput, match=r"deterministic is 'yes'.*True or False"):
        check(row_sums, inputs=inputs, reference=reference, weights=(), deterministic="yes")


def quantised(x: Tensor, w: Tensor) -> Tensor:
    scale = w.abs().amax(-1, keepdim=True) / 7
    return x @ (torch.round(w / scale) * scale).T


def in_float16(x: Tensor, w: Tensor) -> Tensor:
    return quantised(x, w).half().float()


def with_one_flip(x: Tensor, w: Tensor) -> Tensor:
    """A number that lies between two steps is rounded to the other one."""
    out = quantised(x, w)
    out[:, 3] += x[:, 0] * w[3].abs().max() / 7
    return out


@pytest.mark.parametrize(
    ("kernel", "found"),
    [(quantised, set()), (with_one_flip, set()), (in_float16, {"precision-downgrade"})],
)
def test_a_rounding_that_flips_is_no_downgrade(kernel: Callable[..., Any], found: set[str]) -> None:
    def exact(x: Tensor, w: Tensor) -> Tensor:
        return quantised(x.double(), w.double())

    case = {
        "inputs": lambda: (torch.randn(24, 64), torch.randn(64, 64)),
        "reference": exact,
        "gate": snr(20.0),
    }
    accuracy = {"out": Accuracy("torch.float32", 140.0, 150.0, terms=64)}
    report = check(kernel, accuracy=accuracy, **case)
    assert (report.check, names(report)) == ("PASS", found)


KEPT = torch.full((64,), 1e-4)


def sum_with_what_lay_there(x: Tensor, workspace: Tensor) -> Tensor:
    return x.sum(-1) + workspace


def sum_with_what_was_kept(x: Tensor, workspace: Tensor) -> Tensor:
    total = x.sum(-1) + KEPT
    KEPT.copy_(total * 1e-5)
    return total


def sum_in_float16(x: Tensor, workspace: Tensor) -> Tensor:
    return (x.half().float() * (1 - 2**-12)).sum(-1)


@pytest.mark.parametrize(
    ("kernel", "found", "said"),
    [
        (sum_with_what_lay_there, "unwritten-output", "the values of input 1 before the call"),
        (sum_with_what_was_kept, "not-deterministic", "out depends on earlier calls"),
        (sum_in_float16, "precision-downgrade", "arithmetic in torch.float32 reaches"),
    ],
)
def test_a_stale_workspace_is_no_lower_precision(
    kernel: Callable[..., Any], found: str, said: str
) -> None:
    report = check(
        kernel,
        inputs=lambda: (torch.randn(64, 64), torch.full((64,), 1e-4)),
        reference=lambda x, workspace: x.double().sum(-1),
        weights=(),
        consumes=(1,),
        gate=tolerance(rtol=1e-2, atol=1e-2),
        accuracy={"out": Accuracy("torch.float32", 140.0, 150.0, terms=64)},
    )
    (finding,) = report.findings
    assert (finding.check, report.check) == (found, "FAIL" if finding.repairs else "PASS")
    assert said in finding.message


def stored(new: Tensor, cache: Tensor, slots: Tensor) -> None:
    cache[slots] = new


def stored_beside(new: Tensor, cache: Tensor, slots: Tensor) -> None:
    cache[slots] = new
    cache[slots[2]] += 1


def test_of_a_large_cache_only_written_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against_reference, "_LARGE", 1 << 10)
    monkeypatch.setattr(checks, "_LARGE_BYTES", 1 << 14)
    slots = torch.tensor([900, 17, 512])
    case = {
        "inputs": lambda: (torch.randn(3, 16), torch.zeros(1024, 16), slots),
        "reference": lambda new, cache, slots: stored(new, cache, slots),
        "weights": (),
    }
    right = check(stored, **case)
    assert right.check == "PASS"
    assert "writes to input 1 (0 MiB)" in (right.evidence.note or "")
    wrong = check(stored_beside, **case)
    assert wrong.check == "FAIL" and "worst index      (512, " in wrong.diagnosis
