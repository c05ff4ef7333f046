"""What reusing tensors is worth: the same call timed with fresh tensors and with known ones.

Counting work sees what goes through torch's dispatcher; a compiled extension is seen here only.
A GPU's blocks meet the same content again and again, so a block is timed on new content as well.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import SCALABLE, Held, activations
from pytest_kopt.honesty.renewal import Renewal
from pytest_kopt.measure.engine import Block
from pytest_kopt.numerics.nested import fresh_copies, fresh_copy, tensors

MOST_PAIRS, LEAST_PAIRS, SECONDS = 5, 3, 0.02
#: Calls in front of a timed one, as far as time allows: a cache may wake after many equal calls.
#: Where known tensors gain nothing by so many, a few are enough for the other pairs.
MOST_CALLS, _FEW_CALLS, _NOTHING = 64, 8, 0.05
#: A fresh tensor has to take so many times as long in every single pair, twice over, before a cache
#: is seen in it: some processors take up to three times as long for the first call on another
#: object, whatever is in it (seen on Xeons with calls of 40 µs).
CACHED_RATIO = 4.0
#: Seconds that such a first call takes longer; what known tensors gain beyond that is the kernel's.
_SWITCHING = 100e-6
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


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of a call with tensors that it knows and of one with fresh ones."""

    known: float
    fresh: float

    @property
    def log_ratio(self) -> float:
        """The time with fresh tensors over that with known ones."""
        return math.log(self.fresh / self.known)

    @property
    def log_gain(self) -> float:
        """The same, without what the processor may take for another object."""
        slower = self.fresh > self.known
        fresh = max(self.fresh - _SWITCHING, self.known) if slower else self.fresh
        return math.log(fresh / self.known)


def reuse_pairs(
    function: Callable[..., Any],
    given: Sequence[Any],
    weights: Sequence[int],
    synchronize: Callable[[], None],
    backward: bool,
    rewritten: Collection[int] = (),
    *,
    in_order: bool = False,
) -> list[Pair]:
    """Time calls with fresh tensors and with known ones, in turns.

    Fresh tensors are new objects with new content (a slightly scaled copy, so that sorted, positive
    or definite inputs stay so); known ones were the arguments of the calls before. In front of a
    fresh call stand as many calls as in front of a known one, each on other content. All are read
    once in front of the timed call, so that the processor's caches hold either. Parameters stay the
    same objects; what a call writes to (`rewritten`) is restored in front of it. With `in_order`
    elements keep their places.
    """
    run = partial(_timed, function, synchronize, backward)
    known = Held(fresh_copies(given), rewritten)
    grads = run(known)[1]
    first = run(known, grads)[0]
    # After one that was held up, too few would stand in front for a patient cache to wake.
    short = [run(known, grads)[0] for _ in range(2 if first < SECONDS else 0)]
    once = max(min([first, *short]), 1e-9)
    pairs = max(LEAST_PAIRS, min(MOST_PAIRS, int(SECONDS / (4 * once))))
    calls = max(1, min(MOST_CALLS, int(SECONDS / once)))

    def fresh(number: int) -> tuple[Held, list[torch.Tensor]]:
        scale = 1 + number / 128
        items = [x if i in weights else _scaled(x, scale) for i, x in enumerate(known.source)]
        return Held(items, rewritten), [_scaled(grad, scale) for grad in grads]

    found = []
    for number in range(1, pairs + 1):
        times = {}
        for name in ("known", "fresh") if number % 2 else ("fresh", "known"):
            before, timed = (
                [(known, grads)] * 2
                if name == "known"
                else [fresh(2 * number), fresh(2 * number + 1)]
            )
            changing = [*activations(before[0].source, weights), *before[1]]
            renewal = Renewal(changing if name == "fresh" else (), in_order=in_order)
            for call in range(calls):
                renewal.write(call)
                run(*before)
            times[name] = run(*timed)[0]
        found.append(Pair(**times))
        if found[0].log_gain < _NOTHING and not cached(found[:1]):
            calls = min(calls, _FEW_CALLS)
    return found


def _scaled(item: Any, scale: float) -> Any:
    copy = fresh_copy(item)
    if isinstance(copy, torch.Tensor) and copy.dtype in SCALABLE:
        with torch.no_grad():
            copy.mul_(scale)
    return copy


def cached(pairs: Sequence[Pair]) -> bool:
    """Say whether fresh tensors took so much longer in every pair that a cache must have missed."""
    return min(pair.log_ratio for pair in pairs) > math.log(CACHED_RATIO)


def known_content_gain(
    block: Block, changing: Sequence[torch.Tensor], seed: int, *, in_order: bool = False
) -> float:
    """Return how much longer a block's calls take on content they never met, as a log-ratio.

    First the content that was timed all along, then content that is new each time: both are written
    to the same places with the same work right before the calls. What a device gains is seen again
    each time that the last content has become known, or it was the device's clock; 0.0 where it is
    not.
    """
    renewal, dice = Renewal(changing, in_order=in_order), random.Random(seed)
    known, fresh = list[float](), list[float]()
    # On the CPU every block meets new content as it is.
    if not renewal.changes_anything or type(block).run_after is Block.run_after:
        return 0.0
    for number in range(_ROUNDS):
        for _ in range(_SETTLING if number else _WARMING):
            block.run()
        known += [block.run_after(renewal.again) for _ in range(_KNOWN)]
        for _ in range(_FRESH):
            content = dice.getrandbits(62)
            fresh.append(block.run_after(partial(renewal.write, content)))
            # One of each in a round may be an outlier.
            if not _are_slower(fresh, known, outliers=number + 1):
                return 0.0
    return math.log(statistics.median(fresh) / statistics.median(known))


def _are_slower(fresh: Sequence[float], known: Sequence[float], outliers: int) -> bool:
    """Say whether, of each all but so many, every time on new content is above every known one."""
    if len(fresh) <= outliers:
        return True
    return math.log(sorted(fresh)[outliers] / sorted(known)[-1 - outliers]) > _APART


def reuse_finding(ratios: Sequence[float]) -> Finding:
    """Return the finding about a call that is only fast for tensors it has seen."""
    gain = (math.exp(statistics.median(ratios)) - 1) * 100
    return Finding(
        "inflation",
        f"tensors that were seen before make the call {gain:.0f} % faster than fresh ones: a gain "
        "that no training step has",
        advice="keep no result between calls, in a library or extension either",
        bucket="W3",
    )


def _timed(
    function: Callable[..., Any],
    synchronize: Callable[[], None],
    backward: bool,
    held: Held,
    grads: Sequence[torch.Tensor] = (),
) -> tuple[float, list[torch.Tensor]]:
    """Return the seconds of a call (with its backward) and the grad_outs that it took."""
    held.restore()
    given = held.live
    for item in (*tensors(given), *grads):
        item.detach().sum()
    leaves = [item for item in tensors(given) if item.requires_grad]
    synchronize()
    begin = perf_counter()
    outputs = [out for out in tensors(function(*given)) if out.requires_grad]
    taken: list[torch.Tensor] = []
    if backward and outputs:
        taken = list(grads) or [torch.ones_like(out) for out in outputs]
        torch.autograd.grad(outputs, leaves, taken, allow_unused=True)
    synchronize()
    return perf_counter() - begin, taken
