"""Values that hold others, as kernels take and return them: flat, by name, and bit by bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import _engine_run_backward

from pytest_kopt.errors import BadInput

_CONTENTS = (torch.Tensor, torch.Generator)
_NUMBERS = (bool, int, float, str)
#: A tensor on the CPU is compared in so many parts, one after the other.
_PARTS = 512


def backward(
    outputs: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor] = (),
    *,
    retain_graph: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of some leaves, None for one that the outputs do not depend on.

    Without leaves all of them accumulate theirs. This is the call behind `torch.autograd.grad` and
    `torch.autograd.backward`, which compare shapes by a symbolic algebra: its import takes as long
    as a third of torch's.
    """
    ways = {"allow_unreachable": True, "accumulate_grad": not leaves}
    gradients: tuple[torch.Tensor | None, ...] = _engine_run_backward(
        tuple(outputs), tuple(incoming), retain_graph, False, tuple(leaves), **ways
    )
    return gradients


def members(tree: Any) -> dict[str, Any] | None:
    """Return what a list, tuple, dict or dataclass holds, by the text that picks it; else None."""
    if isinstance(tree, dict):
        return {f"[{key!r}]": value for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return {f"[{place}]": value for place, value in enumerate(tree)}
    if is_dataclass(tree) and not isinstance(tree, type):
        return {f".{part.name}": getattr(tree, part.name) for part in fields(tree)}
    return None


def flatten(tree: Any, name: str) -> dict[str, Any]:
    """Return what an item holds in the end, by name: `out['loss']`, `out[1].logits`, `input 2`."""
    while isinstance(tree, list | tuple) and len(tree) == 1:
        (tree,) = tree
    return dict(_leaves(tree, name))


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    inside = members(tree)
    if inside is None:
        yield name, tree
        return
    for place, member in inside.items():
        yield from _leaves(member, name + place)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in _leaves(tree, "") if isinstance(leaf, torch.Tensor)]


def stored(tree: Any) -> list[torch.Tensor | float]:
    """Return the tensors and numbers of an item, in order."""
    return [leaf for _, leaf in _leaves(tree, "") if isinstance(leaf, torch.Tensor | int | float)]


def contents(tree: Any) -> list[torch.Tensor | torch.Generator]:
    """Return what can be written over in an item, in order: tensors and generators."""
    return [leaf for _, leaf in _leaves(tree, "") if isinstance(leaf, _CONTENTS)]


def mapped(tree: Any, change: Callable[[Any], Any], kinds: tuple[type, ...] = _CONTENTS) -> Any:
    """Return an item of the same build with every leaf changed; what holds no `kinds` is itself."""
    if not any(isinstance(leaf, kinds) for _, leaf in _leaves(tree, "")):
        return tree
    if isinstance(tree, dict):
        mapping = {key: mapped(value, change, kinds) for key, value in tree.items()}
        return mapping if type(tree) is dict else type(tree)(mapping)
    if isinstance(tree, list | tuple):
        values = [mapped(value, change, kinds) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = {part.name: getattr(tree, part.name) for part in fields(tree) if part.init}
        return replace(tree, **{k: mapped(value, change, kinds) for k, value in parts.items()})
    return change(tree)


class Filled(NamedTuple):
    """The results of a call, and those in lists, dicts or dataclasses of its arguments.

    `names` are those of the results, as `flatten` gives them, `values` the results themselves.
    """

    names: tuple[str, ...]
    values: tuple[Any, ...]


def with_own_containers(tree: Any) -> Any:
    """Return a list, dict or dataclass that holds the same, into which a call can put results."""
    if type(tree) in (list, dict):
        values = map(with_own_containers, tree.values() if isinstance(tree, dict) else tree)
        return dict(zip(tree, values, strict=True)) if isinstance(tree, dict) else [*values]
    if is_dataclass(tree) and not isinstance(tree, type) and not tree.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        duplicate = copy.copy(tree)
        for part in fields(tree):
            setattr(duplicate, part.name, with_own_containers(getattr(tree, part.name)))
        return duplicate
    return tree


def is_refilled(used: Any, pristine: Any) -> bool:
    """Say whether an item holds something else by name, or something of another kind."""
    now, before = flatten(used, ""), flatten(pristine, "")
    return now.keys() != before.keys() or any(
        type(now[name]) is not type(leaf) or _is_another_number(now[name], leaf)
        for name, leaf in before.items()
    )


def _is_another_number(now: Any, before: Any) -> bool:
    # NaN differs from itself.
    return isinstance(before, _NUMBERS) and now is not before and bool(now != before)


def fresh_copies(arguments: Sequence[Any]) -> list[Any]:
    """Return copies of arguments: values, strides and requires_grad, and what shares memory.

    Objects that can hold others are copied as well: a call may put results there.

    A tensor that is given twice is one copy given twice, and views of one storage are views of one
    copy of it. A generator is copied with its state; anything else is the item itself.
    """
    distinct = {id(tensor): tensor for tensor in tensors(arguments)}
    copies: dict[int, torch.Tensor] = {}
    owners: dict[int, int] = {}
    for tensor in distinct.values():
        if (place := _place(tensor)) is not None:
            owners[place] = owners.get(place, 0) + 1
    copied: dict[int, torch.UntypedStorage] = {}

    def copied_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Generator):
            generator = torch.Generator(leaf.device)
            generator.set_state(leaf.get_state())
            return generator
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in copies:
            place = _place(leaf)
            if place is not None and (owners[place] > 1 or not _is_dense(leaf)):
                storage = copied.setdefault(place, leaf.untyped_storage().clone())
                duplicate = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
                duplicate.set_(storage, leaf.storage_offset(), leaf.shape, leaf.stride())
            else:
                duplicate = leaf.detach().clone(memory_format=torch.preserve_format)
            copies[id(leaf)] = duplicate.requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    return [mapped(with_own_containers(argument), copied_leaf) for argument in arguments]


def storages(tree: Any) -> frozenset[int]:
    """Return the addresses of the memory that tensors among arguments lie in."""
    return frozenset(t.untyped_storage().data_ptr() for t in tensors(tree))


def address(tensor: torch.Tensor) -> int:
    """Return where a plain tensor's storage begins, without having a lazy copy made."""
    start: int = torch._C._data_address(tensor)  # type: ignore[attr-defined]
    return start - int(tensor.storage_offset()) * tensor.element_size()


def _place(tensor: torch.Tensor) -> int | None:
    """Return where a tensor's memory is, None where it has none of the usual kind."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr() or None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Say whether a clone keeps the strides; an expanded tensor's copy holds every element."""
    size = tensor.numel() * tensor.element_size()
    whole = size == tensor.untyped_storage().nbytes()
    return tensor.is_contiguous() or whole or 0 in tensor.stride()


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
            raise BadInput("fn returned no tensor", fix="return the tensors to compare")
        results = list(outputs)
        differentiable = [out for out in outputs if out.requires_grad]
        if leaves and differentiable:
            seeds = seeds or [torch.randn_like(out) for out in differentiable]
            gradients = backward(differentiable, seeds, leaves)
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
