"""A case with other inputs: what it is, and how the inputs of a case are changed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import has_skew, is_integer
from pytest_kopt.cases.order import seed_everything
from pytest_kopt.honesty.inputs import SCALABLE, says_twice
from pytest_kopt.honesty.nearby_shapes import Kind
from pytest_kopt.numerics.gates import snr
from pytest_kopt.numerics.nested import fresh_copies, mapped, tensors

#: A tenth of the result may be error with such values, whatever the dtype.
PLAINLY_RIGHT_DB = 20.0
LOOSE = snr(PLAINLY_RIGHT_DB)

#: Of a leaf, and of all arguments.
Change = Callable[[Any, torch.Generator], Any]
Rewrite = Callable[[Sequence[Any], torch.Generator], list[Any]]
#: An input's place, and the number of a leaf in it.
Leaf = tuple[int, int]
#: Which results count. Elements of a row may be equal: an index may name any of them. They may lie
#: close together: only the index counts. One row may be far larger: each row counts by itself.
Judged = Literal["all", "no indices", "indices", "each row"]


class Variant(NamedTuple):
    """A case with other inputs, gradients or surroundings; `where` says what is changed.

    With `untried` there is nothing to try, for that reason, unless another variant of its `part`, a
    size or a number, was tried. `lay` and `incoming` put inputs and incoming gradients into other
    memory. `counts` says by inputs and expected results whether anything is required. A version is
    called as `of` makes it, in the surroundings `around`.
    """

    case: Case
    where: str = ""
    kind: Kind = ""
    part: str = ""
    judged: Judged = "all"
    lay: Callable[[Sequence[Any]], list[Any]] = list
    incoming: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    counts: Callable[[Sequence[Any], Sequence[Any]], bool] = lambda inputs, expected: True
    of: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda version: version
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    untried: str = ""


class Drawn(NamedTuple):
    """A case, arguments that it drew, and the seed of its variants.

    `declared` is the case as its test declares it with some of its sizes moved, None if it cannot.
    """

    case: Case
    inputs: list[Any]
    seed: int
    declared: Callable[[Mapping[int, int]], Case | None]

    def rewritten(self, rewrite: Rewrite, **changes: Any) -> Case:
        """Return the case with inputs that are rewritten once they are drawn."""

        def inputs() -> list[Any]:
            return rewrite(self.case.arguments(), torch.Generator().manual_seed(self.seed))

        return replace(self.case, inputs=inputs, **changes)

    def changed(
        self, change: Change, at: Leaf | None = None, *, weights: bool = False, **changes: Any
    ) -> Case:
        """Return the case with one leaf of its inputs changed, or all, of weights if required."""
        untouched = () if weights or at else self.case.weights
        return self.rewritten(leafwise(change, at, untouched), **changes)

    def loose(self, change: Change, **changes: Any) -> Case:
        """Return the case with all floating-point values changed, of which 20 dB are required."""
        return self.changed(floating(change), gate=LOOSE, **changes)

    def leaves(self, *, weights: bool = False) -> Iterator[tuple[Leaf, Any]]:
        """Yield the leaves of inputs that are only read."""
        for place, argument in enumerate(self.inputs):
            if place not in self.case.rewritten and (weights or place not in self.case.weights):
                for number, leaf in enumerate(in_order(argument)):
                    yield (place, number), leaf

    def some(
        self, fits: Callable[[Any], bool], *, weights: bool = False
    ) -> Iterator[tuple[Leaf, Any]]:
        """Yield the fitting leaves; of an input with many the first, the last and one between."""
        fitting = (leaf for leaf in self.leaves(weights=weights) if fits(leaf[1]))
        for _, group in itertools.groupby(fitting, key=lambda leaf: leaf[0][0]):
            members = list(group)
            yield from (members[place] for place in ends(len(members)))

    def integers(self) -> Iterator[tuple[str, torch.Tensor, Callable[[Change], Case]]]:
        """Yield integers in tensors and lists, with what makes the case with them changed."""
        # Sizes of groups rest on each other, and are drawn again in the check.
        if has_skew(self.case):
            return
        for at, x in self.leaves():
            if is_integer(x) and x.ndim and x.numel() > 1:
                yield f"input {at[0]}", x, functools.partial(self.changed, at=at)
        for place, x in enumerate(self.inputs):
            if isinstance(x, list | tuple) and len(x) > 1 and all(type(n) is int for n in x):
                yield f"input {place}", torch.tensor(x), functools.partial(self._listed, place)

    def _listed(self, place: int, change: Change) -> Case:
        def rewrite(arguments: Sequence[Any], generator: torch.Generator) -> list[Any]:
            numbers = change(torch.tensor(arguments[place]), generator).tolist()
            return replaced(place, type(arguments[place])(numbers))(arguments, generator)

        return self.rewritten(rewrite)

    def results(self, case: Case) -> list[torch.Tensor]:
        """Return what the reference gives for the inputs of a variant, nothing where it raises."""
        with suppress(Exception):
            seed_everything(self.seed)
            return tensors(case.positional(case.reference)(*fresh_copies(case.arguments())))
        return []

    @property
    def extents(self) -> set[int]:
        return {n for x in tensors(self.inputs) for n in x.shape}

    def beyond(self, x: torch.Tensor) -> list[int]:
        """Return the sizes that integers may name places in."""
        numbers = {argument for argument in self.inputs if type(argument) is int}
        return sorted(n for n in self.extents | numbers if n > int(x.max()))


def same(expected: list[torch.Tensor], results: list[torch.Tensor]) -> bool:
    """Say whether the reference gave the same results, if any."""
    return bool(results) and all(map(torch.equal, expected, results))


def in_order(tree: Any) -> list[Any]:
    """Return the leaves of an input as they are numbered."""
    leaves: list[Any] = []
    mapped(tree, leaves.append, (object,))
    return leaves


def leafwise(change: Change, at: Leaf | None = None, untouched: Collection[int] = ()) -> Rewrite:
    """Return what changes one leaf of the arguments, or all but those of some places."""

    def rewrite(arguments: Sequence[Any], generator: torch.Generator) -> list[Any]:
        def changed(place: int, argument: Any) -> Any:
            numbers = itertools.count()
            return mapped(
                argument,
                lambda x: change(x, generator) if at in (None, (place, next(numbers))) else x,
                (object,),
            )

        return [x if i in untouched else changed(i, x) for i, x in enumerate(arguments)]

    return rewrite


def replaced(place: int, argument: Any) -> Rewrite:
    return lambda arguments, _: [argument if i == place else x for i, x in enumerate(arguments)]


def kept_leaf(x: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Change a tensor's values or memory; one that asks for a gradient goes on doing so."""
    if not isinstance(x, torch.Tensor):
        return x
    return change(x.detach()).requires_grad_(x.requires_grad)


