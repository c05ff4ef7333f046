"""The calls that are timed, and what they work on: content that follows from a block's seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.autograd.graph import increment_version

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import find_groups
from pytest_kopt.cases.order import WEIGHT_BITS, Bench, derive
from pytest_kopt.cases.running.execution import drawn_like, grad_out, make_inputs, results_of, roots
from pytest_kopt.devices.states import WARM
from pytest_kopt.honesty import inputs
from pytest_kopt.honesty.nearby_shapes import RENEWED
from pytest_kopt.honesty.renewal import Renewal
from pytest_kopt.numerics.nested import backward, contents, fresh_copies, mapped, same_bits, tensors

#: Bytes of numbers that are drawn for a block, at most: some milliseconds' worth.
_MOST_DRAWN = 1 << 20
#: Sets of a block on the CPU, at most, and bytes that they fill: of numbers, of what is drawn for
#: each block, and of three large sets.
MOST_SETS, _SET_BYTES, _DRAWN_BYTES, _LARGE_BYTES = 256, 1 << 25, 1 << 22, 1 << 27
_FEWEST = 3
#: So many draws tell the numbers that a case draws from others.
_DRAWS = 4
#: What the second cache of a core holds in any case.
_WARM_BYTES = 1 << 18


def repeats_calls(bench: Bench) -> bool:
    """Say whether a block goes round its calls several times: on a GPU.

    On the CPU each call of a block runs once.
    """
    return bench.device != "cpu"


class Forward:
    """A forward call of one version of a case's function, on arguments of its own."""

    def __init__(
        self, case: Case, function: Callable[..., Any], restored: inputs.RestoredArguments
    ) -> None:
        self._function = case.positional(function)
        self._same = {*case.weights, *case.rewritten}
        self.case = case
        self.restore = restored.restore
        self.inputs = restored.source
        #: The arguments themselves.
        self.live = restored.live
        #: What it writes its results to.
        self.written = [restored.live[place] for place in case.writes]
        self.incoming: dict[str, torch.Tensor] | None = None
        self.gradients: list[Any] = []

    def __call__(self) -> Any:
        return self._function(*self.live)

    def take_new_tensors(self) -> None:
        """Have calls be given tensors that none was given before, over the same memory.

        A step of training brings new ones, but for weights: what is only fast for known ones is
        no gain.
        """
        live = self.live
        live[:] = [x if place in self._same else _new(x) for place, x in enumerate(live)]

    def named(self, returned: Any) -> dict[str, Any]:
        return results_of(self.case, returned, self.live)


class Backward:
    """The backward of a forward call, over the graph that it left."""

    def __init__(self, forward: Forward, seed: int) -> None:
        """Call the forward once; the incoming gradients are drawn under `seed`."""
        self._forward = forward
        self.case = forward.case
        self.inputs = forward.inputs
        self.live = forward.live
        self.written: list[Any] = []
        forward.restore()
        self.follow(forward())
        drawn = [grad_out(out, seed) for out in self._outputs.values()]
        consumed = range(len(drawn)) if forward.case.consumes_incoming else ()
        self._incoming = inputs.RestoredArguments(drawn, consumed)
        self.changing = self._incoming.source
        #: The incoming gradients themselves.
        self.gradients = self._incoming.live
        self.incoming: dict[str, torch.Tensor] | None = dict(
            zip(self._outputs, self.changing, strict=True)
        )

    def follow(self, returned: Any) -> None:
        """Have calls go back over the graph of the forward's last call, by what it returned."""
        self.leaves = list(inputs.leaves(self.live).values())
        self._outputs = roots(self._forward.named(returned))

    def __call__(self) -> tuple[torch.Tensor | None, ...]:
        outputs = list(self._outputs.values())
        return backward(outputs, self._incoming.live, self.leaves, retain_graph=True)

    def take_new_tensors(self) -> None:
        """Have the backward be given incoming gradients of the same memory in new tensors."""
        if not self._incoming.rewritten:
            self._incoming.live[:] = map(_new, self._incoming.live)

    def restore(self) -> None:
        self._incoming.restore()

    def named(self, returned: Any) -> dict[str, Any]:
        return {str(place): gradient for place, gradient in enumerate(returned)}


class RepeatedBackward(Backward):
    """A backward over a graph that was built once, on inputs as the forward left them."""

    def __init__(
        self, case: Case, function: Callable[..., Any], arguments: Sequence[Any], seed: int
    ) -> None:
        restored = inputs.RestoredArguments(fresh_copies(arguments), case.rewritten)
        super().__init__(Forward(case, function, restored), seed)
        self._saved = inputs.RestoredArguments(self.live, case.rewritten)
        # torch refuses a backward over memory whose version is another than the forward's.
        self._versions = [
            _unsafe_preserve_version_counter(tensor)
            for place in case.rewritten
            for tensor in tensors(self.live[place])
        ]

    def restore(self) -> None:
        self._saved.restore()
        super().restore()
        for version in self._versions:
            version.__exit__(None, None, None)


