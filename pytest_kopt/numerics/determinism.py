"""Determinism: the same inputs give the same bits, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.nested import fresh_copies, tensors

#: A tensor on the CPU is compared in so many parts, one after the other.
_PARTS = 512


def assert_deterministic(
    fn: Callable[..., Any], inputs: Sequence[Any] | Callable[[], Sequence[Any]], repeats: int = 10
) -> None:
    """Raise AssertionError unless `repeats` calls give bitwise equal outputs and gradients.

    `inputs` are the arguments of `fn`, or a factory of them that is called once. Every call gets
    its own copies, so a kernel that writes to its inputs is compared fairly. Gradients of inputs
    that require grad are taken with one fixed random grad_out. NaNs compare by their bits.
    """
    if repeats < 2:
        raise BadInput(f"repeats is {repeats}: nothing to compare", legal="at least 2")
    arguments = tuple(inputs() if callable(inputs) else inputs)
    first: list[torch.Tensor] | None = None
    seeds: list[torch.Tensor] = []
    for repeat in range(repeats):
        copies = fresh_copies(arguments)
        outputs = tensors(fn(*copies))
        leaves = [
            value for value in copies if isinstance(value, torch.Tensor) and value.requires_grad
        ]
        if not outputs:
            raise BadInput("fn returned no tensor: nothing to compare")
        results = list(outputs)
        differentiable = [out for out in outputs if out.requires_grad]
        if leaves and differentiable:
            seeds = seeds or [torch.randn_like(out) for out in differentiable]
            gradients = torch.autograd.grad(differentiable, leaves, seeds, allow_unused=True)
            results += [gradient for gradient in gradients if gradient is not None]
        if first is None:
            first = [result.detach().clone() for result in results]
            continue
        for i, (expected, result) in enumerate(zip(first, results, strict=True)):
            differs = bits(expected) != bits(result)
            if bool(differs.any()):
                result_name = "out" if i < len(outputs) else f"gradient {i - len(outputs)}"
                raise AssertionError(
                    f"{result_name} of repeat {repeat + 1} differs from the first in "
                    f"{int(differs.sum())} of {differs.numel()} elements"
                )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's elements as integers of the same width (shape kept for 1 to 8 bytes)."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(width[tensor.element_size()])


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether two tensors have the same shape and dtype, and bits; by value beyond 8 bytes."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.element_size() > 8:
        return bool((first == second).all())
    return torch.equal(bits(first), bits(second))


def differing_rows(one: torch.Tensor, *references: torch.Tensor) -> torch.Tensor:
    """Return the rows, places in the first dimension, in which a tensor has other bits than others.

    On the CPU part by part: most of a large cache is equal, and to see that takes no memory.
    """
    size = -(-one.shape[0] // (_PARTS if one.device.type == "cpu" else 1))
    places = []
    for begin in range(0, one.shape[0], size):
        part, *rest = (tensor[begin : begin + size] for tensor in (one, *references))
        unlike = [bits(x) for x in rest if not same_bits(part, x)]
        if unlike:
            differs = torch.stack([(bits(part) != x).flatten(1).any(1) for x in unlike]).any(0)
            places.append(begin + differs.nonzero().flatten())
    return torch.cat(places) if places else torch.empty(0, dtype=torch.int64, device=one.device)
