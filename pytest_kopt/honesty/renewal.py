"""New content and poisoned memory for calls, so that nothing a kernel kept is an answer.

A memo that compares every byte, and wakes after a dozen equal calls only, is right in every check
and answers nothing while it is timed. A GPU's blocks meet the same content again and again, so a
block is timed on new content as well. Fresh memory is full of NaN, and results are wiped out.
"""

from __future__ import annotations

import math
import random
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.utils.deterministic

from pytest_kopt.honesty import inputs
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import once
from pytest_kopt.measure.engine import Block
from pytest_kopt.measure.wall import LARGEST_KEPT
from pytest_kopt.numerics.nested import storages, tensors

#: How far from one the factors lie by which content is scaled, up or down, so that the rounding of
#: a narrow dtype does not undo it. A few elements change places as well: of a product the answer to
#: a multiple is known.
_NEAREST, _FARTHEST = 0.03, 0.125
_STEPS = 1 << 16
#: A device does the same work in the same time: of so many blocks on known and on new content the
#: times lie that far apart, as a log-ratio, where something is remembered.
_KNOWN, _FRESH, _APART = 4, 8, 0.02
#: How often that is asked, each answer held against all before: at its power cap a device becomes
#: slower by 5 to 10 % while it is asked. With products of 8192 on an H200 85 of 138 first answers
#: were wrong.
_ROUNDS = 4
#: Blocks after which new content is as well known as what was timed, and after which a device that
#: rested has come to its clock.
_SETTLING, _WARMING = 100, 3
#: What torch.use_deterministic_algorithms calls; that one imports the compiler first, for seconds.
_set_deterministic = torch._C._set_deterministic_algorithms
#: Blocks of a size that are filled and freed, so that the allocator has them at hand.
_BLOCKS = 3
#: Right in ordinary memory, wrong where allocations hold NaN.
UNWRITTEN = Finding(
    "unwritten-output",
    ("the result is wrong if fresh memory holds NaN: the kernel does not write part of it"),
    advice="write every element of the result",
    rejects=False,
)


class Places:
    """The places of exchanged elements: tensors of a size share theirs, as drawing is slow."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn: dict[tuple[int, torch.device], torch.Tensor] = {}

    def among(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return places of a flat tensor of this size: int64, where the tensor lies."""
        size = tensor.numel(), tensor.device
        if size not in self._drawn:
            # Of the size too, so that they do not depend on what else was asked for.
            generator = torch.Generator().manual_seed((self._seed + size[0]) % (1 << 63))
            self._drawn[size] = inputs.places(size[0], generator).to(tensor.device)
        return self._drawn[size]


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

    def write(self, seed: int, places: Places | None = None) -> None:
        """Write the content of a seed: the first one, scaled, with a few elements exchanged.

        Which ones `places` say, by default those of the seed.
        """
        self._seed = seed
        share = (seed >> 1) % _STEPS / _STEPS
        step = _NEAREST + share * (_FARTHEST - _NEAREST)
        self._write(1 + step if seed % 2 else 1 - step, places or Places(seed))

    def again(self) -> None:
        """Write the content that was written last, with the same work."""
        if self._seed is None:
            self._write(1.0, Places(0), moves=False)
        else:
            self.write(self._seed)

    def _write(self, factor: float, places: Places, *, moves: bool = True) -> None:
        for tensor, origin in self._origins:
            if tensor.dtype in inputs.SCALABLE:
                torch.mul(origin, factor, out=tensor)
            else:
                tensor.copy_(origin)
        for tensor in self._mixed:
            inputs.exchange(tensor, places.among(tensor), moves=moves)


def known_content_gain(
    block: Block, changing: Sequence[torch.Tensor], seed: int, *, in_order: bool = False
) -> float:
    """Return how much longer a block's calls take on content they never met, as a log-ratio.

    First the content that was timed all along, then content that is new each time: both are written
    to the same places with the same work right before the calls. A gain of the device's is there
    again each time that the last content has become known; otherwise it was the device's clock. 0.0
    where it is not.
    """
    renewal, dice = Renewal(changing, in_order=in_order), random.Random(seed)
    repeated, fresh = list[float](), list[float]()
    # On the CPU every block meets new content as it is.
    if not renewal.changes_anything or type(block).run_after is Block.run_after:
        return 0.0
    for number in range(_ROUNDS):
        for _ in range(_SETTLING if number else _WARMING):
            block.run()
        repeated += [block.run_after(renewal.again) for _ in range(_KNOWN)]
        for _ in range(_FRESH):
            content = dice.getrandbits(62)
            fresh.append(block.run_after(partial(renewal.write, content)))
            # One of each in a round may be an outlier; all others have to be slower.
            outliers = number + 1
            if len(fresh) > outliers:
                slowest, fastest = sorted(repeated)[-1 - outliers], sorted(fresh)[outliers]
                if math.log(fastest / slowest) <= _APART:
                    return 0.0
    return math.log(statistics.median(fresh) / statistics.median(repeated))


def known_content_finding(log_gain: float) -> Finding:
    """Return the finding about calls that are only fast for content they have seen."""
    gain = math.expm1(log_gain) * 100
    return Finding(
        "inflation",
        (
            f"input values of an earlier call make the call {gain:.0f} % faster than "
            "new ones: no training step has this gain"
        ),
        advice="keep no result between calls, also not in a library or an extension",
    )


def poison_freed(like: Iterable[torch.Tensor]) -> None:
    """Leave freed blocks full of NaN for the allocator to hand out, of these tensors' sizes.

    Works where allocators reuse blocks: always in CUDA's caching allocator, mostly on the CPU,
    whose large blocks go back to the system.
    """
    for tensor in {(t.dtype, t.device, t.numel()): t for t in like}.values():
        if tensor.device.type == "cpu" and tensor.nbytes >= LARGEST_KEPT:
            continue
        count = max(1, tensor.numel() * tensor.element_size() // 4)
        blocks = [torch.full((count,), math.nan, dtype=torch.float32, device=tensor.device)]
        blocks += [blocks[0].clone() for _ in range(_BLOCKS - 1)]
        del blocks


def wipe(results: Any, kept: Sequence[Any]) -> None:
    """Write zeros over tensors, but for those that share memory with what is `kept`."""
    memory = storages(kept)
    with torch.inference_mode():
        for tensor in tensors(results):
            if tensor.layout is torch.strided and not storages(tensor) & memory:
                once(tensor).zero_()


@contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Have torch fill everything that it allocates uninitialised: NaN, or the largest integer.

    torch does so in deterministic mode only, which therefore is on meanwhile, with its warnings
    about other operators silenced. Compiled functions are compiled again for that mode.
    """
    fill: Any = torch.utils.deterministic
    mode = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = fill.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _set_deterministic(True, warn_only=True)
        fill.fill_uninitialized_memory = True
        try:
            yield
        finally:
            fill.fill_uninitialized_memory = filled
            _set_deterministic(mode, warn_only=warn_only)
