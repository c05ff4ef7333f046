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
from pytest_kopt.cases.running.against_reference import is_shaped, nans
from pytest_kopt.cases.running.computing import ComputingIn
from pytest_kopt.cases.running.execution import (
    INPUT,
    Pass,
    aliases,
    draw_inputs,
    grad_out,
    make_inputs,
    results,
    roots,
)
from pytest_kopt.honesty.inputs import Held, activations, changed, leaves
from pytest_kopt.honesty.work import QuietMode
from pytest_kopt.libraries import is_library
from pytest_kopt.numerics.compare import InvalidReference
from pytest_kopt.numerics.nested import (
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
    given = fresh_copies(list(drawn))
    _check_positions(case, given)
    _check_freshness(case, list(drawn), list(make_inputs(case, seed)))
    for name, function in (("the function", case.function), ("the reference", case.reference)):
        _check_arguments(case, name, function, given)
    returned, copies, stepped = _called_once(case, given)
    fills = tuple(place for place, x in enumerate(given) if is_refilled(copies[place], x))
    if fills:
        case = replace(case, fills=fills)
        returned, copies, stepped = _called_once(case, given)
    found = (changed(copies, given) | stepped).difference(case.consumes)
    writes = tuple(sorted({*case.writes, *found}))
    owed = tuple(place for place in case.writes if place not in found)
    if not writes and not results(returned, given, ()):
        raise case.refusal(
            "the reference returns nothing and writes to no input: there is nothing to compare",
            "a reference that returns the result, or writes it where the function does",
        )
    everything = results(returned, copies, [place for place in writes if place not in owed])
    own = {name for name in everything if not name.startswith(INPUT)} - aliases(everything)
    return replace(
        case,
        writes=writes,
        owed=owed,
        consumes=_consumed(case, given, writes),
        returns=frozenset(own),
        nan=case.nan or _nan_of(given, {*writes, *case.consumes}),
    )


def _called_once(case: Case, given: Sequence[Any]) -> tuple[Any, list[Any], frozenset[int]]:
    """Call the reference on copies; return its result, these, and the places torch wrote to."""
    copies = fresh_copies(given)
    versions = _versions(copies)
    returned = case.positional(case.reference)(*copies)
    return returned, copies, _stepped(versions, _versions(copies))


def _nan_of(given: Sequence[Any], rewritten: Collection[int]) -> str | None:
    """Return what NaN is: an answer where inputs hold it, which nobody draws by accident."""
    read = [item for place, item in enumerate(given) if place not in rewritten]
    return EQUAL if any(bool(nans(item).any()) for item in tensors(read)) else None


def _check_positions(case: Case, given: Sequence[Any]) -> None:
    legal = [i for i, item in enumerate(given) if contents(item)]
    for name, places in (("writes", case.writes), ("consumes", case.consumes)):
        for place in places:
            if place not in legal:
                held = type(given[place]).__name__ if place < len(given) else "not there"
                what = f"{name} has {place}, and input {place} is {held}"
                raise case.refusal(what, map(str, legal))


def _check_device(case: Case, drawn: Sequence[Any] | Mapping[str, Any], device: str) -> None:
    kinds = {x.device.type for x in tensors(drawn)}
    if device and kinds and device not in kinds:
        found = ", ".join(sorted(kinds))
        raise case.refusal(
            f"inputs() makes tensors on {found}, but the session runs on {device}",
            "tensors made with device=kopt.device, or --kopt-device",
        )


def _check_freshness(case: Case, drawn: Sequence[Any], again: Sequence[Any]) -> None:
    before, now = (
        [x for x in activations(items, case.weights) if x.is_floating_point() and x.numel()]
        for items in (drawn, again)
    )
    pairs = zip(before, now, strict=False)
    if before and all(storages(one) & storages(other) for one, other in pairs):
        raise case.refusal(
            "inputs() returns the same tensors in every call",
            "fresh ones, made inside of it: inputs=lambda: (torch.randn(…),)",
        )


def _check_arguments(
    case: Case, name: str, function: Callable[..., Any], given: Sequence[Any]
) -> None:
    try:
        # What a decorator takes counts, not what it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        if case.keywords:
            signature.bind(**dict(zip(case.keywords, given, strict=True)))
        else:
            signature.bind(*given)
    except TypeError as error:
        what = f"{len(given)} argument{'s'[: len(given) != 1]}"
        given_names = ", ".join(case.keywords) or what
        raise case.refusal(
            f"inputs() returns {given_names}, and {name} takes {signature}: {error}",
            "the same arguments for the function and the reference",
        ) from None


def _consumed(case: Case, given: Sequence[Any], writes: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of what may hold anything: declared, in such memory, or a generator."""
    touched = storages([given[place] for place in (*writes, *case.consumes)])
    implied = {
        place
        for place, item in enumerate(given)
        if touched & storages(item) or len(contents(item)) > len(tensors(item))
    }
    return tuple(sorted({*case.consumes, *implied}.difference(writes)))


class _FlopCounter(QuietMode):
    """torch's own formulas by operator; its FlopCounterMode imports the compiler, for seconds."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        super().__init__()
        self.total: int = 0
        self._formulas = flop_registry

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = self._formulas.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


class Reference:
    """The reference of a case, and the project code that produces its result."""

    def __init__(
        self, case: Case, incoming: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    ) -> None:
        """Call the case's reference; `incoming` changes incoming gradients."""
        self._case, self._incoming = case, incoming
        self._own = code_of(case.reference)
        self._function = case.positional(case.reference)
        self._ran: frozenset[CodeType] | None = None

    @property
    def files(self) -> set[str]:
        """Where the project's code is written that makes what the kernel is judged by."""
        own = (self._own, code_of(self._case.inputs))
        return {code.co_filename for code in (*(self._ran or ()), *own) if code is not None}

    def __call__(self, given: Sequence[Any], like: Pass, seed: int) -> Pass:
        """Run on pristine inputs; `like` is the candidate's run, whose dtypes grad_out follows."""
        wanted = leaves(given)
        found = self.forward(given, list(like.outputs))
        if not self._case.backward:
            return found
        known, own = like.outputs, roots(like.outputs)
        written = results(None, given, self._case.writes)
        # The candidate's rounding of grad_out is part of its input, not of its error.
        incoming = {
            name: self._incoming(
                grad_out(known[name] if is_shaped(known.get(name), ref) else ref, seed)
            )
            for name, ref in roots(found.outputs).items()
            # Of an input that was written to, only where the candidate has a gradient for it.
            if name not in written or name in own
        }
        return replace(found, gradients=_gradients(found.outputs, wanted, incoming))

    def forward(self, given: Sequence[Any], names: Sequence[str]) -> Pass:
        """Run on pristine inputs without a backward; `names` are the candidate's outputs'.

        Raises InvalidReference where it writes to inputs in some calls only.
        """
        case, versions = self._case, _versions(given)
        pristine = Held(given, case.writes).source
        if self._ran is not None:
            returned = self._function(*given)
        else:
            returned, self._ran = _traced(self._function, given)
        known = case.rewritten.difference(case.owed)
        if stray := _stepped(versions, _versions(given)) - known:
            raise InvalidReference(
                f"the reference writes to input {min(stray)} in some calls only; "
                "have it write in every call, or return what it computes"
            )
        owed = results(None, given, case.owed)
        own = [place for place in case.writes if place not in case.owed]
        found = results(returned, given, own)
        # What it returns of what it writes is compared where the candidate returns something, too.
        doubles = aliases(found).difference(names)
        outputs = {
            name: item
            for name, item in found.items()
            if not name.startswith(INPUT) and name not in doubles
        }
        outputs = _fitted(outputs, list(owed), names)
        before = results(None, pristine, own)
        written = {name: item for name, item in found.items() if name.startswith(INPUT)}
        equal = case.nan == EQUAL
        return Pass(outputs | written, {}, before, nan_is_equal=equal)

    def in_float64(
        self, given: Sequence[Any], call: Callable[[Sequence[Any]], Pass]
    ) -> Pass | None:
        """Return what a call of this reference gives where float64 stands in for float32.

        None where torch cannot do that, or the reference writes to its inputs.
        """
        if self._case.rewritten:
            return None
        mode = ComputingIn(torch.float64)
        arguments = mode.arguments(given)
        with suppress(Exception), mode:
            return call(arguments)
        return None

    def flops(self, given: Sequence[Any], like: Pass) -> int:
        """Return what torch counts in a forward: products, convolutions, attention; 0: nothing."""
        # It has run without being counted: what raises now is the counter's matter.
        with suppress(Exception), _FlopCounter() as counted:
            self.forward(given, list(like.outputs))
            return int(counted.total)
        return 0

    def backward(
        self, given: Sequence[Any], names: Sequence[str], incoming: Mapping[str, torch.Tensor]
    ) -> dict[int, torch.Tensor | None]:
        wanted = leaves(given)
        return _gradients(self.forward(given, names).outputs, wanted, incoming)


def _versions(given: Sequence[Any]) -> list[list[int]]:
    """Return how often torch wrote to the tensors of each argument."""
    return [[0 if t.is_inference() else t._version for t in tensors(item)] for item in given]


def _stepped(before: list[list[int]], after: list[list[int]]) -> frozenset[int]:
    both = enumerate(zip(before, after, strict=True))
    return frozenset(place for place, (one, other) in both if one != other)


def _gradients(
    outputs: Mapping[str, Any],
    wanted: Mapping[int, torch.Tensor],
    incoming: Mapping[str, torch.Tensor],
) -> dict[int, torch.Tensor | None]:
    starts = [outputs[name] for name in incoming]
    seeds = [incoming[name].to(outputs[name]) for name in incoming]
    found = torch.autograd.grad(starts, list(wanted.values()), seeds, allow_unused=True)
    return dict(zip(wanted, found, strict=True))


def _fitted(returned: dict[str, Any], owed: list[str], names: Sequence[str]) -> dict[str, Any]:
    """Return the reference's results under the candidate's names; what is `owed` comes last."""
    own = [name for name in names if not name.startswith(INPUT)]
    if not owed or len(returned) not in (max(len(own), len(owed)), len(own) + len(owed)):
        return returned
    values = list(returned.values())
    return dict(zip(own, values, strict=False)) | dict(zip(owed, values[-len(owed) :], strict=True))


def code_of(function: Any) -> CodeType | None:
    """Return the code that a function runs, None where it has none of Python's."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code if isinstance(code, CodeType) else None


def _traced(reference: Callable[..., Any], given: Sequence[Any]) -> tuple[Any, frozenset[CodeType]]:
    """Call the reference; return its result, and the project code that ran."""
    ran: set[CodeType] = set()

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "return" and code.co_filename != _OURS and not is_library(code.co_filename):
            ran.add(code)

    with profile_hook(hook):
        result = reference(*given)
    return result, frozenset(ran)
