"""A simulated training loop: what a cache in the kernel gains when every tensor is new.

A step is two micro-batches, forward and backward, of fresh activations and gradients, then an
update of the parameters in place. The same tensors once more must not cost less work, but for a
parameter that has not changed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.evidence import Training
from pytest_kopt.cases.order import derive
from pytest_kopt.cases.running.against_reference import judge_twice
from pytest_kopt.cases.running.check import CheckedCase
from pytest_kopt.cases.running.execution import Pass, grad_out, make_inputs, results_of
from pytest_kopt.cases.running.reference import Reference, code_of
from pytest_kopt.honesty.audit import suspects_a_cache
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import exchange, has_room, leaves, places, restore
from pytest_kopt.honesty.outputs import snapshots
from pytest_kopt.honesty.transfer import ACTIVATION, GRAD_OUT, WEIGHT, Trace
from pytest_kopt.honesty.work import Work, saves, work_of
from pytest_kopt.numerics.nested import backward, fresh_copies, fresh_copy, tensors

#: How much worse than usual (dB of SNR) an output has to be to be wrong for another reason than
#: an unlucky draw of inputs: rounding moves by a few dB between draws, a stale result by dozens.
_WORSE_DB = 20.0
#: How many elements of a parameter change in a sparse update.
_FEW, _MOST = 4, 1 << 20
_NOTHING = Work(0, 0, 0, 0)
STEPS, TRACE_STEPS = 8, 4
#: A cache that hits less often than this in real training does not pay.
LEAST_HIT_RATE = 0.5


@dataclass(slots=True)
class TrainingStep:
    """The result of one step: by kind of cache, whether the same tensors once more cost less.

    `share` is the part of a fresh call's bytes that one with known activations moves. `wrong` says
    what was wrong ("" where nothing was), with a `stale_weight` for the parameters before.
    """

    saved: dict[str, bool] = field(default_factory=dict)
    share: float = 1.0
    wrong: str = ""
    stale_weight: bool = False

    def hits(self) -> dict[str, tuple[int, int]]:
        """Return, by kind, how many calls did hit of the two that could: only parameters recur."""
        return {kind: (int(saved and kind == WEIGHT), 2) for kind, saved in self.saved.items()}


@dataclass(slots=True)
class _Batch:
    seed: int
    pristine: list[Any]
    used: list[Any]


@dataclass(slots=True)
class _Call:
    """A forward call, with its results as they were when it returned (`copies`)."""

    leaves: dict[int, torch.Tensor]
    outputs: dict[str, Any]
    copies: dict[str, Any]
    work: Work

    @property
    def roots(self) -> list[torch.Tensor]:
        return [out for out in tensors(self.outputs) if out.requires_grad]


class Loop:
    """A case in the loop, whose check gave `usual_db` at least; work is counted where it can be."""

    def __init__(self, case: Case, usual_db: float, *, counts: bool = True) -> None:
        self._case = case
        self._function = case.positional(case.function)
        self._reference = Reference(case)
        self._usual_db = usual_db
        self._counts = counts
        self._parameters: dict[int, Any] = {}
        self._before: dict[int, Any] = {}
        self._last: tuple[Work, Work] | None = None
        # Memory that is in use is not handed out again: what is new has a new address as well.
        self._incoming: list[Any] = []

    def probe(self, seeds: Callable[[str], int]) -> bool:
        """Say whether anything looks like a cache: three sets of inputs, one reference call."""
        first, second, third = (self._batch(seeds(f"probe {i}")) for i in range(3))
        self._adopt(first)
        call = self._forward(first)
        works = [call.work]
        # What the first backward of all makes once is none of a later one's work.
        self._backward(call, first.seed)
        self._adopt(second)
        works += [self._forward(second).work for _ in range(2)]
        self._update(third)
        changed = self._forward(third)
        works.append(changed.work)
        if any(saves(repeated, fresh) for repeated in works for fresh in works):
            return True
        gradients, work = self._backward(changed, third.seed)
        if self._case.backward and self._reuse_saves(changed, work, third.seed):
            return True
        return bool(self._wrong(changed, gradients, third))

    def step(self, number: int, seeds: Callable[[str], int]) -> TrainingStep:
        """Run one step: two micro-batches, then what is only there to be compared with them.

        The first has the content of the last step's second, in tensors of its own, and updated
        parameters. The cost of a call may depend on the content, for example on the size of a
        group. In every other step only a few elements of a parameter change, as in a sparse update.
        These are one in a hundred, or so few that samples of one in a hundred miss them.
        """
        step = TrainingStep()
        self._incoming.clear()
        first = self._batch(seeds(f"batch {number}"))
        second = self._batch(seeds(f"batch {number + 1}"))
        if number:
            self._update(first, {0: _MOST, 2: _FEW}.get(number % 4, 0))
        else:
            self._adopt(first)
        self._adopt(second)
        micro = []
        for batch in (first, second):
            call = self._forward(batch)
            gradients, work = self._backward(call, batch.seed)
            micro.append((call, work))
            fault = self._wrong(call, gradients, batch)
            if fault and not step.wrong:
                step.wrong = f"step {number + 1}: {fault}"
                old = [self._before.get(i, value) for i, value in enumerate(batch.pristine)]
                problem, _ = self._judged(call, gradients, old, batch.seed)
                step.stale_weight = bool(self._before) and not problem
        again = [self._forward(second).work for _ in range(2)]
        case, ((before, before_back), (last, last_back)) = self._case, micro
        if len(case.weights) < len(tensors(second.used)):
            step.saved[ACTIVATION] = any(saves(work, last.work) for work in again)
            step.share = min(work.nbytes for work in again) / max(last.work.nbytes, 1)
        if case.weights and self._last:
            fresh, fresh_back = self._last
            step.saved[WEIGHT] = saves(fresh, before.work) or (
                case.backward and saves(fresh_back, before_back)
            )
        if case.backward:
            # A backward that writes over what the forward saved cannot run again on the same graph.
            step.saved[GRAD_OUT] = not case.rewritten and self._reuse_saves(
                last, last_back, second.seed
            )
        self._last = last.work, last_back
        return step

    def _batch(self, seed: int) -> _Batch:
        pristine = list(make_inputs(self._case, seed))
        return _Batch(seed, pristine, fresh_copies(pristine))

    def _adopt(self, batch: _Batch) -> None:
        """Put the parameters as they are into a set of inputs; the first set's become them."""
        if not self._parameters:
            self._parameters = {i: batch.used[i] for i in self._case.weights}
        for i, parameter in self._parameters.items():
            batch.used[i], batch.pristine[i] = parameter, fresh_copy(parameter)

    def _update(self, batch: _Batch, most: int = 0) -> None:
        """Give the parameters these inputs' content in place, or `most` new elements at most."""
        self._before = {i: fresh_copy(parameter) for i, parameter in self._parameters.items()}
        content = {i: batch.pristine[i] for i in self._parameters}
        large = [
            i
            for i, parameter in self._before.items()
            if isinstance(parameter, torch.Tensor) and has_room(parameter)
        ]
        if most and large:
            generator = torch.Generator().manual_seed(batch.seed)
            content = {i: fresh_copy(self._before[i]) for i in large}
            for value in content.values():
                drawn = places(value.numel(), generator)
                chosen = torch.randperm(len(drawn), generator=generator)[:most]
                exchange(value.data, drawn[chosen])
        with torch.no_grad():
            for i, value in content.items():
                if isinstance(self._parameters[i], torch.Tensor):
                    self._parameters[i].copy_(value)
        self._adopt(batch)

    def _counted(self, call: Callable[[], Any]) -> tuple[Any, Work]:
        if not self._counts:
            return call(), _NOTHING
        results: list[Any] = []
        work = work_of(lambda: results.append(call()))
        return results[0], work

    def _forward(self, batch: _Batch) -> _Call:
        used = batch.used
        restore(used, batch.pristine, self._case.rewritten)
        leaf_inputs = leaves(used)
        result, work = self._counted(lambda: self._function(*used))
        outputs = results_of(self._case, result, used)
        # What lies in memory of the inputs is gone with the next call.
        copies = dict(zip(outputs, snapshots(list(outputs.values())), strict=True))
        return _Call(leaf_inputs, outputs, copies, work)

    def _backward(
        self, call: _Call, seed: int, grads: Sequence[torch.Tensor] = ()
    ) -> tuple[dict[int, Any], Work]:
        """Return the gradients by input, and the work, for incoming ones of a seed or these."""
        roots, leaf_inputs = call.roots, list(call.leaves.values())
        if not self._case.backward or not roots:
            return dict.fromkeys(call.leaves), _NOTHING
        incoming = grads or [grad_out(out, seed) for out in roots]
        self._incoming.append(incoming)
        gradients, work = self._counted(
            lambda: backward(roots, incoming, leaf_inputs, retain_graph=True)
        )
        return dict(zip(call.leaves, snapshots(gradients), strict=True)), work

    def _reuse_saves(self, call: _Call, first: Work, seed: int) -> bool:
        """Say whether known gradients, or a graph that had a `first` backward, cost less work.

        `seed` is that of the first one's gradients: others lie in memory as they do.
        """
        grads = [grad_out(out, seed + 1) for out in call.roots]
        fresh, *repeated = (self._backward(call, 0, grads)[1] for _ in range(3))
        return saves(fresh, first) or any(saves(work, fresh) for work in repeated)

    def _wrong(self, call: _Call, gradients: dict[int, Any], batch: _Batch) -> str:
        problem, lowest_db = self._judged(call, gradients, batch.pristine, batch.seed)
        if problem and not lowest_db > self._usual_db - _WORSE_DB:
            return problem.splitlines()[0]
        return ""

    def _judged(
        self, call: _Call, gradients: dict[int, Any], inputs: Sequence[Any], seed: int
    ) -> tuple[str, float]:
        run = Pass(call.copies, gradients)
        _, comparisons = judge_twice(
            self._case,
            self._reference(fresh_copies(inputs), run, seed),
            run,
            partial(self._reference.exact, inputs, run, seed),
        )
        problem = "\n".join(
            comparison.diagnosis() for comparison in comparisons if not comparison.passed
        )
        return problem, min(
            (comparison.snr_db for comparison in comparisons if comparison.figures),
            default=math.inf,
        )


