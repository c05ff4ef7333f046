"""Has torch compute what a function computes in another dtype."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pytest_kopt.numerics.nested import fresh_copies, mapped, tensors


class ComputingIn(TorchDispatchMode):
    """Has every operation take and give a dtype, of more than 8 bits, in place of a wider one.

    float64 stands in for float32, and for no narrower one: a case may ask for a rounding to that.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say whether to hide from torch's compiler; doing so imports it, which takes 0.7 s."""
        return "torch._dynamo" in sys.modules

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # What is drawn is rounded afterwards: another dtype would draw other numbers.
        if tensors([*args]):
            args, kwargs = tree_map(self._named, args), tree_map(self._named, kwargs)
        # What is written in place has the dtype that it was made with.
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        return tree_map(self._converted, func(*args, **kwargs))

    def arguments(self, arguments: Sequence[Any]) -> list[Any]:
        """Return copies of arguments in the dtype, their gradients asked of the same ones."""

        def narrowed(leaf: Any) -> Any:
            converted = self._converted(leaf)
            return (
                converted
                if converted is leaf
                else converted.detach().requires_grad_(leaf.requires_grad)
            )

        return [mapped(argument, narrowed) for argument in fresh_copies(arguments)]

    def _converted(self, value: Any) -> Any:
        replaced = isinstance(value, torch.Tensor) and self._replaces(value.dtype)
        return value.to(self._dtype) if replaced else value

    def _named(self, value: Any) -> Any:
        return self._dtype if isinstance(value, torch.dtype) and self._replaces(value) else value

    def _replaces(self, dtype: torch.dtype) -> bool:
        if self._dtype is torch.float64:
            return dtype is torch.float32
        return dtype.is_floating_point and dtype.itemsize > self._dtype.itemsize > 1
