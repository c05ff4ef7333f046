"""Tries a case at shapes near its own and with other inputs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.groups import SKEWED, has_skew, is_integer, redrawn
from pytest_kopt.cases.nearby import layouts, sizes
from pytest_kopt.cases.nearby.input_values import PLAINLY_RIGHT_DB
from pytest_kopt.cases.nearby.variant import Variant, beside
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, derive
from pytest_kopt.cases.running.against_reference import (
    judge,
    judge_twice,
    nearest,
    nearly_right,
    pairs,
)
from pytest_kopt.cases.running.execution import CandidateFunction, Pass, Run, make_inputs
from pytest_kopt.cases.running.reference import Reference
from pytest_kopt.devices.context import is_lost
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.inputs import RestoredArguments
from pytest_kopt.honesty.nearby_shapes import (
    CLOSE,
    DOMINANT,
    SHAPES,
    SIZES,
    TIED,
    TWICE,
    UNSAID,
    Outcome,
    Tried,
)
from pytest_kopt.honesty.outputs import accuracy_of, least_exact
from pytest_kopt.honesty.outputs import layouts as layouts_of
from pytest_kopt.numerics.compare import Comparison
from pytest_kopt.numerics.gates import snr
from pytest_kopt.numerics.nested import fresh_copies, mapped

_TRIES, _PAIRS = 3, 7
#: By so many times its tolerance such a share of a result may err near the declared inputs.
_HAIR, _FEW = 1.5, 1e-5
#: Other processes of the round hold memory of the GPU meanwhile.
_NO_MEMORY = "the GPU had not enough memory left"
#: Inputs that are rounded may move a result by so many times less than it errs.
_ROUNDINGS = 8


class Declared(Exception):
    """Ends a test function at its call of `kopt`, with that call's arguments."""


@dataclass
class ShapeProbe:
    """Stands in for the `kopt` fixture."""

    device: str

    def __call__(self, *arguments: Any, **declared: Any) -> None:
        raise Declared(arguments, declared)


def held_out_cases(test: pytest.Function, case: Case, device: str, seed: int) -> Iterator[Variant]:
    """Yield the case at a nearby shape of each kind, and with every other kind of inputs."""
    parameters = _parameters(test)
    if SIZES not in case.domain:
        yield from _other_shapes(test, parameters, case, device, seed)
    for variant in layouts.variants(case, seed, sizes.carried(parameters, case.dims)):
        # A variant's own gate compares elements.
        kept = replace(variant.case, gate=case.gate) if case.is_statistical else variant.case
        yield variant._replace(case=kept)


def _parameters(test: pytest.Function) -> dict[str, Any]:
    parameters = dict(test.callspec.params) if hasattr(test, "callspec") else {}
    return {name: value for name, value in parameters.items() if name in test.funcargs}


def _other_shapes(
    test: pytest.Function, parameters: dict[str, Any], case: Case, device: str, seed: int
) -> Iterator[Variant]:
    names = [name for name, value in test.funcargs.items() if value is not parameters.get(name)]
    dice = random.Random(seed)
    for kind in SHAPES:
        for _ in range(_TRIES):
            moved = sizes.perturbed(parameters, case.dims, kind, dice)
            if moved is None:
                return
            near = _declared(test, names, moved, case, device)
            # Not where it is timed: the declared case is what that is held against.
            if near is not None and kind == "uneven" and has_skew(near):
                near = redrawn(near, dice.choice(SKEWED))
            if near is not None and _has_inputs(near, seed):
                yield Variant(near, kind=kind)
                break


def try_shape(
    variant: Variant,
    versions: Mapping[str, Callable[..., Any]],
    device: str,
    seed: int,
    language: str = "",
) -> Tried | None:
    """Run the versions of a case near its own; None where that is not supported.

    `language` is the campaign's, "" where there is none.
    """
    near = variant.case
    tried = Tried(
        near.nodeid, variant.kind, dict(near.dims), variant=variant.where, untried=variant.untried
    )
    if variant.untried:
        return tried
    try:
        content = _TriedContent(variant, seed, language)
    except Exception:
        return None
    for name in (INCUMBENT, CANDIDATE):
        if name not in versions:
            continue
        try:
            outcome, problem = content.outcome(variant.of(versions[name]))
        except torch.OutOfMemoryError:
            return replace(tried, outcomes={}, what={}, untried=_NO_MEMORY)
        if is_lost(device):
            # Nothing more can be timed here.
            os._exit(1)
        if outcome is None and tried.outcomes.get(INCUMBENT) == "right":
            outcome = "raises"
            problem = "gives results that cannot be compared with the reference's"
        if outcome is None:
            return None
        tried.outcomes[name] = outcome
        if problem:
            tried.what[name] = problem
        if outcome != "right":
            # Where the incumbent is not right, nothing is asked of the candidate.
            break
    return tried


