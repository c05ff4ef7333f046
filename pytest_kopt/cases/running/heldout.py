"""Tries a case at shapes near its own and with other inputs.

The rule is the same for all: where the reference gives a result and the current best has it, the
candidate has to have it as well.
"""

from __future__ import annotations

import inspect
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from _pytest.fixtures import resolve_fixture_function

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.groups import SKEWED, has_skew, is_integer, redrawn
from pytest_kopt.cases.nearby.near_inputs import stepped, variants
from pytest_kopt.cases.nearby.variant import PLAINLY_RIGHT_DB, Variant, signs
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, Bench, derive
from pytest_kopt.cases.protocol import CaseServed
from pytest_kopt.cases.running.against_reference import judge_twice, nearest, nearly_right, pairs
from pytest_kopt.cases.running.autotuning import nearest_choices
from pytest_kopt.cases.running.execution import (
    CandidateFunction,
    Pass,
    Run,
    forget_compiled,
    make_inputs,
)
from pytest_kopt.cases.running.reference import Reference
from pytest_kopt.clock import Stopwatch
from pytest_kopt.devices.context import is_lost
from pytest_kopt.devices.lock import checking_lock, timing_lock
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.inputs import RestoredArguments
from pytest_kopt.honesty.nearby_shapes import (
    NO_MEMORY_LEFT,
    SIZES,
    Kind,
    Outcome,
    Tried,
    is_required,
)
from pytest_kopt.honesty.outputs import accuracy_of, least_exact
from pytest_kopt.honesty.outputs import layouts as layouts_of
from pytest_kopt.measure.wall import one_thread
from pytest_kopt.numerics.compare import Comparison
from pytest_kopt.numerics.nested import flatten, fresh_copies, mapped

_PAIRS = 7
#: By so many times its tolerance such a share of a result may err near the declared inputs.
_HAIR, _FEW = 1.5, 1e-5
#: Inputs that are rounded may move a result by so many times less than it errs.
_ROUNDINGS = 8
#: So many variants are tried however long they take, and more for so long.
_TRIED, _TRYING_SECONDS = 4, 3.0
#: Others wait so long for a device that is tried on, and this for every turn of theirs.
_AT_ONCE_SECONDS = 0.1
#: Why something was not tried.
_NO_TIME = f"the limit of {_TRYING_SECONDS:g} s a case was over"
_NO_SIZE = "kopt could move no size of its parameters or inputs"


def try_case(
    test: pytest.Function,
    case: Case,
    versions: Mapping[str, Callable[..., Any]],
    bench: Bench,
    secret: int,
) -> Iterator[Tried]:
    """Try the versions along every axis, but not while somebody times on the device.

    The axes that could not be tried come last, with the reason.
    """
    seed = derive(secret, case.nodeid, "held out")
    is_alone = not bench.decides
    spent, is_over = 0.0, False
    judged, missed = set[tuple[Kind, str]](), dict[tuple[Kind, str], str]()
    with ExitStack() as fixtures, _ending_if_lost(bench.device), nearest_choices():
        drawn = held_out_cases(test, case, bench.device, seed, fixtures)
        if is_alone:
            # Another use than the case's is the current best's matter.
            drawn = (variant for variant in drawn if is_required(variant.kind, case.domain))
        remaining = enumerate(drawn)
        while not is_over:
            to_time = list[tuple[Tried, Case]]()
            with one_thread(), checking_lock(bench.uuid, bench.waiting):
                # Without what it waited for others: what is tried must not depend on them.
                watch, took, is_over = Stopwatch(on_cpu=bench.device == "cpu"), 0.0, True
                for number, variant in remaining:
                    part = variant.kind, variant.part
                    if variant.untried:
                        missed[part] = variant.untried
                    elif tried := try_variant(variant, versions, bench.device, seed):
                        judged |= {part} if "right" in tried.outcomes.values() else set()
                        if tried.asks_for_times and not is_alone:
                            to_time.append((tried, variant.case))
                        else:
                            yield tried
                    forget_compiled()
                    took = watch.seconds()
                    is_over = number + 1 >= _TRIED and spent + took > _TRYING_SECONDS
                    if is_over or took > _AT_ONCE_SECONDS:
                        break
                spent += took
            for tried, near in to_time:
                # A version that raises in a later call is not timed, and all other axes are tried.
                timed = suppress(BaseException)
                with timed, one_thread(), timing_lock(bench.uuid, bench.waiting):
                    time_shape(tried, case, near, versions, bench.device, seed)
                yield tried
        left = {(variant.kind, ""): _NO_TIME for _, variant in remaining}
    kinds = {kind for kind, _ in judged | left.keys()}
    if SIZES not in case.domain and kinds.isdisjoint({"aligned", "size"}):
        left["size", ""] = _NO_SIZE
    for at, why in missed.items():
        if at not in judged and (at[0], "") not in left:
            left[at] = why
    for (kind, name), why in left.items():
        yield Tried(case.nodeid, kind, dict(case.dims), variant=name, untried=why)


