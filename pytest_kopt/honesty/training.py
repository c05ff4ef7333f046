"""A simulated training loop: what a cache in the kernel is worth where every tensor is new.

In a real step activations and incoming gradients are fresh and parameters are long-lived but
updated in place. A step here is two micro-batches, forward and backward, before the parameters are
updated. Work is counted call by call: the same tensors once more must not cost less, except for a
parameter that has not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import restore
from pytest_kopt.honesty.outputs import taken
from pytest_kopt.honesty.transfer import ACTIVATION, GRAD_OUT, WEIGHT, Trace
from pytest_kopt.honesty.work import Work, saves, work_of
from pytest_kopt.numerics.nested import fresh_copies, fresh_copy, tensors

STEPS, TRACE_STEPS = 8, 4
#: S1: a cache that hits less often than this in real training is not worth its round.
LEAST_HIT_RATE = 0.5
#: How much worse than usual (dB of SNR) an output has to be to be wrong for another reason than
#: an unlucky draw of inputs: rounding moves by a few dB between draws, a stale result by dozens.
WORSE_DB = 20.0

Judge = Callable[[dict[str, Any], dict[int, Any], Sequence[Any], int], tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Subject:
    """The case in the loop.

    `make(seed)` returns fresh inputs. `judge(outputs, gradients, inputs, seed)` holds outputs (by
    name) and gradients (by input position, from the grad_outs of `seed`) against the reference and
    returns what is wrong ("" where nothing is) and the smallest SNR in dB; `usual_db` is that of
    the check that the kernel passed. `weights` are the positions of the parameters, `rewritten`
    those of the inputs that a call writes to; `outputs(returned, inputs)` names what a call gave.
    """

    function: Callable[..., Any]
    make: Callable[[int], tuple[Any, ...]]
    grad_out: Callable[[torch.Tensor, int], torch.Tensor]
    judge: Judge
    usual_db: float
    backward: bool
    weights: tuple[int, ...]
    rewritten: frozenset[int]
    outputs: Callable[[Any, Sequence[Any]], dict[str, Any]]


@dataclass(slots=True)
class Step:
    """What one step showed: by kind of cache, calls that could have hit and calls that did.

    `saved` says for which kinds the same tensors once more cost less than fresh ones.
    """

    lookups: dict[str, int] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)
    saved: dict[str, bool] = field(default_factory=dict)
    share: float = 1.0
    wrong: str = ""
    stale_weight: bool = False


@dataclass(frozen=True, slots=True)
class Simulation:
    """What the loop found.

    `trace` is None where no cache was suspected and the loop did not run. `uncounted` says why
    work could not be counted: then only results were held against the reference.
    """

    findings: tuple[Finding, ...] = ()
    trace: Trace | None = None
    uncounted: str = ""


def simulate(
    subject: Subject, seeds: Callable[[str], int], *, suspected: bool = False
) -> Simulation:
    """Run the loop where a cache is `suspected`, or a short probe suspects one.

    `seeds(purpose)` derives secret seeds. A kernel that cannot run while its work is counted runs
    the loop uncounted; what it raises there is the caller's.
    """
    # It lives as long as the loop runs: no parameter there takes the identity of one of these,
    # whose stale copy would be no update's.
    probing = _Loop(subject, _counted)
    try:
        if not _probe(probing, seeds) and not suspected:
            return Simulation()
        return _run(_Loop(subject, _counted), seeds)
    except Exception as error:
        uncounted = f"{type(error).__name__}: {error}".splitlines()[0]
    return replace(_run(_Loop(subject, _uncounted), seeds), uncounted=uncounted)


def _run(loop: _Loop, seeds: Callable[[str], int]) -> Simulation:
    steps = [loop.step(number, seeds) for number in range(STEPS)]
    # What is allocated, compiled or tuned once is done in the first step.
    return _judge_steps(steps[1:], [step for step in steps if step.wrong])


_NOTHING = Work(0, 0, 0, 0)


def _counted(call: Callable[[], Any]) -> tuple[Any, Work]:
    results: list[Any] = []
    work = work_of(lambda: results.append(call()))
    return results[0], work


def _uncounted(call: Callable[[], Any]) -> tuple[Any, Work]:
    return call(), _NOTHING


def _probe(loop: _Loop, seeds: Callable[[str], int]) -> bool:
    """Say whether anything looks like a cache, in three sets of inputs and one reference call."""
    subject = loop.subject
    first, second, third = (loop.given(seeds(f"probe {i}")) for i in range(3))
    loop.adopt(first)
    new = loop.forward(first)
    loop.adopt(second)
    unchanged = loop.forward(second)
    again = loop.forward(second)
    loop.update(third)
    changed = loop.forward(third)
    calls = (new, unchanged, again, changed)
    if any(saves(one.work, other.work) for one in calls for other in calls):
        return True
    micro = loop.backward(changed, third.seed)
    if subject.backward and _reuse_saves(loop, changed):
        return True
    return bool(_wrong(subject, changed.kept, micro.gradients, third.pristine, third.seed))


@dataclass(slots=True)
class _Given:
    seed: int
    pristine: list[Any]
    used: list[Any]


@dataclass(slots=True)
class _Forward:
    used: Sequence[Any]
    leaves: dict[int, torch.Tensor]
    outputs: dict[str, Any]
    kept: dict[str, Any]
    work: Work


@dataclass(slots=True)
class _Backward:
    gradients: dict[int, Any]
    work: Work


class _Loop:
    """The loop's state: the parameters, which live on, and their content one update ago."""

    def __init__(
        self, subject: Subject, counting: Callable[[Callable[[], Any]], tuple[Any, Work]]
    ) -> None:
        self.subject = subject
        self._count = counting
        self._parameters: dict[int, Any] = {}
        self._before: dict[int, Any] = {}
        self._last: tuple[_Forward, _Backward] | None = None
        # Memory that is in use is not handed out again: what is new has a new address as well.
        self._kept: list[Any] = []

    def given(self, seed: int) -> _Given:
        pristine = list(self.subject.make(seed))
        return _Given(seed, pristine, fresh_copies(pristine))

    def adopt(self, given: _Given) -> None:
        """Put the parameters as they are into a set of inputs; the first set's become them."""
        if not self._parameters:
            self._parameters = {i: given.used[i] for i in self.subject.weights}
        for i, parameter in self._parameters.items():
            given.used[i], given.pristine[i] = parameter, fresh_copy(parameter)

    def update(self, given: _Given) -> None:
        """Give the parameters, in place, the content that these inputs have in their places."""
        self._before = {i: fresh_copy(item) for i, item in self._parameters.items()}
        with torch.no_grad():
            for i, parameter in self._parameters.items():
                if isinstance(parameter, torch.Tensor):
                    parameter.copy_(given.pristine[i])
        self.adopt(given)

    def forward(self, given: _Given) -> _Forward:
        used = given.used
        restore(used, given.pristine, self.subject.rewritten)
        leaves = {
            i: item
            for i, item in enumerate(used)
            if isinstance(item, torch.Tensor) and item.requires_grad
        }
        result, work = self._count(lambda: self.subject.function(*used))
        outputs = self.subject.outputs(result, used)
        # What lies in memory of the inputs is gone with the next call.
        kept = dict(zip(outputs, taken(list(outputs.values())), strict=True))
        return _Forward(used, leaves, outputs, kept, work)

    def backward(self, call: _Forward, seed: int, grads: Sequence[Any] | None = None) -> _Backward:
        leaves = call.leaves
        differentiable = [out for out in tensors(call.outputs) if out.requires_grad]
        if not self.subject.backward or not differentiable:
            return _Backward(dict.fromkeys(leaves), _NOTHING)
        given = grads or [self.subject.grad_out(out, seed) for out in differentiable]
        self._kept.append(given)
        found, work = self._count(
            lambda: torch.autograd.grad(
                differentiable,
                list(leaves.values()),
                given,
                retain_graph=True,
                allow_unused=True,
            )
        )
        return _Backward(dict(zip(leaves, taken(found), strict=True)), work)

    def step(self, number: int, seeds: Callable[[str], int]) -> Step:
        """Run one step: two micro-batches, then what is only there to be compared with them.

        The first has the content of the last step's second, in tensors of its own, and updated
        parameters: what a call costs may depend on the content, on the size of a group for one.
        """
        step = Step()
        self._kept.clear()
        first = self.given(seeds(f"batch {number}"))
        second = self.given(seeds(f"batch {number + 1}"))
        if number:
            self.update(first)
        else:
            self.adopt(first)
        self.adopt(second)
        micro = []
        for given in (first, second):
            call = self.forward(given)
            back = self.backward(call, given.seed)
            micro.append((call, back))
            self._check(step, number, call, back, given)
        again = [self.forward(second) for _ in range(2)]
        self._compare(step, micro, again)
        return step

    def _check(
        self, step: Step, number: int, call: _Forward, back: _Backward, given: _Given
    ) -> None:
        subject = self.subject
        fault = _wrong(subject, call.kept, back.gradients, given.pristine, given.seed)
        if fault and not step.wrong:
            step.wrong = f"step {number + 1}: {fault}"
            if self._before:
                old = [self._before.get(i, item) for i, item in enumerate(given.pristine)]
                problem, _ = subject.judge(call.kept, back.gradients, old, given.seed)
                step.stale_weight = not problem

    def _compare(
        self,
        step: Step,
        micro: Sequence[tuple[_Forward, _Backward]],
        again: Sequence[_Forward],
    ) -> None:
        subject = self.subject
        (first, first_back), (second, _) = micro
        last, self._last = self._last, micro[1]
        if len(subject.weights) < len(tensors(list(second.used))):
            step.lookups[ACTIVATION], step.hits[ACTIVATION] = 2, 0
            step.saved[ACTIVATION] = any(saves(call.work, second.work) for call in again)
            step.share = min(call.work.nbytes for call in again) / max(second.work.nbytes, 1)
        if subject.weights and last:
            before, before_back = last
            ways = [saves(before.work, first.work)]
            step.lookups[WEIGHT] = 2
            if subject.backward:
                ways.append(saves(before_back.work, first_back.work))
            step.hits[WEIGHT] = int(any(ways))
            step.saved[WEIGHT] = any(ways)
        if subject.backward:
            step.lookups[GRAD_OUT], step.hits[GRAD_OUT] = 2, 0
            # A backward that writes over what the forward saved cannot run again on the same graph.
            step.saved[GRAD_OUT] = not subject.rewritten and _reuse_saves(self, second)