def laid(
    lay: Callable[[torch.Tensor], torch.Tensor], at: Leaf | None = None
) -> Callable[[Sequence[Any]], list[Any]]:
    """Return what puts one leaf of the arguments, or all, into other memory."""
    rewrite = leafwise(lambda x, _: kept_leaf(x, lay), at)
    return lambda arguments: rewrite(arguments, torch.Generator())


def beside(x: torch.Tensor, generator: torch.Generator) -> torch.Generator:
    """Return a generator on a tensor's device: millions of elements take a processor seconds."""
    if x.device.type == "cpu":
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(x.device).manual_seed(seed)


def signs(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return 1 or -1 for each element of a tensor, in its dtype and drawn on its device."""
    own, device = beside(x, generator), x.device
    bits = torch.randint(0, 2, x.shape, generator=own, device=device, dtype=torch.int8)
    return bits.to(x) * 2 - 1


def is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in SCALABLE


def floating(change: Change) -> Change:
    """Return the change for tensors of floating-point numbers."""

    def values(plain: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        # Tables of angles say everything twice, and kernels read one half.
        if not says_twice(plain):
            once: torch.Tensor = change(plain, generator)
            return once
        half = plain[..., : plain.shape[-1] // 2]
        twice: torch.Tensor = change(half, generator).repeat(*[1] * (plain.ndim - 1), 2)
        return twice

    def changed(x: Any, generator: torch.Generator) -> Any:
        if not is_float(x) or not x.ndim or not x.numel():
            return x
        return kept_leaf(x, lambda plain: values(plain, generator))

    return changed


def ends(count: int) -> list[int]:
    """Return the first place, the last, and one between."""
    return sorted({0, count // 2, count - 1})


def signs_like(x: torch.Tensor) -> torch.Tensor:
    """Return -1 and 1 on a tensor's device, the same for all of a shape there, in its dtype."""
    # A host draws and sends as many as a GPU holds in a second and more.
    generator = torch.Generator(x.device).manual_seed(20)
    drawn = torch.randint(2, x.shape, generator=generator, device=x.device, dtype=torch.int8)
    return (2 * drawn - 1).to(x)
