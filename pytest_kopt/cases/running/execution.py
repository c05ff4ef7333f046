"""One run of a case: the candidate's or the reference's outputs and gradients on given inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.seeds import seed_everything
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import SCALABLE, leaves
from pytest_kopt.honesty.outputs import taken
from pytest_kopt.honesty.precision import least_exact
from pytest_kopt.honesty.work import INTERPRETER
from pytest_kopt.numerics.compare import Comparison, compare
from pytest_kopt.numerics.determinism import bits
from pytest_kopt.numerics.gates import Gate
from pytest_kopt.numerics.nested import address, contents, flatten, storages, tensors
from pytest_kopt.numerics.snr import compute_snr, wide
from pytest_kopt.profile_hook import profile_hook, watched_call

#: A call that returned with a hook may do its work when the clock has stopped.
HOOKED = Finding(
    "late-result",
    "a call left a hook on Python's calls (sys.setprofile, sys.settrace, sys.monitoring)",
    advice="do all the work within the call",
)
#: How the name of an input that is written to begins.
INPUT = "input "
#: What a list of measurements looks like; nobody but a forger has reason to touch it.
_BAIT = (1.2034, 1.1987, 1.2101, 0.2)
#: Of a larger input only the rows that were written to are compared: the rest is memory alone.
_LARGE = 1 << 20
#: How many numbers at most a generator among the inputs is ahead of where `inputs()` left it.
_MOST_AHEAD = 1000


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
    """A run of the candidate: what it returned, copies made in that moment, its caller's list.

    `is_hooked` says that it left a hook on Python's calls, `moved` are the positions of the inputs
    that it left in other memory than they had.
    """

    live: Pass
    kept: Pass
    bait: tuple[float, ...]
    is_hooked: bool = False
    moved: tuple[int, ...] = ()


def make_inputs(case: Case, seed: int) -> tuple[Any, ...]:
    """Return fresh inputs of a case made under a seed."""
    given = draw_inputs(case, seed)
    return tuple(given.values() if isinstance(given, Mapping) else given)


def draw_inputs(case: Case, seed: int) -> Sequence[Any] | Mapping[str, Any]:
    """Return them as `inputs()` does; what is drawn from generators there is content as well."""
    seed_everything(seed)
    given = case.inputs()
    if not isinstance(given, tuple | list | Mapping):
        raise case.refusal(
            f"inputs() returned {type(given).__name__}",
            "a tuple of the function's arguments, or a dict of them by name",
        )
    for item in contents(dict(given) if isinstance(given, Mapping) else given):
        if isinstance(item, torch.Generator):
            torch.rand(1 + seed % _MOST_AHEAD, device=item.device, generator=item)
    return given


def results(returned: Any, given: Sequence[Any], writes: Iterable[int]) -> dict[str, Any]:
    """Return what a call returned, and the inputs that it writes to, by name."""
    found = {} if returned is None else flatten(returned, "out")
    for place in writes:
        found |= flatten(given[place], f"{INPUT}{place}")
    return found


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
        (result, bait), is_hooked = watched_call(lambda: self._baited(given))
        after = addresses(given)
        moved = tuple(place for place, where in enumerate(before) if after[place] != where)
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
        return Run(Pass(outputs, live), Pass(copies, kept), bait, is_hooked, moved)

    def held(self, given: Sequence[Any]) -> frozenset[int]:
        """Return the memory a result may lie in: the inputs', and what a sum hands on."""
        return storages([*given, *self._incoming.values()])

    def incoming(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return [self._incoming[name] for name in self._drawn], [*self._drawn.values()]

    def _baited(self, given: Sequence[Any]) -> tuple[Any, tuple[float, ...]]:
        """Call the function below a frame that holds what looks like measurements."""
        samples_ms = list(_BAIT)
        return self._function(*given), tuple(samples_ms)

    def _gradient(self, name: str, out: torch.Tensor, seed: int) -> torch.Tensor:
        values = grad_out(out, seed)
        held = self._incoming.get(name)
        if held is None or held.shape != values.shape or held.dtype != values.dtype:
            held = self._incoming[name] = self._lay(values)
        else:
            held.data.copy_(values)
        self._drawn[name] = values
        return held


@contextmanager
def watch_interpreter() -> Iterator[SimpleNamespace]:
    """Yield what is `seen` once this thread has run a frame of Triton's interpreter."""
    watch = SimpleNamespace(seen=False)

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        # torch.compile asks that module for things; a launch is a call of its executor.
        where = frame.f_globals.get("__name__"), frame.f_code.co_name
        if event == "call" and where == (INTERPRETER, "__call__"):
            watch.seen = True
            put_back()

    if INTERPRETER not in sys.modules:
        yield watch
        return
    with profile_hook(hook) as put_back:
        yield watch


def left_behind(what: str, bait: tuple[float, ...], is_hooked: bool) -> Iterator[Finding]:
    """Say what else than its result a call left: other numbers in its callers' list, or a hook."""
    if bait != _BAIT:
        did = "the call rewrote a list of numbers in the frames above it"
        advice = "a kernel must not change its callers' variables"
        yield Finding("samples-edited", did, advice=advice)
    # What a library sets up once, in the first call of all, is not the kernel's doing.
    if is_hooked and what:
        yield HOOKED


def judge_twice(
    case: Case, expected: Pass, run: Pass, in_float64: Callable[[], Pass | None]
) -> tuple[Pass, list[Comparison]]:
    """Judge a run by the reference and, where that finds it wrong, by the one in float64 as well.

    A run that is right by either is right, and so is one that errs less than the reference does;
    what found it so is returned. A reference may err in float32 by more than the case's tolerance.
    """
    found = judge(case, expected, run)
    if all(item.passed for item in found) or (exact := in_float64()) is None:
        return expected, found
    if run.outputs.keys() != exact.outputs.keys():
        return expected, found
    both = zip(judge(case, exact, run), pairs(exact, run), pairs(expected, run), strict=True)
    nearer = [
        item if item.passed else replace(item, passed=_errs_less(truth, out, ref))
        for item, (_, truth, out), (_, ref, _) in both
    ]
    return (exact, nearer) if all(item.passed for item in nearer) else (expected, found)


def nearest(
    expected: Pass, run: Pass, in_float64: Callable[[], Pass | None]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield floating-point results, each with the reference's that it is nearest to.

    Which is that in float64, perhaps, where the declared one computes no finer than the result.
    """
    computed_in, exact = least_exact([*expected.outputs.values()]), None
    for name, ref, out in pairs(expected, run):
        if not (isinstance(out, torch.Tensor) and out.is_floating_point()):
            continue
        if torch.finfo(computed_in).eps >= torch.finfo(out.dtype).eps:
            exact = exact or in_float64() or expected
            (other,) = (found for n, found, _ in pairs(exact, run) if n == name)
            ref = max(ref, other, key=partial(compute_snr, actual=out))
        yield name, ref, out


def _errs_less(truth: Any, out: Any, ref: Any) -> bool:
    if not (_is_floating(truth) and is_shaped(out, truth) and is_shaped(ref, truth)):
        return False
    mine, others = ((wide(item).to(truth.device) - wide(truth)).norm() for item in (out, ref))
    return bool(mine <= others)


def judge(case: Case, expected: Pass, run: Pass) -> list[Comparison]:
    if expected.outputs.keys() != run.outputs.keys():
        reason = f"gives {_listed(run.outputs)}, the reference {_listed(expected.outputs)}"
        if not run.outputs:
            reason += "; if it writes into a buffer from inputs(), declare writes=(POSITION,)"
        return [Comparison("out", False, "the same outputs", reason)]
    if isinstance(case.gate, Mapping):
        names = [name for name, _, _ in pairs(expected, run)]
        if unknown := case.gate.keys() - {*names}:
            raise case.refusal(f"gate has {min(unknown)!r}, and no output has this name", names)
    return [_compared(expected, run, *pair) for pair in gated(case, expected, run)]


def _compared(
    expected: Pass, run: Pass, name: str, ref: Any, out: Any, gate: Gate | None
) -> Comparison:
    if expected.nan_is_equal and bool(nans(ref).any()):
        return _number_for_nan(ref, name)
    return _in_the_whole(compare(ref, out, gate, name), expected, run)


def gated(case: Case, expected: Pass, run: Pass) -> Iterator[tuple[str, Any, Any, Gate | None]]:
    """Yield the pairs with the case's gate for each, None where the dtype chooses it."""
    found = list(pairs(expected, run))
    # One gate is that of the floating-point outputs where there are any: indices are exact.
    inexact = any(_is_floating(ref) for _, ref, _ in found)
    is_single = inexact and not isinstance(case.gate, Mapping)
    for name, ref, out in found:
        is_exact = is_single and not _is_floating(ref)
        yield name, ref, out, None if is_exact else case.gate_of(name)


def _is_floating(item: Any) -> bool:
    return item.is_floating_point() if isinstance(item, torch.Tensor) else isinstance(item, float)


def nans(item: Any) -> torch.Tensor:
    """Return where a result is NaN."""
    if not _is_floating(item):
        return torch.zeros(1)
    item = torch.as_tensor(item)
    return (item if item.dtype in SCALABLE else wide(item)).isnan()


def _number_for_nan(ref: Any, name: str) -> Comparison:
    count = int(nans(ref).sum())
    reason = f"holds no NaN at {count} places where the reference has it"
    return Comparison(name, False, 'nan="equal"', reason)


def _without_nan(ref: Any, out: Any) -> tuple[Any, Any]:
    """Return zero for NaN that both results have; one of another shape has none in common."""
    if not (_is_floating(ref) and _is_floating(out)):
        return ref, out
    if not is_shaped(out, ref):
        return torch.nan_to_num(torch.as_tensor(ref)), out
    both = nans(ref) & nans(out).to(ref.device)
    return ref.masked_fill(both, 0), out.masked_fill(both.to(out.device), 0)


def pairs(expected: Pass, run: Pass) -> Iterable[tuple[str, Any, Any]]:
    """Yield name, reference and result of every output and of every gradient that exists.

    Of an input that the reference writes to only what it or the candidate changed is left, zero
    stands for the rest: one wrong row of a large cache has to weigh as much as any other result.
    Zero stands for NaN as well that is right.
    """
    for name, ref, out in _pairs(expected, run):
        yield name, *(_without_nan(ref, out) if expected.nan_is_equal else (ref, out))


def _pairs(expected: Pass, run: Pass) -> Iterable[tuple[str, Any, Any]]:
    for name, ref in expected.outputs.items():
        before, out = expected.before.get(name), run.outputs[name]
        if before is None or not is_shaped(out, ref):
            yield name, ref, out
        else:
            untouched = (bits(ref) == bits(before)) & (bits(out) == bits(before))
            rows = _touched_rows(untouched)
            if rows is not None:
                ref, out, untouched = ref[rows], out[rows.to(out.device)], untouched[rows]
            yield name, _without(ref, untouched), _without(out, untouched)
    for position, ref in expected.gradients.items():
        if ref is not None:
            yield f"grad of input {position}", ref, run.gradients.get(position)


def _touched_rows(untouched: torch.Tensor) -> torch.Tensor | None:
    """Return which rows of a large tensor were written to, None of a small one: all count there."""
    if untouched.numel() < _LARGE or untouched.ndim < 2:
        return None
    return (~untouched.flatten(1).all(1)).nonzero().flatten()


def _in_the_whole(comparison: Comparison, expected: Pass, run: Pass) -> Comparison:
    """Return a failed comparison of written rows with its worst element's index in the whole."""
    before, figures = expected.before.get(comparison.name), comparison.figures
    if comparison.passed or before is None or figures is None or not figures.worst_index:
        return comparison
    ref, out = expected.outputs[comparison.name], run.outputs[comparison.name]
    rows = _touched_rows((bits(ref) == bits(before)) & (bits(out) == bits(before)))
    if rows is None:
        return comparison
    index = (int(rows[figures.worst_index[0]]), *figures.worst_index[1:])
    return replace(comparison, figures=replace(figures, worst_index=index))


def roots(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {
        name: out
        for name, out in outputs.items()
        if isinstance(out, torch.Tensor) and out.requires_grad
    }


def is_shaped(out: Any, ref: Any) -> bool:
    both = isinstance(out, torch.Tensor) and isinstance(ref, torch.Tensor)
    return both and out.shape == ref.shape


def _without(tensor: torch.Tensor, untouched: torch.Tensor) -> torch.Tensor:
    kept = bits(tensor).masked_fill(untouched.to(tensor.device), 0)
    return kept.view(tensor.dtype)


def _listed(outputs: Mapping[str, Any]) -> str:
    return ", ".join(outputs) or "nothing"