def caches(checked: CheckedCase) -> list[Finding]:
    findings, trace, uncounted = _simulated(checked)
    checked.evidence = replace(checked.evidence, training=Training(trace, uncounted))
    return findings


def _is_suspected(case: Case) -> bool:
    code = code_of(case.function)
    path = Path(code.co_filename if code else "")
    return path.is_file() and suspects_a_cache(path.read_bytes())


def _simulated(checked: CheckedCase) -> tuple[list[Finding], Trace | None, str]:
    """Run the loop where a short probe suspects a cache, or the audit notes one.

    Returns what was found, the last steps' trace (None where the loop did not run), and why work
    could not be counted: then only results were held against the reference.
    """
    case, figures = checked.case, checked.figures
    usual_db = min(figures[name] for name in figures if name.startswith(("out_snr", "grad_snr:")))

    def seed(purpose: str) -> int:
        return derive(checked.bench.session_seed, case.nodeid, f"training {purpose}")

    # It lives as long as the loop runs: no parameter there takes the identity of one of these,
    # whose stale copy would be no update's.
    probing = Loop(case, usual_db)
    try:
        if not probing.probe(seed) and not _is_suspected(case):
            return [], None, ""
        return *_run(Loop(case, usual_db), seed), ""
    except Exception as error:
        uncounted = f"{type(error).__name__}: {error}".splitlines()[0]
    return *_run(Loop(case, usual_db, counts=False), seed), uncounted


