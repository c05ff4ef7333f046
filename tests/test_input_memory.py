"""The inputs of a call as a process's memory held them, against those that are drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_kopt.cases.running.inspected_results import is_as_drawn
from pytest_kopt.honesty.inputs import plain_inputs, span_bytes
from pytest_kopt.honesty.renewal import poisoned_allocations

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
    assert is_as_drawn([drawn], stored(drawn, path), again)
    assert not is_as_drawn([drawn], stored(changed(drawn, torch.zeros_like), path), again)


def test_an_input_of_few_bits_that_was_scaled_is_no_rounding(tmp_path: Path) -> None:
    drawn = DRAWN["half"]
    scaled = stored(changed(drawn, lambda x: 1.1 * x), tmp_path / "memory")
    assert not is_as_drawn([drawn], scaled, lambda: [drawn])


@pytest.mark.parametrize("name", ["plain", "complex"])
def test_an_input_may_be_rounded_otherwise(name: str, tmp_path: Path) -> None:
    drawn = DRAWN[name]
    near = stored(changed(drawn, lambda x: x * (1 + 2e-7)), tmp_path / "memory")
    assert is_as_drawn([drawn], near, lambda: [drawn])


@pytest.mark.parametrize("dtype", [torch.float32, FP8, torch.complex64, torch.int64, torch.bool])
def test_memory_that_nobody_wrote_may_hold_poison_of_an_earlier_call(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    def drawn() -> Tensor:
        return torch.empty(32, dtype=dtype)

    with poisoned_allocations():
        here, redrawn = drawn(), drawn()
    theirs = stored(torch.zeros(32).to(dtype), tmp_path / "memory")
    assert is_as_drawn([here], theirs, lambda: [redrawn])


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
def test_inputs_whose_bits_are_no_numbers_are_known_by_their_places_only() -> None:
    """A result may lie in them: the next block writes there."""
    quantized = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.quint8)
    wide = torch.randn(4, dtype=torch.complex128)
    activations, weights, others = plain_inputs([DRAWN["plain"], quantized, wide], (), ())
    assert [x.dtype for x in activations] == [torch.float32] and not weights
    assert [x.dtype for x in others] == [torch.quint8, torch.complex128]
