"""One run of a case: the candidate's or the reference's outputs and gradients on given inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pytest_kopt.cases.case import RETURNED, Case, input_name
from pytest_kopt.cases.order import seed_everything
from pytest_kopt.honesty.inputs import SCALABLE, leaves
from pytest_kopt.honesty.outputs import snapshots
from pytest_kopt.honesty.work import INTERPRETER
from pytest_kopt.numerics.compare import wide
from pytest_kopt.numerics.nested import (
    Filled,
    address,
    backward,
    contents,
    flatten,
    fresh_copies,
    mapped,
    storages,
    tensors,
)
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
        """Outputs, then gradients, whatever they are: of two runs, one next to the other."""
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
    copies: Pass
    moved: tuple[int, ...] = ()


def is_float(value: Any) -> bool:
    """Say whether a result is a number, or a tensor of numbers, in floating point."""
    return (
        value.is_floating_point() if isinstance(value, torch.Tensor) else isinstance(value, float)
    )


def nans(value: Any) -> torch.Tensor:
    """Return where a result is NaN."""
    if not is_float(value):
        return torch.zeros(1)
    value = torch.as_tensor(value)
    return (value if value.dtype in SCALABLE else wide(value)).isnan()


def is_shaped(out: Any, ref: Any) -> bool:
    are_tensors = isinstance(out, torch.Tensor) and isinstance(ref, torch.Tensor)
    return are_tensors and out.shape == ref.shape


def make_inputs(case: Case, seed: int) -> tuple[Any, ...]:
    """Return fresh inputs of a case made under a seed."""
    drawn = draw_inputs(case, seed)
    return tuple(drawn.values() if isinstance(drawn, Mapping) else drawn)


def draw_inputs(case: Case, seed: int) -> Sequence[Any] | Mapping[str, Any]:
    """Return them as `inputs()` does, generators with the state that follows from the seed."""
    seed_everything(seed)
    drawn = case.inputs()
    if not isinstance(drawn, tuple | list | Mapping):
        raise case.refusal(
            f"inputs() returned {type(drawn).__name__}",
            "a tuple of the function's arguments, a list, or a dict of them by name",
        )
    for leaf in contents(dict(drawn) if isinstance(drawn, Mapping) else drawn):
        if isinstance(leaf, torch.Generator):
            # Whoever knows what follows a test's own seed would know what is drawn in every call.
            leaf.manual_seed(seed)
    return drawn


def results(returned: Any, arguments: Sequence[Any], writes: Iterable[int]) -> dict[str, Any]:
    """Return what a call returned, and the inputs that it writes to, by name."""
    written: dict[str, Any] = {}
    for place in writes:
        written |= flatten(arguments[place], input_name(place))
    if isinstance(returned, Filled):
        named = dict(zip(returned.names, returned.values, strict=True))
        # What was in a place before it was filled is no result.
        return named | {name: x for name, x in written.items() if name not in named}
    return ({} if returned is None else flatten(returned, RETURNED)) | written


def results_of(case: Case, returned: Any, arguments: Sequence[Any]) -> dict[str, Any]:
    """Return what a call gave; a written input that it returns as well is one result, not two."""
    named_results = results(returned, arguments, case.writes)
    doubles = aliases(named_results).difference(
        named_results if case.returns is None else case.returns
    )
    return {name: result for name, result in named_results.items() if name not in doubles}


def aliases(named_results: Mapping[str, Any]) -> frozenset[str]:
    """Return the names under which results are returned that are written inputs as well."""
    written = {id(result) for name, result in named_results.items() if name.startswith(INPUT)}
    return frozenset(
        name
        for name, result in named_results.items()
        if id(result) in written and not name.startswith(INPUT)
    )


#: Tells the seed of incoming gradients from that of the inputs of the same call.
_GRADIENTS = 0x67726164


def grad_out(out: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the incoming gradient of an output, see `drawn_like`.

    Drawn on the output's device, by a generator that the kernel cannot reach. `seed` is that of the
    inputs too: without a seed of its own the gradient would equal the first input of that shape.
    """
    return drawn_like(out, torch.Generator(out.device).manual_seed(seed ^ _GRADIENTS))