def _new(value: Any) -> Any:
    """Return an item whose plain tensors are others over the same memory."""
    return mapped(
        value,
        lambda x: x.detach().requires_grad_(x.requires_grad) if type(x) is torch.Tensor else x,
        (torch.Tensor,),
    )


class Content:
    """The content of a case's input sets in a block: it follows from the block's seed alone."""

    def __init__(
        self,
        cases: Sequence[Case],
        sets: Mapping[int, Sequence[Any]],
        calls: int,
        *,
        is_captured: bool = False,
    ) -> None:
        """Write to the activations of sets by number, in turn of `cases`; a block has `calls`.

        Content is drawn where that takes no time, and where it is more than floating-point tensors:
        integers, masks, generators, a seed. Other content is what is there now, scaled, with a few
        elements exchanged. A call that `is_captured` has its numbers and weights for good. Those of
        all others are new as well in each block, and the same for all of its calls.
        """
        self._cases, self._sets = cases, sets
        case = cases[0]
        self._numbers = [] if is_captured else _drawn_numbers(case, next(iter(sets.values())))
        #: Whether no two arms meet the same.
        self._is_free = _is_free(case, [*sets.values()]) and not self._numbers
        self._shapes = {number: shapes(arguments) for number, arguments in sets.items()}
        self._weights = [] if is_captured else _drawn_weights(case, next(iter(sets.values())))
        self._weight_renewal = Renewal(self._weights, in_order=case.keeps_order, in_columns=True)
        self._step: tuple[int, str] | None = None
        nbytes = sum(tensor.nbytes for tensor in tensors(next(iter(sets.values()))))
        self._renewals: dict[int, Renewal] = {}
        if self._is_free and (is_captured or nbytes * calls > _MOST_DRAWN):
            self._renewals = {
                number: Renewal(
                    inputs.activations(arguments, case.weights), in_order=case.keeps_order
                )
                for number, arguments in sets.items()
            }

    @property
    def is_drawn(self) -> bool:
        """Whether it is what the case draws, and nothing of it is scaled."""
        return self._is_free and not self._renewals

    def write(self, seed: int, arm: str, calls: int = 0) -> None:
        """Write the content of an arm's block into all sets, or those of its first calls."""
        self._write_weights(seed >> WEIGHT_BITS, arm)
        for number in [*self._sets][: calls or None]:
            self._write_set(number, seed, arm)

    def write_one(self, number: int, seed: int, arm: str) -> None:
        """Write the content of an arm's block into one set, and what it shares with the others."""
        self._write_weights(seed >> WEIGHT_BITS, arm)
        self._write_set(number, seed, arm)

    def _write_weights(self, step: int, arm: str) -> None:
        """Write a block's weights as an optimiser's step does: their versions move.

        Those of the step before stay as they are.

        Two factors scale them: half of the blocks find those of the block before, with a few
        elements of columns exchanged. Samples and sums of words are the same then.
        """
        if (step, arm) == self._step:
            return
        self._step = step, arm
        self._weight_renewal.write(derive(step, arm, "weights") % 2, _places(step, arm))
        for weight in self._weights:
            increment_version(weight)

    def _write_set(self, number: int, seed: int, arm: str) -> None:
        """Write the activations of one set.

        Arms get content of their own: results of another's block must be no answers. Values that
        are not floating-point can determine the amount of work: there the arms get the same.
        """
        set_seed = derive(seed, arm if self._is_free else "", f"content {number}")
        if self._renewals:
            self._renewals[number].write(set_seed, _places(seed, arm))
            return
        case, arguments = self._cases[number % len(self._cases)], self._sets[number]
        drawn = make_inputs(case, set_seed)
        # Where sizes are drawn as well, half of it would be written.
        if shapes(drawn) != self._shapes[number]:
            return
        inputs.overwrite(arguments, drawn, case.weights, only_activations=True)
        if isinstance(arguments, list):
            for place in self._numbers:
                arguments[place] = drawn[place]
        if not self._is_free:
            activations = inputs.activations(arguments, case.weights)
            Renewal(activations, in_order=case.keeps_order).write(derive(set_seed, arm, "scaled"))