def reached(case: Case, function: Callable[..., Any], seed: int) -> dict[str, Accuracy]:
    """Return how exact a version is on what the case draws, by name; nothing of draws."""
    if case.is_statistical:
        return {}
    inputs, reference = make_inputs(case, seed), Reference(case)
    arguments = fresh_copies(inputs)
    run = CandidateFunction(case, function)(arguments, seed)
    lies = layouts_of(run.live.outputs, arguments, case.consumes)
    declared = reference(fresh_copies(inputs), run.live, seed)
    computed_in = least_exact([*declared.outputs.values()])
    exact = partial(reference.exact, inputs, run.live, seed)
    results = nearest(declared, run.copies, exact)
    return {
        name: replace(accuracy_of(ref, out, computed_in), layout=lies.get(name))
        for name, ref, out in results
    }


def time_shape(
    tried: Tried,
    case: Case,
    near: Case,
    versions: Mapping[str, Callable[..., Any]],
    device: str,
    seed: int,
) -> None:
    """Time the versions at a shape that all are right at, and in the same way at the case's own.

    All take turns; the least time of a forward call counts.
    """
    cases = near, case
    inputs = [
        RestoredArguments(make_inputs(c, derive(seed, c.nodeid, "speed")), c.rewritten)
        for c in cases
    ]
    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    turns = [(place, name) for name in tried.outcomes for place in range(len(cases))]
    times: dict[tuple[int, str], list[float]] = {turn: [] for turn in turns}
    for number in range(2 * _PAIRS):
        for place, name in turns if number % 2 else reversed(turns):
            inputs[place].restore()
            synchronize()
            start = time.perf_counter()
            cases[place].positional(versions[name])(*inputs[place].live)
            synchronize()
            times[place, name].append(time.perf_counter() - start)
    for (place, name), seconds in times.items():
        (tried.seconds, tried.declared_seconds)[place][name] = min(seconds[_PAIRS:])


def _declared(
    test: pytest.Function,
    names: list[str],
    moved: Mapping[str, Any],
    case: Case,
    device: str,
) -> Case | None:
    needed = test._fixtureinfo.argnames
    arguments = {name: test.funcargs[name] for name in names if name in needed}
    arguments |= {name: value for name, value in moved.items() if name in needed}
    arguments["kopt"] = ShapeProbe(device)
    with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):
        try:
            test.obj(**arguments)
        except Declared as declaration:
            positional, declared = declaration.args
            near = declare(test.nodeid, case.schema, *positional, **declared).like(case)
            return near if near.function is case.function and near.dims != case.dims else None
    return None


def _has_inputs(case: Case, seed: int) -> bool:
    try:
        make_inputs(case, seed)
    except Exception:
        return False
    return True


