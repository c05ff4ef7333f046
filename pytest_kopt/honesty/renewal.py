"""New content for every timed call, so that nothing a kernel kept is an answer.

A memo that compares every byte, and wakes after a dozen equal calls only, is right in every check
and answers nothing while it is timed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch

from pytest_kopt.honesty import inputs

#: How far from one the factors lie by which content is scaled, up and down in turns, so that the
#: rounding of a narrow dtype does not undo it. A few elements change places as well: of a product
#: the answer to a multiple is known.
_NEAREST, _FARTHEST = 0.03, 0.125


class Renewal:
    """Changes tensors in place, behind autograd's back, each time it is called."""

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        seed: int,
        *,
        restores: bool = False,
        in_order: bool = False,
    ) -> None:
        """Take the floating-point ones; integers can be a structure.

        With `in_order`, and in what says everything twice, elements keep their places. With
        `restores` a copy of what they hold now is kept, from which `begin` begins.
        """
        found = [inputs.once(tensor.data) for tensor in tensors if tensor.is_floating_point()]
        self._scaled = [tensor for tensor in found if tensor.dtype in inputs.SCALABLE]
        self._mixed = [
            tensor
            for tensor in found
            if not in_order and inputs.has_room(tensor) and not inputs.says_twice(tensor)
        ]
        self._dice = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._scale = 1.0
        self._origins = [(tensor, tensor.clone()) for tensor in found] if restores else []

    def begin(self, seed: int) -> None:
        """Begin anew: from now on the content is what follows from the seed, and nothing else."""
        for tensor, origin in self._origins:
            tensor.copy_(origin)
        self._dice.seed(seed)
        self._generator.manual_seed(seed)
        self._scale = 1.0

    @property
    def changes_anything(self) -> bool:
        """Whether there is a tensor that it can change."""
        return bool(self._scaled or self._mixed)

    def __call__(self) -> None:
        """Write content that was not there before."""
        step = self._dice.uniform(_NEAREST, _FARTHEST)
        scale = 1 - step if self._scale > 1 else 1 + step
        self._write(scale / self._scale, moves=True)
        self._scale = scale

    def again(self) -> None:
        """Write the content that is there once more, with the same work."""
        self._write(1.0, moves=False)

    def _write(self, factor: float, *, moves: bool) -> None:
        for tensor in self._scaled:
            tensor.mul_(factor)
        # Tensors of a size share their places: a pool has hundreds, and drawing is slow.
        places: dict[tuple[int, torch.device], torch.Tensor] = {}
        for tensor in self._mixed:
            size = tensor.numel(), tensor.device
            if size not in places:
                places[size] = inputs.places(size[0], self._generator).to(tensor.device)
            inputs.exchange(tensor, places[size], moves=moves)
