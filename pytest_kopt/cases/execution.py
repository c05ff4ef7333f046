"""One run of a case: the candidate's or the reference's outputs and gradients on given inputs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.seeds import seed_everything
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.guards import is_library
from pytest_kopt.honesty.outputs import taken
from pytest_kopt.numerics.compare import Comparison, compare
from pytest_kopt.numerics.determinism import tensors
from pytest_kopt.profile_hook import profile_hook

#: What a list of measurements looks like; nobody but a forger has reason to touch it.
_BAIT = (1.2034, 1.1987, 1.2101, 0.2)


@dataclass(frozen=True, slots=True)
class Pass:
    """Outputs and gradients (by position of the input) of one run."""

    outputs: list[Any]
    gradients: dict[int, torch.Tensor | None]

    @property
    def all(self) -> list[Any]:
        """Outputs, then gradients, whatever they are: of two runs, one beside the other."""
        return [*self.outputs, *self.gradients.values()]

    @property
    def results(self) -> list[torch.Tensor]:
        """The tensors among them."""
        return tensors(self.all)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the candidate: what it returned, and copies made in the moment it returned.

    The copies are what counts; `findings` is what the call itself gave away.
    """

    live: Pass
    kept: Pass
    findings: tuple[Finding, ...] = ()


def make_inputs(case: Case, seed: int) -> tuple[Any, ...]:
    """Return fresh inputs of a case made under a seed."""
    seed_everything(seed)
    given = case.inputs()
    if not isinstance(given, tuple | list):
        raise BadInput(
            f"inputs() returned {type(given).__name__}",
            where=f"case {case.nodeid}",
            legal="a tuple of the function's arguments",
        )
    return tuple(given)


