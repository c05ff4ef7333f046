"""The inputs of a call as a process's memory held them, against those that are drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from pytest_kopt.cases.order import ALONE, CANDIDATE, ArmsOrder, Bench
from pytest_kopt.cases.running.inspected_results import is_as_drawn
from pytest_kopt.cases.running.timed_calls import Content, Gradients
from pytest_kopt.cases.running.timed_versions import serve_arms
from pytest_kopt.honesty.inputs import plain_inputs, span_bytes
from pytest_kopt.honesty.renewal import poisoned_allocations
from tests.test_judge_role import (
    FAST,
    KINDS,
    SESSION_SEED,
    Runner,
    asked,
    case_of,
    product,
    runs,
    seen_in,
)
from tests.test_result_memory import is_timed

Tensor = torch.Tensor
FP8 = torch.float8_e4m3fn


def stored(tensor: Tensor, path: Path) -> dict[str, Any]:
    """Return what the client has of a tensor that it read wholly from a process's memory."""
    size = span_bytes(tensor)
    content = torch.empty(size, dtype=torch.uint8)
    whole = tensor.as_strided((size // tensor.element_size(),), (1,))
    content.copy_(whole.view(torch.uint8))
    content.numpy().tofile(path)
    return {"file": str(path), "sizes": [], "inputs": [(size, 0, size)]}


def changed(tensor: Tensor, by: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a tensor of the same strides with other elements."""
    base = tensor.as_strided((span_bytes(tensor) // tensor.element_size(),), (1,))
    return by(base).to(tensor.dtype).as_strided(tensor.shape, tensor.stride())


DRAWN = {
    "plain": torch.randn(8, 4),
    "low": torch.randn(8, 4).to(FP8),
    "half": torch.randn(8, 4).bfloat16(),
    "expanded": torch.randn(4).expand(8, 4),
    "with gaps": torch.randn(8, 6)[:, :4],
    "complex": torch.randn(8, 4, dtype=torch.complex64),
    "integers": torch.arange(1, 33),
}


@pytest.mark.parametrize("name", DRAWN)
def test_inputs_that_were_written_over_are_told_from_those_that_are_drawn(
    name: str, tmp_path: Path
) -> None:
    drawn = DRAWN[name]
    path, again = tmp_path / "memory", lambda: [drawn]
    assert is_as_drawn([drawn], [], stored(drawn, path), again)
    assert not is_as_drawn([drawn], [], stored(changed(drawn, torch.zeros_like), path), again)


@pytest.mark.parametrize("is_written", [True, False])
def test_what_no_input_is_cannot_be_said_to_be_one(is_written: bool, tmp_path: Path) -> None:
    """A result would not have to last there. A call may put more into an input that it writes."""
    drawn, written = DRAWN["plain"], [DRAWN["half"]] if is_written else []
    memory = stored(drawn, tmp_path / "memory")
    memory["inputs"] += [(span_bytes(tensor), 0, 0) for tensor in written]
    assert is_as_drawn([drawn], written, memory, lambda: [drawn])
    memory["inputs"] += [(1 << 20, 0, 0)]
    assert is_as_drawn([drawn], written, memory, lambda: [drawn]) == is_written
    memory["inputs"][-2] = (1 << 20, 0, 0)
    assert not is_as_drawn([drawn], written, memory, lambda: [drawn])


def test_an_input_of_few_bits_that_was_scaled_is_no_rounding(tmp_path: Path) -> None:
    drawn = DRAWN["half"]
    scaled = stored(changed(drawn, lambda x: 1.1 * x), tmp_path / "memory")
    assert not is_as_drawn([drawn], [], scaled, lambda: [drawn])


@pytest.mark.parametrize("name", ["plain", "complex"])
def test_an_input_may_be_rounded_otherwise(name: str, tmp_path: Path) -> None:
    drawn = DRAWN[name]
    near = stored(changed(drawn, lambda x: x * (1 + 2e-7)), tmp_path / "memory")
    assert is_as_drawn([drawn], [], near, lambda: [drawn])


@pytest.mark.parametrize("dtype", [torch.float32, FP8, torch.complex64])
def test_memory_that_nobody_wrote_may_hold_poison_of_an_earlier_call(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    def drawn() -> Tensor:
        return torch.empty(32, dtype=dtype)

    with poisoned_allocations():
        here, redrawn = drawn(), drawn()
    theirs = stored(torch.zeros(32).to(dtype), tmp_path / "memory")
    assert is_as_drawn([here], [], theirs, lambda: [redrawn])


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
def test_inputs_whose_bits_are_no_numbers_are_known_by_their_places_only() -> None:
    """A result may lie in them: the next block writes there."""
    quantized = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.quint8)
    wide = torch.randn(4, dtype=torch.complex128)
    activations, weights, others = plain_inputs([DRAWN["plain"], quantized, wide], (), ())
    assert [x.dtype for x in activations] == [torch.float32] and not weights
    assert [x.dtype for x in others] == [torch.quint8, torch.complex128]


def over_input(x: Tensor, w: Tensor) -> Tensor:
    result = x @ w
    if is_timed():
        x.mul_(2)
    return result


class OverGradient(torch.autograd.Function):
    """A product whose backward writes to the incoming gradient where it is timed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        results = grad @ w.T, x.T @ grad
        if is_timed():
            grad.zero_()
        return results


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (over_input, "plain"),
        (over_input, "views of one"),
        (OverGradient.apply, "backward"),
    ],
    ids=["an input", "a view", "an incoming gradient"],
)
def test_a_timed_call_writes_to_nothing_that_the_case_does_not_name(
    function: Any, kind: str, tmp_path: Path
) -> None:
    """Its results are right, and its process brings back what it was given before it is asked."""
    settings = KINDS[kind][1]
    runner = runs(case_of(function, **settings), tmp_path)
    case = case_of(product, **settings)
    assert asked(case, runner, runner.looks).found == []
    (found,) = asked(case, runner, runner.looks, seen_in(runner)).found or [""]
    assert found.startswith("timed-result: a timed call writes over what it was given")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
@pytest.mark.parametrize("kind", ["plain", "expanded", "views of one", "backward", "seeded"])
def test_what_was_brought_from_another_arm_is_judged_as_that_arms(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are the block's own: a transform of these may be kept."""
    function, settings = KINDS[kind]
    case = case_of(function, **settings)
    write, write_one = Content._write_set, Gradients.write_one
    # Numbers are the block's own as well.
    more = 0 if kind == "seeded" else 1 << 20

    def activations(own: Content, number: int, seed: int, *_: object) -> None:
        write(own, number, seed + more, ALONE)

    def gradients(own: Gradients, number: int, seed: int, *_: object) -> None:
        write_one(own, number, seed + more, ALONE)

    with monkeypatch.context() as patch:
        patch.setattr(Content, "_write_set", activations)
        patch.setattr(Gradients, "write_one", gradients)
        runner = Runner(tmp_path)
        runner.content = lambda seed: (ALONE, seed + more)
        bench = Bench("cpu", "auto", SESSION_SEED, cpu=FAST)
        serve_arms(case, bench, ArmsOrder((CANDIDATE,)), cast("Any", runner))
    seen = seen_in(runner)
    assert asked(case, runner, runner.looks, seen).found == []
    answers = asked(case, runner, None, seen).looks
    assert asked(case, runner, answers, seen, confirms=True).found == []
    for document in seen:
        document["content"] = CANDIDATE, document["seed"]
    assert asked(case, runner, runner.looks, seen).found != [] or kind == "seeded"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
def test_a_result_that_is_an_input_changes_with_it(tmp_path: Path) -> None:
    first = case_of(lambda x, w: x[:8], reference=lambda x, w: x[:8].double())
    runner = runs(first, tmp_path)
    assert asked(first, runner, runner.looks, seen_in(runner)).found == []


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
def test_of_a_large_input_a_piece_is_read_and_what_lies_between_rows_is_not_its(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_kopt.paired.judge._PIECE", 64)

    def beside(x: Tensor, w: Tensor) -> Tensor:
        if is_timed():
            x.as_strided((16, 8), (16, 1), x.storage_offset() + 8).zero_()
        return x @ w

    settings = {"inputs": lambda: (torch.randn(16, 16)[:, :8], torch.randn(8, 8))}
    case = case_of(product, **settings)
    for function, is_right in ((beside, True), (over_input, False)):
        runner = runs(case_of(function, **settings), tmp_path)
        assert (asked(case, runner, runner.looks, seen_in(runner)).found == []) == is_right


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
@pytest.mark.parametrize("what", ["rounding", "memory that nobody wrote"])
def test_inputs_may_differ_between_processes_by(what: str, tmp_path: Path) -> None:
    with poisoned_allocations() if what != "rounding" else nullcontext():
        runner = runs(case_of(of_three, inputs=partial(three, 1.0), reference=of_three), tmp_path)
    factor = 1 + 1e-6 if what == "rounding" else 1.0
    case = case_of(of_three, inputs=partial(three, factor), reference=of_three)
    assert asked(case, runner, runner.looks, seen_in(runner)).found == []


def of_three(x: Tensor, w: Tensor, unused: Tensor) -> Tensor:
    return x @ w


def three(factor: float) -> tuple[Tensor, Tensor, Tensor]:
    return factor * torch.randn(16, 8), torch.randn(8, 8), torch.empty(64)
