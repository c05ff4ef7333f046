"""The reference of a case: what it computes, and which inputs it writes to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any

import torch

from pytest_kopt.cases.case import EQUAL, Case
from pytest_kopt.cases.running.execution import (
    INPUT,
    ComputingIn,
    Pass,
    aliases,
    draw_inputs,
    grad_out,
    is_shaped,
    make_inputs,
    nans,
    results,
    roots,
)
from pytest_kopt.honesty.inputs import RestoredArguments, activations, changed, leaves
from pytest_kopt.honesty.work import Operator, listening
from pytest_kopt.libraries import is_library
from pytest_kopt.numerics.compare import InvalidReference, without_numbers
from pytest_kopt.numerics.nested import (
    backward,
    contents,
    fresh_copies,
    is_refilled,
    storages,
    tensors,
)
from pytest_kopt.profile_hook import profile_hook

#: Where what calls a function with keywords is written: no code that makes a result.
_OURS = Case.positional.__code__.co_filename


def observed(case: Case, seed: int, device: str = "") -> Case:
    """Return the case with every input among its `writes` that the reference writes to.

    Raises BadInput where there is nothing to compare, what `inputs` makes fits neither function, is
    not fresh, or lies on another device than `device` (torch's name).
    """
    drawn = draw_inputs(case, seed)
    _check_device(case, drawn, device)
    if isinstance(drawn, Mapping):
        case, drawn = replace(case, keywords=tuple(drawn)), list(drawn.values())
    inputs = fresh_copies(list(drawn))
    _check_positions(case, inputs)
    _check_freshness(case, list(drawn), list(make_inputs(case, seed)))
    for name, function in (("the function", case.function), ("the reference", case.reference)):
        _check_arguments(case, name, function, inputs)
    returned, copies, stepped = _called_once(case, inputs)
    fills = tuple(place for place, x in enumerate(inputs) if is_refilled(copies[place], x))
    if fills:
        case = replace(case, fills=fills)
        returned, copies, stepped = _called_once(case, inputs)
    written = (changed(copies, inputs) | stepped).difference(case.consumes)
    writes = tuple(sorted({*case.writes, *written}))
    owed = tuple(place for place in case.writes if place not in written)
    if not writes and not results(returned, inputs, ()):
        raise case.refusal(
            "the reference returns nothing and writes to no input, so kopt cannot compare anything",
            fix="return the result, or write it to the input to which the function writes it",
        )
    everything = results(returned, copies, [place for place in writes if place not in owed])
    for name, result in everything.items():
        if isinstance(result, torch.Tensor) and (refused := without_numbers(result)):
            raise case.refusal(f"{name} of the reference is {refused[0]}", fix=refused[1])
    returned_names = {name for name in everything if not name.startswith(INPUT)} - aliases(
        everything
    )
    return replace(
        case,
        writes=writes,
        owed=owed,
        consumes=_consumed(case, inputs, writes),
        returns=frozenset(returned_names),
        nan=case.nan or _nan_of(inputs, {*writes, *case.consumes}),
    )


def _called_once(case: Case, inputs: Sequence[Any]) -> tuple[Any, list[Any], frozenset[int]]:
    """Call the reference on copies; return its result, these, and the places torch wrote to."""
    copies = fresh_copies(inputs)
    versions = _versions(copies)
    returned = case.positional(case.reference)(*copies)
    return returned, copies, _stepped(versions, _versions(copies))


def _nan_of(inputs: Sequence[Any], rewritten: Collection[int]) -> str | None:
    """Return what NaN is: an answer where inputs hold it, which nobody draws by accident."""
    read = [value for place, value in enumerate(inputs) if place not in rewritten]
    return EQUAL if any(bool(nans(tensor).any()) for tensor in tensors(read)) else None


def _check_positions(case: Case, inputs: Sequence[Any]) -> None:
    legal = [i for i, value in enumerate(inputs) if contents(value)]
    for name, places in (("writes", case.writes), ("consumes", case.consumes)):
        for place in places:
            if place not in legal:
                kind = type(inputs[place]).__name__ if place < len(inputs) else "not there"
                problem = f"{name} has {place}, and input {place} is {kind}"
                raise case.refusal(problem, map(str, legal))


def _check_device(case: Case, drawn: Sequence[Any] | Mapping[str, Any], device: str) -> None:
    kinds = {x.device.type for x in tensors(drawn)}
    if device and kinds and device not in kinds:
        present = ", ".join(sorted(kinds))
        raise case.refusal(
            f"inputs() makes tensors on {present}, but the session runs on {device}",
            fix="make the tensors with device=kopt.device, or give --kopt-device",
        )


def _check_freshness(case: Case, drawn: Sequence[Any], again: Sequence[Any]) -> None:
    before, now = (
        [x for x in activations(items, case.weights) if x.is_floating_point() and x.numel()]
        for items in (drawn, again)
    )
    pairs = zip(before, now, strict=False)
    if before and all(storages(first) & storages(second) for first, second in pairs):
        raise case.refusal(
            "inputs() returns the same tensors in every call",
            fix="make fresh tensors in every call: inputs=lambda: (torch.randn(…),)",
        )


def _check_arguments(
    case: Case, name: str, function: Callable[..., Any], inputs: Sequence[Any]
) -> None:
    try:
        # What a decorator takes counts, not what it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        if case.keywords:
            signature.bind(**dict(zip(case.keywords, inputs, strict=True)))
        else:
            signature.bind(*inputs)
    except TypeError as error:
        count = f"{len(inputs)} argument{'s'[: len(inputs) != 1]}"
        names = ", ".join(case.keywords) or count
        raise case.refusal(
            f"inputs() returns {names}, and {name} takes {signature}: {error}",
            fix="return the arguments that the function and the reference both take"
            f"{', by the same names' if case.keywords else ''}",
        ) from None


def _consumed(case: Case, inputs: Sequence[Any], writes: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of what may hold anything: declared, in such memory, or a generator."""
    touched = storages([inputs[place] for place in (*writes, *case.consumes)])
    implied = {
        place
        for place, value in enumerate(inputs)
        if touched & storages(value) or len(contents(value)) > len(tensors(value))
    }
    return tuple(sorted({*case.consumes, *implied}.difference(writes)))


class Reference:
    """The reference of a case, and the project code that produces its result."""

    def __init__(
        self, case: Case, incoming: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    ) -> None:
        """Call the case's reference; `incoming` changes incoming gradients."""
        self._case, self._incoming = case, incoming
        self._code = code_of(case.reference)
        self._function = case.positional(case.reference)
        self._ran: frozenset[CodeType] | None = None

    @property
    def files(self) -> set[str]:
        """The files of the project's code that makes what the kernel is judged by."""
        declared_code = (self._code, code_of(self._case.inputs))
        return {
            code.co_filename for code in (*(self._ran or ()), *declared_code) if code is not None
        }

    def __call__(self, inputs: Sequence[Any], like: Pass, seed: int) -> Pass:
        """Run on pristine inputs; `like` is the candidate's run, whose dtypes grad_out follows."""
        leaf_inputs = leaves(inputs)
        expected = self.forward(inputs, list(like.outputs))
        if not self._case.backward:
            return expected
        outputs, differentiable = like.outputs, roots(like.outputs)
        written = results(None, inputs, self._case.writes)
        # The candidate's rounding of grad_out is part of its input, not of its error.
        incoming = {
            name: self._incoming(
                grad_out(outputs[name] if is_shaped(outputs.get(name), ref) else ref, seed)
            )
            for name, ref in roots(expected.outputs).items()
            # Of an input that was written to, only where the candidate has a gradient for it.
            if name not in written or name in differentiable
        }
        return replace(expected, gradients=_gradients(expected.outputs, leaf_inputs, incoming))

    def forward(self, inputs: Sequence[Any], names: Sequence[str]) -> Pass:
        """Run on pristine inputs without a backward; `names` are the candidate's outputs'.

        Raises InvalidReference where it writes to inputs in some calls only.
        """
        case, versions = self._case, _versions(inputs)
        pristine = RestoredArguments(inputs, case.writes).source
        if self._ran is not None:
            returned = self._function(*inputs)
        else:
            returned, self._ran = _traced(self._function, inputs)
        may_write = case.rewritten.difference(case.owed)
        if stray := _stepped(versions, _versions(inputs)) - may_write:
            raise InvalidReference(
                f"the reference writes to input {min(stray)} in some calls only. Fix: "
                "have it write in every call, or return what it computes"
            )
        owed = results(None, inputs, case.owed)
        written_places = [place for place in case.writes if place not in case.owed]
        everything = results(returned, inputs, written_places)
        # What it returns of what it writes is compared where the candidate returns something, too.
        doubles = aliases(everything).difference(names)
        outputs = {
            name: value
            for name, value in everything.items()
            if not name.startswith(INPUT) and name not in doubles
        }
        outputs = _fitted(outputs, list(owed), names)
        before = results(None, pristine, written_places)
        written = {name: value for name, value in everything.items() if name.startswith(INPUT)}
        equal = case.nan == EQUAL
        return Pass(outputs | written, {}, before, nan_is_equal=equal)

    def exact(
        self,
        inputs: Sequence[Any],
        like: Pass,
        seed: int,
        change: Callable[[Sequence[Any]], Sequence[Any]] = lambda wide: wide,
    ) -> Pass | None:
        """Return the results in float64 on inputs, which a `change` meets in their wide dtypes."""
        return self.in_float64(inputs, lambda wide: self(wide, like, seed), change)

    def in_float64(
        self,
        inputs: Sequence[Any],
        call: Callable[[Sequence[Any]], Pass],
        change: Callable[[Sequence[Any]], Sequence[Any]] = lambda wide: wide,
    ) -> Pass | None:
        """Return what a call of this reference gives where float64 stands in for float32.

        None where torch cannot do that, or the reference writes to its inputs.
        """
        if self._case.rewritten:
            return None
        mode = ComputingIn(torch.float64)
        arguments = mode.arguments(inputs)
        with suppress(Exception), mode:
            return call(change(arguments))
        return None

    def flops(self, inputs: Sequence[Any], like: Pass) -> int:
        """Return what torch counts in a forward: products, convolutions, attention; 0: nothing."""
        # Its FlopCounterMode imports the compiler, for seconds.
        from torch.utils.flop_counter import flop_registry

        counts = list[int]()

        def count(operator: Operator) -> None:
            if formula := flop_registry.get(operator.function._overloadpacket):
                out = operator.result
                counts.append(int(formula(*operator.args, **operator.kwargs, out_val=out)))

        # It has run without being counted: what raises now is the counter's matter.
        with suppress(Exception), listening(count):
            self.forward(inputs, list(like.outputs))
            return sum(counts)
        return 0

    def backward(
        self, inputs: Sequence[Any], names: Sequence[str], incoming: Mapping[str, torch.Tensor]
    ) -> dict[int, torch.Tensor | None]:
        leaf_inputs = leaves(inputs)
        return _gradients(self.forward(inputs, names).outputs, leaf_inputs, incoming)


def _versions(inputs: Sequence[Any]) -> list[list[int]]:
    """Return how often torch wrote to the tensors of each argument."""
    return [[0 if t.is_inference() else t._version for t in tensors(value)] for value in inputs]


def _stepped(before: list[list[int]], after: list[list[int]]) -> frozenset[int]:
    counts = enumerate(zip(before, after, strict=True))
    return frozenset(place for place, (first, second) in counts if first != second)


def _gradients(
    outputs: Mapping[str, Any],
    leaf_inputs: Mapping[int, torch.Tensor],
    incoming: Mapping[str, torch.Tensor],
) -> dict[int, torch.Tensor | None]:
    starts = [outputs[name] for name in incoming]
    seeds = [incoming[name].to(outputs[name]) for name in incoming]
    gradients = backward(starts, seeds, list(leaf_inputs.values()))
    return dict(zip(leaf_inputs, gradients, strict=True))


def _fitted(returned: dict[str, Any], owed: list[str], names: Sequence[str]) -> dict[str, Any]:
    """Return the reference's results under the candidate's names; what is `owed` comes last."""
    returned_names = [name for name in names if not name.startswith(INPUT)]
    if not owed or len(returned) not in (
        max(len(returned_names), len(owed)),
        len(returned_names) + len(owed),
    ):
        return returned
    values = list(returned.values())
    return dict(zip(returned_names, values, strict=False)) | dict(
        zip(owed, values[-len(owed) :], strict=True)
    )


def code_of(function: Any) -> CodeType | None:
    """Return the code that a function runs, None where it has none of Python's."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code if isinstance(code, CodeType) else None


def _traced(
    reference: Callable[..., Any], inputs: Sequence[Any]
) -> tuple[Any, frozenset[CodeType]]:
    """Call the reference; return its result, and the project code that ran."""
    ran: set[CodeType] = set()

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "return" and code.co_filename != _OURS and not is_library(code.co_filename):
            ran.add(code)

    with profile_hook(hook):
        result = reference(*inputs)
    return result, frozenset(ran)