def leaves(given: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Return the inputs that require grad, by position."""
    return {
        i: item
        for i, item in enumerate(given)
        if isinstance(item, torch.Tensor) and item.requires_grad
    }


def grad_out(out: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the incoming gradient of an output: standard normal in float32, then out's dtype.

    Drawn from a generator of its own so that candidate and reference get the same values whatever
    they did to the global one, and where the output lies: a processor draws 100 million in seconds.
    """
    return drawn_like(out, torch.Generator(out.device).manual_seed(seed))


def drawn_like(out: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor of an output's shape, dtype and device, standard normal in float32."""
    values = torch.randn(
        out.shape, generator=generator, device=generator.device, dtype=torch.float32
    )
    return values.to(device=out.device, dtype=out.dtype)


class Candidate:
    """A version of a case's function as it is checked: called on tensors that stay where they are.

    The incoming gradients lie at the same addresses in every call as well, so that a cache keyed on
    them is met with new content.
    """

    def __init__(self, case: Case, function: Callable[..., Any]) -> None:
        self._case = case
        self._function = function
        self._incoming: dict[int, torch.Tensor] = {}

    def __call__(self, given: Sequence[Any], seed: int) -> Run:
        """Run once; the incoming gradients are drawn under `seed`."""
        result, findings = self._watched(given)
        outputs = list(result) if isinstance(result, tuple | list) else [result]
        copies = taken(outputs)
        wanted = leaves(given) if self._case.backward else {}
        differentiable = [out for out in tensors(outputs) if out.requires_grad]
        if not wanted or not differentiable:
            nothing: dict[int, torch.Tensor | None] = dict.fromkeys(wanted)
            return Run(Pass(outputs, nothing), Pass(copies, nothing), findings)
        found = torch.autograd.grad(
            differentiable,
            list(wanted.values()),
            [self._gradient(i, out, seed) for i, out in enumerate(differentiable)],
            allow_unused=True,
        )
        kept = taken(found)
        return Run(
            Pass(outputs, dict(zip(wanted, found, strict=True))),
            Pass(copies, dict(zip(wanted, kept, strict=True))),
            findings,
        )

    def _watched(self, given: Sequence[Any]) -> tuple[Any, tuple[Finding, ...]]:
        """Call the function below a frame that holds what looks like measurements."""
        samples_ms = list(_BAIT)
        result = self._function(*given)
        if tuple(samples_ms) == _BAIT:
            return result, ()
        edited = Finding(
            "samples-edited",
            "the call rewrote a list of numbers in the frames above it",
            advice="a kernel has no business in its callers' variables",
        )
        return result, (edited,)

    def _gradient(self, place: int, out: torch.Tensor, seed: int) -> torch.Tensor:
        values = grad_out(out, seed)
        held = self._incoming.get(place)
        if held is None or held.shape != values.shape or held.dtype != values.dtype:
            held = self._incoming[place] = torch.empty_like(values)
        held.data.copy_(values)
        return held


class Reference:
    """The reference of a case, and the project code that produces its result."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._own = _code_of(case.reference)
        self._producers: frozenset[CodeType] | None = None

    def __call__(self, given: Sequence[Any], like: Pass, seed: int) -> Pass:
        """Run on pristine inputs; `like` is the candidate's run, whose dtypes grad_out follows."""
        outputs = self.forward(given)
        if not self._case.backward:
            return Pass(outputs, {})
        # The candidate's rounding of grad_out is part of its input, not of its error.
        incoming = [
            grad_out(out if isinstance(out, torch.Tensor) and out.shape == ref.shape else ref, seed)
            for ref, out in zip(outputs, like.outputs, strict=False)
            if isinstance(ref, torch.Tensor) and ref.requires_grad
        ]
        return Pass(outputs, self._gradients(outputs, given, incoming))

    def forward(self, given: Sequence[Any]) -> list[Any]:
        """Return the outputs."""
        if self._producers is not None:
            result = self._case.reference(*given)
        else:
            result, self._producers = _producers(self._case.reference, given)
        return list(result) if isinstance(result, tuple | list) else [result]

    def backward(
        self, given: Sequence[Any], incoming: Sequence[torch.Tensor]
    ) -> dict[int, torch.Tensor | None]:
        """Return the gradients of the inputs, by position, for incoming gradients in order."""
        return self._gradients(self.forward(given), given, incoming)

    def _gradients(
        self, outputs: Sequence[Any], given: Sequence[Any], incoming: Sequence[torch.Tensor]
    ) -> dict[int, torch.Tensor | None]:
        wanted = leaves(given)
        roots = [out for out in tensors(outputs) if out.requires_grad][: len(incoming)]
        seeds = [
            grad.to(device=out.device, dtype=out.dtype)
            for out, grad in zip(roots, incoming, strict=True)
        ]
        found = torch.autograd.grad(roots, list(wanted.values()), seeds, allow_unused=True)
        return dict(zip(wanted, found, strict=True))

    def called(self, code: frozenset[CodeType], run: Pass, expected: Pass) -> list[Finding]:
        """Return a finding when a call, which ran this code, let the reference do the work.

        That is: it ran the reference itself, or project code that makes the reference's result, and
        got its very bits. Code of the kernel's own that the reference is made of does not count.
        """
        own = _code_of(self._case.function)
        home = own.co_filename if own else ""
        direct = self._own is not None and self._own is not own and self._own in code
        made = {c for c in self._producers or () if c.co_filename != home}
        through = bool(made & code) and all(
            isinstance(out, torch.Tensor) and torch.equal(out.detach(), ref.detach().to(out.dtype))
            for ref, out in zip(expected.outputs, run.outputs, strict=True)
        )
        if not direct and not through:
            return []
        return [
            Finding(
                "reference-called",
                "the call lets the case's own reference compute the result",
                advice="the reference is what the kernel is judged by; compute it in the kernel",
            )
        ]


def judge(case: Case, expected: Pass, run: Pass) -> list[Comparison]:
    """Judge every output and gradient of a run against the reference's."""
    if len(expected.outputs) != len(run.outputs):
        reason = f"returns {len(run.outputs)} values, the reference {len(expected.outputs)}"
        return [Comparison("out", False, "same number of outputs", reason)]
    return [compare(ref, out, case.gate, name) for name, ref, out in pairs(expected, run)]


def pairs(expected: Pass, run: Pass) -> Iterable[tuple[str, torch.Tensor, Any]]:
    """Yield name, reference and result of every output and of every gradient that exists."""
    several = len(expected.outputs) > 1
    for i, (ref, out) in enumerate(zip(expected.outputs, run.outputs, strict=True)):
        yield (f"out[{i}]" if several else "out"), ref, out
    for position, ref in expected.gradients.items():
        if ref is not None:
            yield f"grad of input {position}", ref, run.gradients.get(position)


def _code_of(function: Any) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code if isinstance(code, CodeType) else None


def _producers(
    reference: Callable[..., Any], given: Sequence[Any]
) -> tuple[Any, frozenset[CodeType]]:
    """Call the reference; return its result and the project code that returned that very object."""
    returned: list[tuple[CodeType, Any]] = []

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" and not is_library(frame.f_code.co_filename):
            returned.append((frame.f_code, argument))

    with profile_hook(hook):
        result = reference(*given)
    return result, frozenset(code for code, value in returned if value is result)