class _TriedContent:
    """The inputs on which the versions of a case are tried, and the expected results, made once."""

    def __init__(self, variant: Variant, seed: int, language: str) -> None:
        self._variant, self._seed, self._language = variant, seed, language
        self._inputs = make_inputs(variant.case, seed)
        self._reference = Reference(variant.case, variant.incoming)
        self._expected: dict[str, Pass] = {}

    def outcome(self, function: Callable[..., Any]) -> tuple[Outcome | None, str]:
        """Return what a version does, None where the reference does not support the content."""
        case, kind, raised = self._variant.case, self._variant.kind, ""
        candidate = CandidateFunction(case, function, self._variant.incoming)
        try:
            # A size that comes again is the one in use: its first call may do something else.
            for _ in range(2 if kind in SHAPES else 1):
                run = candidate(self._variant.lay(fresh_copies(self._inputs)), self._seed)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raised = f"{type(error).__name__}: {error}".splitlines()[0]
        try:
            if raised:
                self._reference.forward(fresh_copies(self._inputs), ())
                return "raises", raised
            expected = self._expected_of(run.live)
            if not self._variant.counts(self._inputs, [*expected.outputs.values()]):
                return None, ""
            # Which of equal elements an index names is the kernel's own choice; where values lie
            # close together, which one it names is all that is asked.
            unsaid = [
                name
                for name, out in expected.outputs.items()
                if (kind in TIED and is_integer(out)) or (kind == CLOSE and not is_integer(out))
            ]
            exact = partial(self._reference.exact, self._inputs, run.live, self._seed)
            expected, comparisons = judge_twice(case, expected, run.copies, exact)
            wrong = [
                comparison
                for comparison in comparisons
                if not (comparison.passed or (comparison.figures and comparison.name in unsaid))
            ]
            if kind == DOMINANT and not wrong:
                wrong = [*_wrong_in_a_row(expected, run.copies)]
            if (
                not wrong
                or self._misses_by_a_hair(wrong, expected, run.copies)
                or self._is_rounding(wrong, run)
            ):
                return "right", ""
            # A kernel that takes a wider dtype's memory for another's cannot say so, nor one whose
            # backward is its own that this has no gradient.
            loose = replace(case, gate=snr(PLAINLY_RIGHT_DB))
            plainly_right = all(
                comparison.passed for comparison in judge(loose, expected, run.copies)
            )
            foreign = kind in UNSAID and not (plainly_right or self._is_detached(run))
            return "raises" if foreign else "wrong", wrong[0].line
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return None, ""

    def _is_detached(self, run: Run) -> bool:
        """Say whether a version in torch's operators, which have gradients, leaves all out."""
        if self._language != "TORCH" or self._variant.kind != TWICE:
            return False
        return not any(bool(out.count_nonzero()) for out in run.copies.results)

    def _misses_by_a_hair(self, wrong: Sequence[Comparison], expected: Pass, results: Pass) -> bool:
        """Say whether results err by little more than their tolerance in very few elements.

        An honest version that meets its gate on the declared inputs may miss it in one of millions
        of elements on others.
        """
        if not all(
            comparison.figures and 0 < comparison.figures.mismatch_share <= _FEW
            for comparison in wrong
        ):
            return False
        nearly = nearly_right(self._variant.case, expected, results, _HAIR)
        return nearly.issuperset(comparison.name for comparison in wrong)

    def _is_rounding(self, wrong: Sequence[Comparison], run: Run) -> bool:
        """Say whether results err by what the reference moves when its inputs are rounded.

        In a row of one value minus its mean only rounding is left, and a kernel has its own. Inputs
        move by float32's epsilon: a narrower dtype is no reason to compute in it.
        """
        in_float64 = partial(self._reference.exact, self._inputs, run.live, self._seed)
        exact, moved = in_float64(), in_float64(partial(_rounded, seed=self._seed))
        if exact is None or moved is None:
            return False
        moves = {name: other for name, _, other in pairs(exact, moved)}
        errors = {name: (ref, out) for name, ref, out in pairs(exact, run.copies)}
        return all(
            comparison.figures and _errs_within(*errors[comparison.name], moves[comparison.name])
            for comparison in wrong
        )

    def _expected_of(self, like: Pass) -> Pass:
        """Return the reference's results; incoming gradients are of the outputs' dtypes."""
        key = repr([(name, getattr(out, "dtype", "")) for name, out in like.outputs.items()])
        if key not in self._expected:
            expected = self._reference(fresh_copies(self._inputs), like, self._seed)
            self._expected[key] = expected
        return self._expected[key]


def _rounded(inputs: Sequence[Any], seed: int) -> Sequence[Any]:
    """Return inputs whose floating-point numbers moved by float32's epsilon, up or down."""
    generator = torch.Generator().manual_seed(seed)

    def moved(tensor: Any) -> Any:
        if type(tensor) is not torch.Tensor or not tensor.is_floating_point():
            return tensor
        own = beside(tensor, generator)
        bits = torch.randint(0, 2, tensor.shape, generator=own, device=tensor.device)
        signs = bits.to(tensor) * 2 - 1
        step = 1 + signs * torch.finfo(torch.float32).eps
        return (tensor.detach() * step).requires_grad_(tensor.requires_grad)

    rounded: Sequence[Any] = mapped(inputs, moved, (torch.Tensor,))
    return rounded


def _wrong_in_a_row(expected: Pass, results: Pass) -> Iterator[Comparison]:
    """Yield a failed comparison for each result with a row that is plainly wrong by itself."""
    for name, ref, out in pairs(expected, results):
        if isinstance(out, torch.Tensor) and out.is_floating_point() and ref.ndim > 1:
            size, error = (rows.double().norm(dim=-1) for rows in (ref, out.to(ref) - ref))
            wrong = error > size * 10 ** (-PLAINLY_RIGHT_DB / 20)
            if bool((wrong & (size > 0)).any()):
                gate = f"SNR >= {PLAINLY_RIGHT_DB:g} dB in each row"
                yield Comparison(name, False, gate, "outside the tolerance in a row")


def _errs_within(reference: Any, result: Any, moved: Any) -> bool:
    """Say whether a result's squared error is within the limit that the reference's moves set."""
    if not (isinstance(result, torch.Tensor) and result.is_floating_point()):
        return False
    error, move = (
        (value.double() - reference.double()).square().mean() for value in (result, moved)
    )
    return bool(error <= _ROUNDINGS**2 * move)
