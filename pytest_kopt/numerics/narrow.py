"""What arithmetic in a dtype reaches: a reference run by torch in the dtype of the output."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pytest_kopt.numerics.nested import fresh_copies, mapped, tensors

#: dB below what torch reaches that a gate may ask for: twice its error, for another order of sums.
SLACK_DB = 6.0


class ComputingIn(TorchDispatchMode):
    """Has every operation take and give a dtype where it would take or give a wider one.

    Formats of 8 bits and fewer hold results and are not computed in: nothing is changed for them.
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
        result = func(*args, **kwargs)
        # What is written in place has the dtype that it was made with.
        return result if func._schema.is_mutable else tree_map(self._held, result)

    def arguments(self, given: Sequence[Any]) -> list[Any]:
        """Return copies of arguments in the dtype, their gradients asked of the same ones."""

        def narrowed(leaf: Any) -> Any:
            held = self._held(leaf)
            return held if held is leaf else held.detach().requires_grad_(leaf.requires_grad)

        return [mapped(item, narrowed) for item in fresh_copies(given)]

    def _held(self, item: Any) -> Any:
        wider = isinstance(item, torch.Tensor) and self._is_wider(item.dtype)
        return item.to(self._dtype) if wider else item

    def _named(self, item: Any) -> Any:
        return self._dtype if isinstance(item, torch.dtype) and self._is_wider(item) else item

    def _is_wider(self, dtype: torch.dtype) -> bool:
        return dtype.is_floating_point and dtype.itemsize > self._dtype.itemsize > 1


def proposed(reached_db: float) -> float | None:
    """Return the SNR in dB that a gate may ask for where torch reaches so much.

    None where no number is told: a result that is exact, or wrong.
    """
    return math.floor(reached_db - SLACK_DB) if math.isfinite(reached_db) else None
