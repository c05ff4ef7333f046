"""A case with other inputs: what it is, and how the inputs of a case are rewritten."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.order import seed_everything
from pytest_kopt.honesty.inputs import SCALABLE, says_twice
from pytest_kopt.honesty.nearby_shapes import Kind
from pytest_kopt.numerics.compare import compute_snr
from pytest_kopt.numerics.nested import mapped, tensors

_CHANGEABLE = (torch.Tensor, torch.dtype, bool, int, float)
#: Of a leaf, and of all arguments.
Change = Callable[[Any, torch.Generator], Any]
Rewrite = Callable[[list[Any], torch.Generator], list[Any]]


class Variant(NamedTuple):
    """A case with other inputs.

    `where` says what is changed if there are several changes, one after the other. `lay` puts the
    inputs, and `incoming` the incoming gradients, into other memory than they are drawn in.
    `counts` says by the inputs and the reference's results whether anything is required. `of` makes
    of a version what is called in its place. With `untried` there is nothing to try, for that
    reason.
    """

    case: Case
    where: str = ""
    kind: Kind = ""
    lay: Callable[[list[Any]], list[Any]] = list
    incoming: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    counts: Callable[[Sequence[Any], Sequence[Any]], bool] = lambda given, expected: True
    of: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda version: version
    untried: str = ""


class Drawn(NamedTuple):
    """A case, arguments that it drew, the seed of its variants, and sizes that a test varies."""

    case: Case
    inputs: list[Any]
    seed: int
    carried: Collection[int]

    def changed(self, rewrite: Rewrite, **changes: Any) -> Case:
        """Return the case with inputs that are rewritten once they are drawn."""

        def inputs() -> list[Any]:
            generator = torch.Generator().manual_seed(self.seed)
            return rewrite(list(self.case.arguments()), generator)

        return replace(self.case, inputs=inputs, **changes)

    def one(self, place: int, number: int, change: Change, **changes: Any) -> Case:
        """Return the case with one leaf of its inputs changed, by its number in its input."""
        return self.changed(alone(place, number, change), **changes)

    def everywhere(self, change: Change, *, weights: bool = False, **changes: Any) -> Case:
        """Return the case with every leaf of its inputs changed, of weights where it is asked."""
        return self.changed(self.each(change, weights=weights), **changes)

    def each(self, change: Change, *, weights: bool = False) -> Rewrite:
        places = {*self.places(weights=weights)}

        def rewrite(given: list[Any], generator: torch.Generator) -> list[Any]:
            return [
                mapped(x, lambda leaf: change(leaf, generator), _CHANGEABLE) if i in places else x
                for i, x in enumerate(given)
            ]

        return rewrite

    def results(self, case: Case) -> list[torch.Tensor] | None:
        """Return what the reference gives for the inputs of a variant, None where it raises."""
        with suppress(Exception):
            seed_everything(self.seed)
            given = list(case.arguments())
            returned = case.positional(case.reference)(*given)
            written = [given[place] for place in case.writes]
            return [x.detach() for x in tensors([returned, *written])]
        return None

    def is_supported(self, case: Case) -> bool:
        """Say whether the reference gives results for the inputs of a variant."""
        return self.results(case) is not None

    def places(self, *, weights: bool = False) -> list[int]:
        return [i for i in range(len(self.inputs)) if weights or i not in self.case.weights]

    def leaves(self, *, weights: bool = False) -> Iterator[tuple[int, int, Any]]:
        """Yield every leaf of the inputs: its input's place, its number there, and itself."""
        for place in self.places(weights=weights):
            for number, leaf in enumerate(_in_order(self.inputs[place])):
                yield place, number, leaf

    def alone(
        self, fits: Callable[[Any], bool], *, weights: bool = False
    ) -> Iterator[tuple[int, int, Any]]:
        """Yield the fitting leaves; of an input with many the first, the last and one between."""
        fitting = (leaf for leaf in self.leaves(weights=weights) if fits(leaf[2]))
        for _, group in itertools.groupby(fitting, key=lambda leaf: leaf[0]):
            own = list(group)
            yield from (own[place] for place in ends(len(own)))

    @property
    def sizes(self) -> set[Any]:
        return {*self.case.dims.values(), *(n for x in tensors(self.inputs) for n in x.shape)}


def differ(
    one: Sequence[torch.Tensor] | None, other: Sequence[torch.Tensor] | None, below_db: float
) -> bool:
    """Say whether two results are known and further apart than an SNR says."""
    if one is None or other is None or len(one) != len(other):
        return False
    # NaN, and formats that torch computes nothing with, show nothing.
    with suppress(Exception):
        return any(
            a.shape != b.shape or compute_snr(b, a) < below_db
            for a, b in zip(one, other, strict=True)
        )
    return False


def _in_order(item: Any) -> list[Any]:
    """Return the leaves of an item as `alone` counts them."""
    leaves: list[Any] = []

    def see(leaf: Any) -> Any:
        leaves.append(leaf)
        return leaf

    mapped(item, see, (object,))
    return leaves


def alone(place: int, number: int, change: Change) -> Rewrite:
    """Return what changes one leaf of the inputs and no other."""

    def rewrite(given: list[Any], generator: torch.Generator) -> list[Any]:
        count = itertools.count()
        given[place] = mapped(
            given[place],
            lambda leaf: change(leaf, generator) if next(count) == number else leaf,
            (object,),
        )
        return given

    return rewrite


def replaced(place: int, by: int | None) -> Rewrite:
    """Return what gives the input of another place there, or nothing."""

    def rewrite(given: list[Any], generator: torch.Generator) -> list[Any]:
        given[place] = None if by is None else given[by]
        return given

    return rewrite


def both(first: Rewrite, second: Rewrite) -> Rewrite:
    return lambda given, generator: second(first(given, generator), generator)


def kept_leaf(x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Change a tensor's values or memory; one that asks for a gradient goes on doing so."""
    return change(x.detach()).requires_grad_(x.requires_grad)


def beside(x: torch.Tensor, generator: torch.Generator) -> torch.Generator:
    """Return a generator on a tensor's device: millions of elements take a processor seconds."""
    if x.device.type == "cpu":
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(x.device).manual_seed(seed)


def floating(change: Change) -> Change:
    """Return the change for tensors of floating-point numbers."""

    def changed(x: Any, generator: torch.Generator) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype not in SCALABLE:
            return x

        def content(plain: torch.Tensor) -> torch.Tensor:
            # Tables of angles say everything twice, and kernels read one half.
            if not says_twice(plain):
                made: torch.Tensor = change(plain, generator)
                return made
            half = plain[..., : x.shape[-1] // 2]
            twice: torch.Tensor = change(half, generator).repeat(*[1] * (x.ndim - 1), 2)
            return twice

        return kept_leaf(x, content)

    return changed


def ends(count: int) -> list[int]:
    """Return the first place, the last, and one between."""
    return sorted({0, count // 2, count - 1})