def drawn_like(out: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return values like an output: standard normal in float32, then the output's dtype.

    A single value has a drawn sign and a size of 1.5 to 1.625. Near zero all gradients of a loss
    would lie below an absolute tolerance. Near one a kernel that ignores it would be right.
    """
    values = torch.randn(
        out.shape, generator=generator, device=generator.device, dtype=torch.float32
    )
    if values.numel() == 1:
        values = torch.copysign(1.5 + values.abs().remainder(1) / 8, values)
    return values.to(device=out.device, dtype=out.dtype)


def addresses(arguments: Sequence[Any]) -> list[list[int]]:
    """Return where the plain tensors of each argument lie."""
    return [
        [address(tensor) for tensor in tensors(x) if tensor.layout is torch.strided]
        for x in arguments
    ]


class CandidateFunction:
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

    def __call__(self, arguments: Sequence[Any], seed: int) -> Run:
        """Run once; the incoming gradients are drawn under `seed`."""
        leaf_inputs = leaves(arguments) if self._case.backward else {}
        before = addresses(arguments)
        result = self._function(*arguments)
        after = addresses(arguments)
        # A list may hold more than before.
        moved = tuple(
            place for place, where in enumerate(before) if after[place][: len(where)] != where
        )
        outputs = results_of(self._case, result, arguments)
        copies = dict(zip(outputs, snapshots(list(outputs.values())), strict=True))
        differentiable = roots(outputs)
        gradients: Sequence[torch.Tensor | None] = [None] * len(leaf_inputs)
        if leaf_inputs and differentiable:
            gradients = backward(
                list(differentiable.values()),
                [self._gradient(name, out, seed) for name, out in differentiable.items()],
                list(leaf_inputs.values()),
            )
        live, copied = (
            dict(zip(leaf_inputs, x, strict=True)) for x in (gradients, snapshots(gradients))
        )
        return Run(Pass(outputs, live), Pass(copies, copied), moved)

    def shareable_memory(self, arguments: Sequence[Any]) -> frozenset[int]:
        """Return the memory a result may lie in: the inputs', and what a sum hands on."""
        return storages([*arguments, *self._incoming.values()])

    def incoming(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return [self._incoming[name] for name in self._drawn], [*self._drawn.values()]

    def _gradient(self, name: str, out: torch.Tensor, seed: int) -> torch.Tensor:
        values = grad_out(out, seed)
        incoming = self._incoming.get(name)
        if incoming is None or incoming.shape != values.shape or incoming.dtype != values.dtype:
            incoming = self._incoming[name] = self._lay(values)
        else:
            incoming.data.copy_(values)
        self._drawn[name] = values
        return incoming


@contextmanager
def watch_interpreter() -> Iterator[SimpleNamespace]:
    """Yield what is `seen` once Triton's interpreter has launched a kernel in this thread."""
    watch = SimpleNamespace(seen=False)

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        is_there = event == "call" and frame.f_globals.get("__name__") == INTERPRETER
        # Of other functions there torch.compile asks things.
        if is_there and frame.f_code.co_name == "__call__":
            watch.seen = True
            put_back()

    if INTERPRETER not in sys.modules:
        yield watch
        return
    with profile_hook(hook) as put_back:
        yield watch


def roots(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {
        name: out
        for name, out in outputs.items()
        if isinstance(out, torch.Tensor) and out.requires_grad
    }


def forget_compiled() -> None:
    """Have torch.compile forget what it made: of one function it makes eight versions, no more."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    # To forget nothing would import the whole compiler where a GPU is, for seconds.
    if dynamo and getattr(dynamo.convert_frame, "FRAME_COUNTER", 1):
        dynamo.reset()


def keep_graphs() -> None:
    """Have torch.compile let a backward run again on one graph, as loops here do."""
    from torch._functorch import config

    config.donated_buffer = False


class ComputingIn(TorchDispatchMode):
    """Has every operation take and give a dtype, of more than 8 bits, in place of a wider one.

    float64 stands in for float32, and for no narrower one: a case may ask for a rounding to that.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say whether to hide from torch's compiler; doing so imports it, which takes 0.7 s."""
        return "torch._dynamo" in sys.modules

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # What is drawn is rounded afterwards: another dtype would draw other numbers.
        if tensors([*args]):
            args, kwargs = tree_map(self._named, args), tree_map(self._named, kwargs)
        # What is written in place has the dtype that it was made with.
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        results = func(*args, **kwargs)
        if isinstance(results, tuple):
            # Statistics beside a result stay wide: torch's backward takes no others on a GPU.
            return (self._converted(results[0]), *results[1:])
        return tree_map(self._converted, results)

    def arguments(self, arguments: Sequence[Any]) -> list[Any]:
        """Return copies of arguments in the dtype, their gradients asked of the same ones."""

        def narrowed(leaf: Any) -> Any:
            converted = self._converted(leaf)
            return (
                converted
                if converted is leaf
                else converted.detach().requires_grad_(leaf.requires_grad)
            )

        return [mapped(argument, narrowed) for argument in fresh_copies(arguments)]

    def _converted(self, value: Any) -> Any:
        replaced = isinstance(value, torch.Tensor) and self._replaces(value.dtype)
        return value.to(self._dtype) if replaced else value

    def _named(self, value: Any) -> Any:
        return self._dtype if isinstance(value, torch.dtype) and self._replaces(value) else value

    def _replaces(self, dtype: torch.dtype) -> bool:
        if self._dtype is torch.float64:
            return dtype is torch.float32
        return dtype.is_floating_point and dtype.itemsize > self._dtype.itemsize > 1
