"""One run of a case: the candidate's or the reference's outputs and gradients on given inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any

import torch

from pytest_kopt.cases.case import RETURNED, Case, input_name
from pytest_kopt.cases.seeds import seed_everything
from pytest_kopt.honesty.inputs import leaves
from pytest_kopt.honesty.outputs import taken
from pytest_kopt.honesty.work import INTERPRETER
from pytest_kopt.numerics.nested import Filled, address, contents, flatten, storages, tensors
from pytest_kopt.profile_hook import profile_hook

#: How the name of an input that is written to begins.
INPUT = "input "


@dataclass(frozen=True, slots=True)
class Pass:
    """Outputs by name, inputs that were written to among them, and gradients by input's position.

    `before` is, of a reference's run, what the inputs held that it wrote to itself; its NaN are
    answers where `nan_is_equal`.
    """

    outputs: dict[str, Any]
    gradients: dict[int, torch.Tensor | None]
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    nan_is_equal: bool = False

    @property
    def all(self) -> list[Any]:
        """Outputs, then gradients, whatever they are: of two runs, one beside the other."""
        return [*self.outputs.values(), *self.gradients.values()]

    @property
    def results(self) -> list[torch.Tensor]:
        return tensors(self.all)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the candidate: what it returned, and copies made in that moment.

    `moved` are the positions of the inputs that it left in other memory than they had.
    """

    live: Pass
    kept: Pass
    moved: tuple[int, ...] = ()


def make_inputs(case: Case, seed: int) -> tuple[Any, ...]:
    """Return fresh inputs of a case made under a seed."""
    given = draw_inputs(case, seed)
    return tuple(given.values() if isinstance(given, Mapping) else given)


def draw_inputs(case: Case, seed: int) -> Sequence[Any] | Mapping[str, Any]:
    """Return them as `inputs()` does, generators with the state that follows from the seed."""
    seed_everything(seed)
    given = case.inputs()
    if not isinstance(given, tuple | list | Mapping):
        raise case.refusal(
            f"inputs() returned {type(given).__name__}",
            "a tuple of the function's arguments, or a dict of them by name",
        )
    for item in contents(dict(given) if isinstance(given, Mapping) else given):
        if isinstance(item, torch.Generator):
            # Whoever knows what follows a test's own seed would know what is drawn in every call.
            item.manual_seed(seed)
    return given


def results(returned: Any, given: Sequence[Any], writes: Iterable[int]) -> dict[str, Any]:
    """Return what a call returned, and the inputs that it writes to, by name."""
    written: dict[str, Any] = {}
    for place in writes:
        written |= flatten(given[place], input_name(place))
    if isinstance(returned, Filled):
        named = dict(zip(returned.names, returned.values, strict=True))
        # What was in a place before it was filled is no result.
        return named | {name: x for name, x in written.items() if name not in named}
    return ({} if returned is None else flatten(returned, RETURNED)) | written


def results_of(case: Case, returned: Any, given: Sequence[Any]) -> dict[str, Any]:
    """Return what a call gave; a written input that it returns as well is one result, not two."""
    found = results(returned, given, case.writes)
    doubles = aliases(found).difference(found if case.returns is None else case.returns)
    return {name: item for name, item in found.items() if name not in doubles}


def aliases(found: Mapping[str, Any]) -> frozenset[str]:
    """Return the names under which results are returned that are written inputs as well."""
    written = {id(item) for name, item in found.items() if name.startswith(INPUT)}
    return frozenset(
        name for name, item in found.items() if id(item) in written and not name.startswith(INPUT)
    )


def grad_out(out: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the incoming gradient of an output: standard normal in float32, then out's dtype.

    Where the output lies, and whatever was done to the global generator.
    """
    return drawn_like(out, torch.Generator(out.device).manual_seed(seed))


def drawn_like(out: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(
        out.shape, generator=generator, device=generator.device, dtype=torch.float32
    )
    return values.to(device=out.device, dtype=out.dtype)


def addresses(given: Sequence[Any]) -> list[list[int]]:
    """Return where the plain tensors of each argument lie."""
    return [[address(item) for item in tensors(x) if item.layout is torch.strided] for x in given]


class Candidate:
    """A version of a case's function as it is checked: called on tensors that stay where they are.

    So do the incoming gradients: a cache keyed on them is met with new content.
    """

    def __init__(
        self,
        case: Case,
        function: Callable[..., Any],
        incoming: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
    ) -> None:
        """Call the function; `incoming` puts an incoming gradient into other memory."""
        self._case, self._lay = case, incoming
        self._function = case.positional(function)
        self._incoming: dict[str, torch.Tensor] = {}
        self._drawn: dict[str, torch.Tensor] = {}

    def __call__(self, given: Sequence[Any], seed: int) -> Run:
        """Run once; the incoming gradients are drawn under `seed`."""
        wanted = leaves(given) if self._case.backward else {}
        before = addresses(given)
        result = self._function(*given)
        after = addresses(given)
        # A list may hold more than before.
        moved = tuple(
            place for place, where in enumerate(before) if after[place][: len(where)] != where
        )
        outputs = results_of(self._case, result, given)
        copies = dict(zip(outputs, taken(list(outputs.values())), strict=True))
        differentiable = roots(outputs)
        found: Sequence[torch.Tensor | None] = [None] * len(wanted)
        if wanted and differentiable:
            found = torch.autograd.grad(
                list(differentiable.values()),
                list(wanted.values()),
                [self._gradient(name, out, seed) for name, out in differentiable.items()],
                allow_unused=True,
            )
        live, kept = (dict(zip(wanted, x, strict=True)) for x in (found, taken(found)))
        return Run(Pass(outputs, live), Pass(copies, kept), moved)

    def held(self, given: Sequence[Any]) -> frozenset[int]:
        """Return the memory a result may lie in: the inputs', and what a sum hands on."""
        return storages([*given, *self._incoming.values()])

    def incoming(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return [self._incoming[name] for name in self._drawn], [*self._drawn.values()]

    def _gradient(self, name: str, out: torch.Tensor, seed: int) -> torch.Tensor:
        values = grad_out(out, seed)
        held = self._incoming.get(name)
        if held is None or held.shape != values.shape or held.dtype != values.dtype:
            held = self._incoming[name] = self._lay(values)
        else:
            held.data.copy_(values)
        self._drawn[name] = values
        return held


#: The frame of a launch in Triton's interpreter, of which torch.compile asks other things, and of a
#: function that torch has compiled.
LAUNCHED, _COMPILED = (INTERPRETER, "__call__"), ("torch._dynamo.eval_frame", "")


@contextmanager
def watch_frames(where: tuple[str, str]) -> Iterator[SimpleNamespace]:
    """Yield what is `seen` once this thread has run a frame of a module's function ("": any)."""
    watch = SimpleNamespace(seen=False)
    module, function = where

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        is_there = event == "call" and frame.f_globals.get("__name__") == module
        if is_there and function in ("", frame.f_code.co_name):
            watch.seen = True
            put_back()

    if module not in sys.modules:
        yield watch
        return
    with profile_hook(hook) as put_back:
        yield watch


def runs_compiled(call: Callable[[], object]) -> bool:
    """Say whether a call runs a function that torch has compiled; calls where one may be."""
    if _COMPILED[0] not in sys.modules:
        return False
    with watch_frames(_COMPILED) as watch:
        call()
    return bool(watch.seen)


def roots(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {
        name: out
        for name, out in outputs.items()
        if isinstance(out, torch.Tensor) and out.requires_grad
    }