def _reuse_saves(loop: _Loop, call: _Forward) -> bool:
    """Say whether a backward costs less for grad_outs that it has seen than for fresh ones."""
    differentiable = [out for out in tensors(call.outputs) if out.requires_grad]
    grads = [torch.randn_like(out) for out in differentiable]
    fresh = loop.backward(call, 0, grads).work
    return any(saves(loop.backward(call, 0, grads).work, fresh) for _ in range(2))


def _wrong(
    subject: Subject,
    outputs: dict[str, Any],
    gradients: dict[int, Any],
    pristine: Sequence[Any],
    seed: int,
) -> str:
    problem, found_db = subject.judge(outputs, gradients, pristine, seed)
    if problem and not found_db > subject.usual_db - WORSE_DB:
        return problem.splitlines()[0]
    return ""


def _judge_steps(steps: Sequence[Step], wrong: Sequence[Step]) -> Simulation:
    # An allocation now and then is no cache: what is one shows in nearly every step.
    cached = tuple(
        kind
        for kind in (ACTIVATION, GRAD_OUT, WEIGHT)
        if sum(step.saved.get(kind, False) for step in steps) * 2 > len(steps)
    )
    trace = Trace(
        cached,
        tuple(
            {kind: (step.hits[kind], step.lookups[kind]) for kind in step.lookups}
            for step in steps[-TRACE_STEPS:]
        ),
    )
    shares = sorted(step.share for step in steps)
    return Simulation(tuple(_findings(trace, wrong, shares[len(shares) // 2])), trace)


def _findings(trace: Trace, wrong: Sequence[Step], share: float) -> Iterator[Finding]:
    if wrong:
        stale = next((step for step in wrong if step.stale_weight), None)
        if stale is not None:
            yield Finding(
                "stale-weight",
                f"a parameter updated in place was answered from before ({stale.wrong})",
                advice="key the cache on the parameter and its _version, or compute anew",
                bucket="W1",
            )
        else:
            yield Finding(
                "training-loop",
                f"wrong with fresh tensors in a simulated training loop ({wrong[0].wrong})",
                advice="a result may depend on nothing but the arguments of its own call",
                bucket="W3",
            )
    if ACTIVATION in trace.cached:
        memo = share < 0.1
        yield Finding(
            "activation-cache",
            "the same activations once more cost "
            + ("next to nothing" if memo else f"{share:.0%} of the work of fresh ones")
            + ", and no step of a training loop sees them twice (hit rate 0 %)",
            advice="cache nothing that was computed from an activation; one that lives longer "
            "than a step has to be declared in the case (weights=…)",
            bucket="W3" if memo else "W2",
        )
    if GRAD_OUT in trace.cached:
        yield Finding(
            "grad-out-cache",
            "the same grad_out once more costs less work than a fresh one, and no step of a "
            "training loop sees one twice (hit rate 0 %)",
            advice="cache nothing that was computed from an incoming gradient",
            bucket="W2",
        )
    if WEIGHT in trace.cached:
        rate = trace.rate(WEIGHT)
        enough = rate >= LEAST_HIT_RATE - 1e-9
        yield Finding(
            "weight-cache" if enough else "hit-rate",
            f"a parameter that has not changed costs less work (hit rate {rate:.0%} in a "
            "simulated training loop of two micro-batches a step)",
            advice="its gain is bounded by quant time / step time: give w1_quant_ms and step_ms "
            "in the notes"
            if enough
            else "below 50 % the cache is not worth its round",
            bucket="W1",
            rejects=not enough,
        )
