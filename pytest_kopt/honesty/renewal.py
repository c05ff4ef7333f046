"""New content for calls, so that nothing a kernel kept is an answer.

A memo that compares every byte, and wakes after a dozen equal calls only, is right in every check
and answers nothing while it is timed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch

from pytest_kopt.honesty import inputs

#: How far from one the factors lie by which content is scaled, up or down, so that the rounding of
#: a narrow dtype does not undo it. A few elements change places as well: of a product the answer to
#: a multiple is known.
_NEAREST, _FARTHEST = 0.03, 0.125


class Renewal:
    """Writes content that follows from a seed into tensors, behind autograd's back."""

    def __init__(self, tensors: Iterable[torch.Tensor], *, in_order: bool = False) -> None:
        """Take the floating-point ones as they are now; integers can be a structure.

        With `in_order`, and in what says everything twice, elements keep their places.
        """
        floats = [inputs.once(tensor.data) for tensor in tensors if tensor.is_floating_point()]
        self._origins = [(tensor, tensor.clone()) for tensor in floats]
        self._mixed = [
            tensor
            for tensor in floats
            if not in_order and inputs.has_room(tensor) and not inputs.says_twice(tensor)
        ]
        #: Whose content is there, None: the first.
        self._seed: int | None = None

    @property
    def changes_anything(self) -> bool:
        """Whether there is a tensor that it can change."""
        return bool(self._mixed) or any(t.dtype in inputs.SCALABLE for t, _ in self._origins)

    def write(self, seed: int) -> None:
        """Write the content of a seed: the first one, scaled, with a few elements exchanged."""
        self._seed = seed
        dice = random.Random(seed)
        self._write(1 + dice.choice((-1, 1)) * dice.uniform(_NEAREST, _FARTHEST), seed)

    def again(self) -> None:
        """Write the content that was written last, with the same work."""
        if self._seed is None:
            self._write(1.0, 0, moves=False)
        else:
            self.write(self._seed)

    def _write(self, factor: float, seed: int, *, moves: bool = True) -> None:
        for tensor, origin in self._origins:
            if tensor.dtype in inputs.SCALABLE:
                torch.mul(origin, factor, out=tensor)
            else:
                tensor.copy_(origin)
        generator = torch.Generator().manual_seed(seed)
        # Tensors of a size share their places: a pool has hundreds, and drawing is slow.
        places: dict[tuple[int, torch.device], torch.Tensor] = {}
        for tensor in self._mixed:
            size = tensor.numel(), tensor.device
            if size not in places:
                places[size] = inputs.places(size[0], generator).to(tensor.device)
            inputs.exchange(tensor, places[size], moves=moves)
