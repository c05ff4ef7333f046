"""Values that hold others: what kernels take and return, flat and by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch

_CONTENTS = (torch.Tensor, torch.Generator)
_NUMBERS = (bool, int, float, str)


def members(item: Any) -> dict[str, Any] | None:
    """Return what a list, tuple, dict or dataclass holds, by the text that picks it; else None."""
    if isinstance(item, dict):
        return {f"[{key!r}]": value for key, value in item.items()}
    if isinstance(item, list | tuple):
        return {f"[{place}]": value for place, value in enumerate(item)}
    if is_dataclass(item) and not isinstance(item, type):
        return {f".{part.name}": getattr(item, part.name) for part in fields(item)}
    return None


def flatten(item: Any, name: str) -> dict[str, Any]:
    """Return what an item holds in the end, by name: `out['loss']`, `out[1].logits`, `input 2`."""
    while isinstance(item, list | tuple) and len(item) == 1:
        (item,) = item
    return dict(_leaves(item, name))


def _leaves(item: Any, name: str) -> Iterator[tuple[str, Any]]:
    inside = members(item)
    if inside is None:
        yield name, item
        return
    for place, member in inside.items():
        yield from _leaves(member, name + place)


def tensors(item: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in _leaves(item, "") if isinstance(leaf, torch.Tensor)]


def contents(item: Any) -> list[torch.Tensor | torch.Generator]:
    """Return what can be written over in an item, in order: tensors and generators."""
    return [leaf for _, leaf in _leaves(item, "") if isinstance(leaf, _CONTENTS)]


def mapped(item: Any, change: Callable[[Any], Any], kinds: tuple[type, ...] = _CONTENTS) -> Any:
    """Return an item of the same build with every leaf changed; what holds no `kinds` is itself."""
    if not any(isinstance(leaf, kinds) for _, leaf in _leaves(item, "")):
        return item
    if isinstance(item, dict):
        made = {key: mapped(value, change, kinds) for key, value in item.items()}
        return made if type(item) is dict else type(item)(made)
    if isinstance(item, list | tuple):
        values = [mapped(value, change, kinds) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
    if is_dataclass(item) and not isinstance(item, type):
        parts = {part.name: getattr(item, part.name) for part in fields(item) if part.init}
        return replace(item, **{k: mapped(value, change, kinds) for k, value in parts.items()})
    return change(item)


class Filled(NamedTuple):
    """What a call returned and what it put into lists, dicts or dataclasses among its arguments.

    `names` are those of the results, as `flatten` gives them, `values` the results themselves.
    """

    names: tuple[str, ...]
    values: tuple[Any, ...]


def with_own_containers(item: Any) -> Any:
    """Return a list, dict or dataclass that holds the same, into which a call can put results."""
    if type(item) in (list, dict):
        values = map(with_own_containers, item.values() if isinstance(item, dict) else item)
        return dict(zip(item, values, strict=True)) if isinstance(item, dict) else [*values]
    if is_dataclass(item) and not isinstance(item, type) and not item.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        own = copy.copy(item)
        for part in fields(item):
            setattr(own, part.name, with_own_containers(getattr(item, part.name)))
        return own
    return item


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


def fresh_copies(given: Sequence[Any]) -> list[Any]:
    """Return copies of arguments: values, strides and requires_grad, and what shares memory.

    What can hold other things is a copy as well: a call may put results there.

    A tensor that is given twice is one copy given twice, and views of one storage are views of one
    copy of it. A generator is copied with its state; anything else is the item itself.
    """
    distinct = {id(tensor): tensor for tensor in tensors(given)}
    known: dict[int, torch.Tensor] = {}
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
        if id(leaf) not in known:
            place = _place(leaf)
            if place is not None and (owners[place] > 1 or not _is_dense(leaf)):
                storage = copied.setdefault(place, leaf.untyped_storage().clone())
                held = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
                held.set_(storage, leaf.storage_offset(), leaf.shape, leaf.stride())
            else:
                held = leaf.detach().clone(memory_format=torch.preserve_format)
            known[id(leaf)] = held.requires_grad_(leaf.requires_grad)
        return known[id(leaf)]

    return [mapped(with_own_containers(item), copied_leaf) for item in given]


def fresh_copy(item: Any) -> Any:
    return fresh_copies([item])[0]


def storages(given: Any) -> frozenset[int]:
    """Return the addresses of the memory that tensors among arguments lie in."""
    return frozenset(t.untyped_storage().data_ptr() for t in tensors(given))


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