def held_out_cases(
    test: pytest.Function, case: Case, device: str, seed: int, fixtures: ExitStack
) -> Iterator[Variant]:
    """Yield the case at another size that is timed, then along every axis.

    `fixtures` closes what fixtures of the test made for other sizes.
    """
    dice = random.Random(seed)
    declared = partial(_declared, test, case, device, seed, fixtures)
    if SIZES not in case.domain:
        sizes = sorted({n for n in case.dims.values() if type(n) is int and n > 1})
        chosen = [n for n in sizes if dice.random() < 0.5] or sizes
        for moving in (chosen, sizes):
            near = declared({n: stepped(n, dice) for n in moving}) if moving else None
            if near is not None:
                yield Variant(near, kind="aligned")
                break
    for variant in variants(case, seed, declared):
        # Not where it is timed: the declared case is what that is held against.
        if variant.kind == "size" and has_skew(case) and not variant.untried:
            variant = variant._replace(case=redrawn(variant.case, dice.choice(SKEWED)))
        # A variant's own gate compares elements.
        kept = replace(variant.case, gate=case.gate) if case.is_statistical else variant.case
        yield variant._replace(case=kept)


@dataclass
class ShapeProbe:
    """Stands in for the `kopt` fixture: keeps the arguments of its call, and leaves the test."""

    device: str
    call: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __call__(self, *arguments: Any, **declared: Any) -> None:
        self.call = arguments, declared
        raise CaseServed


class _MovedFixtures:
    """The values of a test's fixtures with sizes moved in its parameters and fixtures.

    A fixture is set up again if it depends on a moved one. All others keep their value.
    """

    def __init__(self, test: pytest.Function, moved: Mapping[int, int], close: ExitStack) -> None:
        self._test, self._close = test, close
        self._move = partial(mapped, change=lambda x: _moved(x, moved), kinds=(int,))
        self._parameters = dict(test.callspec.params) if hasattr(test, "callspec") else {}
        self._values: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """Return a fixture's value with the sizes moved; pytest's own if nothing moves it."""
        if name not in self._values:
            self._values[name] = self._made(name)
        return self._values[name]

    def changes(self, name: str) -> bool:
        """Say whether a fixture has another value than in the test."""
        if name in ("kopt", "request"):
            return False
        if any(map(self.changes, self._names(name))):
            return True
        if name not in self._parameters:
            value = self._test._request.getfixturevalue(name)
            return type(value) is int and self._move(value) != value
        parameter = self._parameters[name]
        return bool(flatten(self._move(parameter), "") != flatten(parameter, ""))

    def _names(self, name: str) -> Sequence[str]:
        definitions = self._test._fixtureinfo.name2fixturedefs.get(name)
        return definitions[-1].argnames if definitions else ()

    def _made(self, name: str) -> Any:
        request = self._test._request
        if name == "request" or not self.changes(name):
            return request.getfixturevalue(name)
        names = self._names(name)
        if name not in self._parameters and not any(map(self.changes, names)):
            return self._move(request.getfixturevalue(name))
        parameter = self._move(self._parameters.get(name))
        definitions = self._test._fixtureinfo.name2fixturedefs.get(name)
        if not definitions:
            return parameter
        arguments = {argument: self.value(argument) for argument in names}
        if "request" in arguments:
            arguments["request"] = SimpleNamespace(
                param=parameter, getfixturevalue=self.value, node=self._test, config=request.config
            )
        function = resolve_fixture_function(definitions[-1], request)
        value = function(**arguments)
        if inspect.isgenerator(value):
            generator, value = value, next(value)
            self._close.callback(next, generator, None)
        return value


def _moved(x: Any, moved: Mapping[int, int]) -> Any:
    return moved.get(x, x) if type(x) is int else x


def _declared(
    test: pytest.Function,
    case: Case,
    device: str,
    seed: int,
    close: ExitStack,
    moved: Mapping[int, int],
) -> Case | None:
    """Return the case as its test declares it with sizes moved, None if it has no inputs there."""
    fixtures = _MovedFixtures(test, moved, close)
    with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):
        names = test._fixtureinfo.argnames
        if not any(map(fixtures.changes, names)):
            return None
        arguments = {name: fixtures.value(name) for name in names if name != "kopt"}
        probe = ShapeProbe(device)
        with suppress(CaseServed):
            test.obj(**arguments, kopt=probe)
        if probe.call:
            positional, named = probe.call
            near = declare(test.nodeid, case.schema, *positional, **named).like(case)
            if near.function is case.function and near.dims != case.dims:
                make_inputs(near, seed)
                return near
    return None