class Gradients:
    """The content of the incoming gradients of a case's backwards in a block."""

    def __init__(self, incoming: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """Write to the gradients of sets by number."""
        self._renewals = {number: Renewal(tensors) for number, tensors in incoming.items()}

    def write(self, seed: int, arm: str, calls: int = 0) -> None:
        for number in [*self._renewals][: calls or None]:
            self.write_one(number, seed, arm)

    def write_one(self, number: int, seed: int, arm: str) -> None:
        set_seed = derive(seed, arm, f"gradients {number}")
        self._renewals[number].write(set_seed, _places(seed, arm))


def _places(seed: int, arm: str) -> int:
    """Return the seed of the places of a block's exchanged elements."""
    return derive(seed, arm, "places")


def shapes(arguments: Sequence[Any]) -> list[torch.Size]:
    """Return the shapes of the tensors among arguments, in order."""
    return [tensor.shape for tensor in tensors(arguments)]


def _is_free(case: Case, sets: Sequence[Sequence[Any]]) -> bool:
    """Say whether nothing in the content says how much there is to do: it is numbers alone."""
    return all(
        isinstance(leaf, torch.Tensor) and leaf.dtype in inputs.SCALABLE
        for arguments in sets
        for place, argument in enumerate(arguments)
        if place not in case.weights
        for leaf in contents(argument)
    )


def is_brought_whole(case: Case) -> bool:
    """Say whether what a case draws, but for weights, is plain tensors that no call writes to.

    Otherwise numbers would be of another draw than the tensors that are brought.
    """
    arguments = make_inputs(case, 0)
    activations, _, others = inputs.plain_inputs(arguments, case.weights, case.rewritten)
    places = {*range(len(arguments))}.difference(case.weights)
    drawn = [leaf for place in places for leaf in contents(arguments[place])]
    return not others and len(activations) == len(drawn) and not _drawn_numbers(case, arguments)


def _drawn_numbers(case: Case, arguments: Sequence[Any]) -> list[int]:
    """Return the places of the numbers that a case draws: they differ from seed to seed."""
    numbers = [
        place
        for place, argument in enumerate(arguments)
        if type(argument) in inputs.NUMBERS and place not in case.weights
    ]
    first, *draws = [make_inputs(case, seed) for seed in range(_DRAWS)] if numbers else [()]
    return [p for p in numbers if any(draw[p] != first[p] for draw in draws)]


def _drawn_weights(case: Case, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Return the floating-point weights that differ from seed to seed, as a check changes these.

    A case whose values may not be scaled keeps its weights.
    """
    places = {*case.weights}.difference(case.rewritten)
    if not places or RENEWED.excluded_by in case.domain:
        return []
    activations = {*range(len(arguments))} - places
    draws = (arguments, make_inputs(case, 0), make_inputs(case, 1))
    return [
        weight
        for weight, first, second in zip(
            *(inputs.activations(drawn, activations) for drawn in draws), strict=False
        )
        if weight.is_floating_point() and not same_bits(first, second)
    ]


def input_set(cases: Sequence[Case], seed: int, number: int) -> tuple[Any, ...]:
    """Draw the input set of a number, from `cases` in turn; the seed says which comes first."""
    return make_inputs(cases[(seed + number) % len(cases)], seed + number)


def input_sets(cases: Sequence[Case], seed: int, numbers: Iterable[int]) -> list[tuple[Any, ...]]:
    """Draw the input sets of these numbers, from `cases` in turn; weights are those of set 0.

    A model calls its kernel with the same weights in every step. Each set has its own copy of the
    inputs that calls write to, and group sizes of its own where there are several cases.
    """
    case, first = cases[0], input_set(cases, seed, 0)
    shared = {*case.weights}.difference(case.rewritten)
    if len(cases) > 1:
        shared -= find_groups(case, first).layouts.keys()

    def drawn(number: int) -> tuple[Any, ...]:
        arguments = input_set(cases, seed, number)
        return tuple(
            first[at] if at in shared else argument for at, argument in enumerate(arguments)
        )

    return [drawn(number) if number else first for number in numbers]


def most_sets(case: Case, arguments: Sequence[Any], copies: int) -> int:
    """Return how many sets like `arguments` a block on the CPU may have, each `copies` times.

    They fill some megabytes; there are three in any case unless these are large. Those of a case
    with a warm cache fit into the cache of one core; they are written right before the block.
    """
    nbytes = max(1, copies * sum(tensor.nbytes for tensor in tensors(arguments)))
    if case.cache == WARM:
        return max(1, min(MOST_SETS, _WARM_BYTES // nbytes))
    room = _SET_BYTES if _is_free(case, [arguments]) else _DRAWN_BYTES
    return max(1, min(MOST_SETS, max(room // nbytes, min(_FEWEST, _LARGE_BYTES // nbytes))))


def write_own(
    case: Case, call: Forward | Backward, seed: int, *, is_captured: bool = False
) -> None:
    """Write content as the case draws it, or gradients as torch does, where a call looks."""
    if isinstance(call, Forward):
        drawn = make_inputs(case, seed)
        inputs.overwrite(call.inputs, drawn, case.weights, only_activations=True)
        for place in [] if is_captured else _drawn_numbers(case, drawn):
            call.inputs[place] = drawn[place]
        return
    generator = torch.Generator(call.changing[0].device).manual_seed(seed)
    for gradient in call.changing:
        gradient.data.copy_(drawn_like(gradient, generator))