def _run(loop: Loop, seed: Callable[[str], int]) -> tuple[list[Finding], Trace]:
    steps = [loop.step(number, seed) for number in range(STEPS)]
    wrong = [step for step in steps if step.wrong]
    # What is allocated, compiled or tuned once is done in the first step.
    steps = steps[1:]
    # An allocation now and then is no cache, nor is a kernel that takes one of two ways at random:
    # what is one shows in every step, or in all but one.
    cached = tuple(
        kind
        for kind in (ACTIVATION, GRAD_OUT, WEIGHT)
        if sum(step.saved.get(kind, False) for step in steps) >= len(steps) - 1
    )
    trace = Trace(cached, tuple(step.hits() for step in steps[-TRACE_STEPS:]))
    share = statistics.median_high(step.share for step in steps)
    return list(_findings(trace, wrong, share)), trace


def _findings(trace: Trace, wrong: Sequence[TrainingStep], share: float) -> Iterator[Finding]:
    if stale := next((step for step in wrong if step.stale_weight), None):
        yield Finding(
            "stale-weight",
            "after an update of a parameter in place, the result is right for the old values only "
            f"({stale.wrong})",
            advice="read all of the parameter in each call; key a cache on it and its _version",
        )
    elif wrong:
        yield Finding(
            "training-loop",
            f"wrong for new tensors in a simulated training loop ({wrong[0].wrong})",
            advice="be right for all input values of the case, by the arguments of the call alone",
        )
    if ACTIVATION in trace.cached:
        memo = share < 0.1
        yield Finding(
            "activation-cache",
            "the same activations again cost "
            + ("next to nothing" if memo else f"{share:.0%} of the work of new ones")
            + "; no step of a training loop has them twice (hit rate 0 %)",
            advice=(
                "keep nothing that the kernel computes from an activation; declare an "
                "input that lives longer than a step in the case (weights=…)"
            ),
        )
    if GRAD_OUT in trace.cached:
        yield Finding(
            "grad-out-cache",
            (
                "the same grad_out or the same graph again costs less work than a new "
                "one, and no step of a training loop has one twice (hit rate 0 %)"
            ),
            advice="keep nothing that the kernel computes from an incoming gradient",
        )
    if WEIGHT in trace.cached:
        rate = trace.rate(WEIGHT)
        enough = rate >= LEAST_HIT_RATE - 1e-9
        yield Finding(
            "weight-cache" if enough else "hit-rate",
            (
                f"an unchanged parameter costs less work (hit rate {rate:.0%} in a "
                "simulated training loop of two micro-batches a step)"
            ),
            advice=(
                "give w1_quant_ms and step_ms in the notes: they bound the gain by quant "
                "time / step time"
            )
            if enough
            else "remove the cache: it does not pay below 50 %",
            rejects=not enough,
        )