def try_variant(
    variant: Variant,
    versions: Mapping[str, Callable[..., Any]],
    device: str,
    seed: int,
) -> Tried | None:
    """Run the versions on a variant of a case; None if the reference does not support that."""
    near, kind = variant.case, variant.kind
    tried = Tried(
        near.nodeid,
        kind,
        dict(near.dims),
        variant=variant.where,
        required=is_required(kind, near.domain),
    )
    try:
        content = _TriedContent(variant, seed)
    except Exception:
        _end_if_lost(device)
        return None
    for name in (INCUMBENT, CANDIDATE):
        if name not in versions:
            continue
        try:
            outcome, problem = content.outcome(versions[name])
        except torch.OutOfMemoryError:
            return replace(tried, outcomes={}, what={}, untried=NO_MEMORY_LEFT)
        _end_if_lost(device)
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


@contextmanager
def _ending_if_lost(device: str) -> Iterator[None]:
    """End the process where an error means that its GPU is lost, so that its client knows."""
    try:
        yield
    except Exception:
        _end_if_lost(device)
        raise


def _end_if_lost(device: str) -> None:
    """End the process after an illegal access: whatever ran next would fail for it."""
    if is_lost(device):
        os._exit(1)


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
    return {n: accuracy_of(ref, out, computed_in, lies.get(n)) for n, ref, out in results}


def time_shape(
    tried: Tried,
    case: Case,
    near: Case,
    versions: Mapping[str, Callable[..., Any]],
    device: str,
    seed: int,
) -> None:
    """Time the versions at a shape that all are right at, and in the same way at the case's own.

    All take turns at one shape, then at the other, so that what a version keeps for the last shape
    stays; the least time of a forward call counts.
    """
    cases = near, case
    inputs = [
        RestoredArguments(make_inputs(c, derive(seed, c.nodeid, "speed")), c.rewritten)
        for c in cases
    ]
    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: dict[tuple[int, str], list[float]] = {
        (place, name): [] for place in range(len(cases)) for name in tried.outcomes
    }
    for place, number in itertools.product(range(len(cases)), range(2 * _PAIRS)):
        for name in tried.outcomes if number % 2 else reversed(tried.outcomes):
            inputs[place].restore()
            synchronize()
            start = time.perf_counter()
            cases[place].positional(versions[name])(*inputs[place].live)
            synchronize()
            times[place, name].append(time.perf_counter() - start)
    for (place, name), seconds in times.items():
        (tried.seconds, tried.declared_seconds)[place][name] = min(seconds[_PAIRS:])


class _TriedContent:
    """The inputs on which the versions of a case are tried, and the expected results, made once."""

    def __init__(self, variant: Variant, seed: int) -> None:
        """Draw the inputs; raises what the reference raises on them."""
        self._variant, self._seed = variant, seed
        self._inputs = make_inputs(variant.case, seed)
        self._reference = Reference(variant.case, variant.incoming)
        self._expected: dict[str, Pass] = {}
        # A kernel may end its process where the reference says what is wrong with the inputs.
        forward = self._reference.forward(fresh_copies(self._inputs), ())
        if not (variant.case.backward or variant.case.rewritten):
            self._expected[""] = forward

    def outcome(self, function: Callable[..., Any]) -> tuple[Outcome | None, str]:
        """Return what a version does, None where nothing can be asked of it."""
        variant = self._variant
        candidate = CandidateFunction(variant.case, variant.of(function), variant.incoming)
        try:
            # A size that comes again is the one in use: its first call may do something else.
            for _ in range(2 if variant.kind in ("aligned", "size") else 1):
                with variant.around():
                    run = candidate(variant.lay(fresh_copies(self._inputs)), self._seed)
        except torch.OutOfMemoryError:
            raise
        except BaseException as error:
            # What leaves the test, as SystemExit does, would leave all other axes untried.
            return "raises", f"{type(error).__name__}: {error}".splitlines()[0]
        try:
            wrong = self._wrong(run)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return None, ""
        if wrong is None:
            return None, ""
        return ("wrong", wrong[0].line) if wrong else ("right", "")

    def _wrong(self, run: Run) -> list[Comparison] | None:
        """Return the results that are wrong, None if nothing is required of the inputs."""
        variant, expected = self._variant, self._expected_of(run.live)
        if not variant.counts(self._inputs, [*expected.outputs.values()]):
            return None
        exact = partial(self._reference.exact, self._inputs, run.live, self._seed)
        expected, comparisons = judge_twice(variant.case, expected, run.copies, exact)
        ignored = {
            name
            for name, result in expected.outputs.items()
            if variant.judged == ("no indices" if is_integer(result) else "indices")
        }
        wrong = [
            comparison
            for comparison in comparisons
            if not (comparison.passed or (comparison.figures and comparison.name in ignored))
        ]
        if variant.judged == "each row" and not (wrong or variant.case.is_statistical):
            wrong = [*_wrong_in_a_row(expected, run.copies)]
        is_right = (
            not wrong
            or self._misses_by_a_hair(wrong, expected, run.copies)
            or self._is_rounding(wrong, run)
        )
        return [] if is_right else wrong

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
        if "" in self._expected:
            return self._expected[""]
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
        step = 1 + signs(tensor, generator) * torch.finfo(torch.float32).eps
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
