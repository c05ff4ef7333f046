"""The steps of a check: calls with every kind of content, each judged by the reference.

A kernel is a function: it may be called with any content, at any address, in any order and any
number of times, and returns a result of its own. Every step calls it in one more of these ways; a
cache, a counter or a look at what is going on gives itself away in one of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import find_groups, has_skew
from pytest_kopt.cases.running.execution import (
    INPUT,
    Candidate,
    Pass,
    Run,
    judge,
    leaves,
    make_inputs,
    pairs,
    results_of,
)
from pytest_kopt.cases.running.gate_advice import advised, gate_line, least_db
from pytest_kopt.cases.running.interpreter import watch_interpreter
from pytest_kopt.cases.running.reference import Reference
from pytest_kopt.cases.running.traffic import computing_dtype, io_bytes
from pytest_kopt.cases.seeds import drawn_so_far
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty import inputs, language, memory, outputs, physics, work
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.controls import passing_controls
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.precision import accuracy_of, least_exact, terms
from pytest_kopt.honesty.skew import DISTRIBUTIONS, uneven_groups
from pytest_kopt.honesty.watching import background
from pytest_kopt.numerics.compare import Comparison, InvalidReference, compare
from pytest_kopt.numerics.determinism import bits
from pytest_kopt.numerics.gates import default_gate
from pytest_kopt.numerics.nested import contents, fresh_copies, storages, tensors

PURPOSES = ("check", "again", "disturb", "last", "groups")
#: A call that takes longer (an interpreted kernel) is not repeated dozens of times, nor are shorter
#: ones while the process is watched for longer than that.
_LONG_SECONDS = 0.3
#: Calls on one content before its work is counted again, and the time that they may take.
_PATIENCE, _PATIENCE_SECONDS = 48, 0.15
_COUNTS = 2
_LATE_SECONDS = 0.05
#: A kernel that is wrong every other time is taken for one that remembers once in 1000.
_TURNS = 5
#: Said of a wrong result only: what a kernel draws to round or to tune need not show in it.
_DRAWS = Finding(
    "global-generator",
    "the call draws from torch's global generator, so that no reference can draw alike",
    advice="have inputs() return a torch.Generator, or a seed, for the kernel and the reference to "
    "draw from; it is restored before every call",
    rejects=False,
)
#: How much SNR may vary between contents.
_HAIR_DB = 10.0


@dataclass(slots=True)
class Checking:
    """One case on its way through the steps, and what they have shown so far.

    `written_in` is the language that the kernel is to be written in ("": any); `by_torch` tells
    which operators of torch alone make the result, "" for none, `left_to_torch` those that did at
    the baseline (None: this is one). `accuracy` and
    `counts` (terms an element may add up) are by name of the result, `io_bytes` the compulsory
    bytes by direction, `counted_flops` what torch counts in the reference's forward, `dtype` what
    products are taken in. `groups` are the group sizes that a grouped GEMM was right for, by the
    distribution they were drawn from. Of the content, `_used` are the candidate's own tensors,
    which keep their addresses, and `_given` a pristine copy of what they should hold.
    """

    case: Case
    seeds: dict[str, int]
    device: str
    written_in: str = ""
    left_to_torch: str | None = ""
    comparisons: list[Comparison] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    broken: list[Finding] = field(default_factory=list)
    interpreted: bool = False
    invalid: str = ""
    accuracy: dict[str, Accuracy] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    written: int = 0
    io_bytes: dict[str, int] = field(default_factory=dict)
    counted_flops: int = 0
    dtype: str | None = None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    by_torch: str = ""
    _candidate: Candidate = field(init=False)
    _reference: Reference = field(init=False)
    _generator: torch.Generator = field(init=False)
    _used: list[Any] = field(init=False)
    _given: list[Any] = field(init=False)
    _first: tuple[list[Any], Pass, Pass] = field(init=False)
    _last: Run = field(init=False)
    _expected: Pass = field(init=False)
    _seconds: float = math.inf
    _is_settled: bool = False
    _is_disturbable: bool = True
    _work: work.Work | None = None

    def __post_init__(self) -> None:
        self._candidate = Candidate(self.case, self.case.function)
        self._reference = Reference(self.case)
        self._generator = torch.Generator().manual_seed(self.seeds["disturb"])

    @property
    def _is_long(self) -> bool:
        """Whether the quickest judged call was long: what only the first one builds counts not."""
        return self._seconds > _LONG_SECONDS

    @property
    def passed(self) -> bool:
        """Whether every comparison so far holds, and no contract is broken."""
        return all(item.passed for item in self.comparisons) and not self.broken

    def advice(self) -> dict[str, str]:
        """Return what to do about results outside their gates, by name of the comparison."""
        return advised(self.case, self.comparisons, self._last.kept, self._given, self._expected_of)

    def _expected_of(self, given: Sequence[Any]) -> Pass:
        return self._reference(fresh_copies(given), self._last.kept, self.seeds["check"])

    def found(self, findings: Sequence[Finding]) -> None:
        """Add findings, one of each kind."""
        for finding in findings:
            if finding.check not in {known.check for known in self.findings}:
                self.findings.append(finding)

    def run(self, freezes: bool) -> None:
        """Take the steps in order; stop at the first that shows something."""
        steps: list[Callable[[], None]] = [
            self._fresh_content,
            *([self._controls, self._count_flops] if freezes else []),
            self._same_addresses,
            self._other_groups,
            self._few_elements,
            self._counted,
            *([] if self.written_in in ("", "TORCH") else [self._by_hand]),
            self._aftermath,
            self._after_many_calls,
            self._other_addresses,
        ]
        for step in steps:
            step()
            refused = any(finding.rejects for finding in self.findings)
            is_first = step == self._fresh_content
            # What a call wrote over its own tensors makes it wrong there as well.
            if not (self.passed or refused or is_first or self.broken):
                self._look_for_memory()
            if self.invalid or refused or not self.passed:
                return

    def _fresh_content(self) -> None:
        """Call the candidate before the reference, on copies of its own, in poisoned memory.

        Neither the reference's result nor a changed input can help it.
        """
        case, seed = self.case, self.seeds["check"]
        # Copies, as all that follows: they are laid out alike.
        self._given = fresh_copies(make_inputs(case, seed))
        if case.backward and not leaves(self._given):
            raise BadInput(
                "backward=True, but no input requires grad",
                where=f"case {case.nodeid}",
                legal="inputs() returning tensors with requires_grad=True",
            )
        inside = [x for x in self._given if not isinstance(x, torch.Tensor)]
        if case.backward and any(tensor.requires_grad for tensor in tensors(inside)):
            raise BadInput(
                "backward=True, and a tensor inside of a list, dict or dataclass requires grad",
                where=f"case {case.nodeid}",
                legal="an argument of its own for every tensor whose gradient is asked for",
            )
        self._used = fresh_copies(self._given)
        memory.poison_freed(tensors(self._given))
        start = time.perf_counter()
        drawn = drawn_so_far(self.device)
        with watch_interpreter() as watch:
            run = self._candidate(self._used, seed)
        self._seconds = time.perf_counter() - start
        self.interpreted = watch.seen
        draws = drawn_so_far(self.device) != drawn
        expected = self._expect(run, seed)
        self._judge(run, expected, "")
        self._first = self._given, run.kept, expected
        live, known = list(run.live.outputs.values()), list(expected.outputs.values())
        if self._elsewhere(run):
            # A mistake, and no more than that.
            return
        self.broken += outputs.odd_findings(live, known, self._given)
        if not self.passed:
            self.found([_DRAWS] if draws else [])
            self._look_for_unwritten(seed)
            return
        computed_in = least_exact(list(expected.outputs.values()))
        for name, ref, out in pairs(expected, run.kept):
            if isinstance(out, torch.Tensor) and out.dtype.is_floating_point:
                self.accuracy[name] = accuracy_of(ref, out, computed_in)
                self.counts[name] = terms(tensors(self._given), out)
        # Of what is written in place, what changed; it may be far less than what is there.
        own, changes = self._written(run, expected)
        kept = [x for i, x in enumerate(self._given) if i not in case.rewritten]
        self.written = physics.written_bytes(own) + changes
        self.io_bytes = io_bytes(kept, own, run.live.gradients.values(), changes)
        self.dtype = computing_dtype(self._given, case.gate_of(next(iter(expected.outputs))))

    def _count_flops(self) -> None:
        if self.case.flops:
            like = self._first[1]
            self.counted_flops = self._reference.flops(fresh_copies(self._given), like)

    def _expect(self, run: Run, seed: int) -> Pass:
        return self._reference(fresh_copies(self._given), run.live, seed)

    def _written(self, run: Run, expected: Pass) -> tuple[list[torch.Tensor], int]:
        """Return the outputs in memory of their own, and the bytes written in place."""
        places = storages([self._used[place] for place in self.case.rewritten])
        own = [
            out
            for out in tensors(list(run.live.outputs.values()))
            if out.untyped_storage().data_ptr() not in places
        ]
        changes = 0
        for name, out in run.kept.outputs.items():
            if name.startswith(INPUT) and isinstance(out, torch.Tensor):
                before = expected.before.get(name)
                count = out.numel() if before is None else int((bits(out) != bits(before)).sum())
                changes += count * out.element_size()
        return own, changes

    def _look_for_unwritten(self, seed: int) -> None:
        """Say of a wrong result whether some of it is what lay in memory before."""
        with memory.poisoned_allocations():
            again = self._candidate(fresh_copies(self._given), seed)
        spoiled = [bool(torch.isnan(out).any()) for out in again.kept.results]
        before = [bool(torch.isnan(out).any()) for out in self._last.kept.results]
        if any(spoiled) and not any(before):
            self.found([replace(memory.UNWRITTEN, rejects=False)])

    def _look_for_memory(self) -> None:
        """Say of a wrong result whether it is right for the same content in tensors never seen.

        Asked in turns and often, so that a kernel that is wrong now and then is none of this.
        """
        seed, unseen = self.seeds["again"], []
        expected = self._expect(self._last, seed)
        with suppress(Exception):
            for _ in range(_TURNS):
                unseen.append(fresh_copies(self._given))
                self._restore()
                # One of its own has the incoming gradients in memory of their own as well.
                other = Candidate(self.case, self.case.function)
                turns = ((self._candidate, self._used, False), (other, unseen[-1], True))
                for candidate, given, right in turns:
                    memory.poison_freed(self._last.kept.results)
                    found = judge(self.case, expected, candidate(given, seed).kept)
                    if all(item.passed for item in found) is not right:
                        return
            self.found([outputs.REMEMBERED])

    def _controls(self) -> None:
        """Refuse a case whose gate lets wrong answers pass."""
        found = [
            (name, ref, out)
            for name, ref, out in pairs(self._expected, self._last.kept)
            if isinstance(ref, torch.Tensor) and isinstance(out, torch.Tensor)
        ]
        if not found:
            return
        name, ref, out = found[0]
        gate = self.case.gate_of(name) or default_gate(out.dtype)
        passing = passing_controls(
            ref, self._given, out.dtype, lambda control: compare(ref, control, gate).passed
        )
        if passing:
            least = least_db(name, out.dtype, self._given, self._expected_of)
            torchs = "" if least is None else f", such as {gate_line({name: least})}"
            self.invalid = (
                f"the case takes wrong answers for right under {gate.describe()}: "
                f"{', '.join(passing)}; make inputs whose result is large against the tolerance, "
                f"or give the case a gate of its own{torchs}"
            )

    def _same_addresses(self) -> None:
        """Write new content into the very tensors the candidate has seen."""
        self._renew(make_inputs(self.case, self.seeds["again"]))
        self._call("new content at the same addresses", self.seeds["again"])
        self._is_settled = True

    def _other_groups(self) -> None:
        """Draw the sizes of a grouped GEMM's groups anew, whatever the case draws them from.

        Raises BadInput where they cannot be found, or the reference does not work with others.
        """
        for place, name in enumerate(DISTRIBUTIONS if has_skew(self.case) else ()):
            seed = self.seeds["groups"] + place
            given = make_inputs(self.case, seed)
            groups = find_groups(self.case, given)
            assert groups is not None
            if name == "uniform" and groups.are_uniform:
                # What the case draws itself has been checked.
                self.groups[name] = groups.sizes
                continue
            sizes = groups.drawn(name)
            self._renew(groups.replaced(given, sizes))
            what = f"groups of {min(sizes)} to {max(sizes)} rows, {name}"
            try:
                self._call(what, seed)
            except Exception as error:
                raise self._why_not(what, error) from error
            if not all(item.passed for item in self.comparisons):
                self.found([uneven_groups(what, groups.are_uniform)])
            if not self.passed:
                return
            self.groups[name] = sizes

    def _why_not(self, what: str, error: Exception) -> Exception:
        """Say who raised for groups that were drawn: the kernel, or the reference."""
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        try:
            self._reference.forward(fresh_copies(self._given), ())
        except Exception:
            return BadInput(
                f"the reference raises for {what}: {text}",
                where=f"case {self.case.nodeid}",
                legal="a reference that takes any sizes; group_multiple=N has them drawn in "
                "multiples of N",
            )
        if isinstance(error, InvalidReference):
            return error
        return RuntimeError(f"{uneven_groups(what, False)}: {text}")

    def _few_elements(self) -> None:
        """Change a few elements only; a kernel that is right about one such content is about two.

        Content that the kernel has never seen comes first: where it (or the reference) cannot work
        with elements that changed places, because their order means something, nothing follows.
        """
        seed, weights = self.seeds["disturb"], self.case.weights
        before = list(self.comparisons), list(self.findings)
        if inputs.can_be_disturbed(self._given, weights):
            fresh = make_inputs(self.case, seed)
            self._renew(inputs.disturbed(fresh, weights, self._generator))
            try:
                self._call("content in another order", seed)
                works = self.passed
            except Exception:
                works = False
            if works or len(self.findings) > len(before[1]):
                if works:
                    self._renew_a_little()
                    self._call("the same content but for a few elements", seed)
                return
        self.comparisons, self.findings = before
        self._is_disturbable = False
        self._renew(make_inputs(self.case, seed))
        self._call("new content at the same addresses", seed)

    def _counted(self) -> None:
        """Count the work on new content, and on the same content right after."""
        if self._is_long:
            return
        saved = []
        for _ in range(_COUNTS):
            self._renew_a_little()
            first, one = self._count()
            second, other = self._count()
            saved.append(work.saves(second, first))
            self._work = second
            self.found(outputs.shared(one, other, self._candidate.held(self._used)))
        if all(saved):
            self.found([work.cached(first, second)])
        for _ in range(_COUNTS):
            first, second = self._work_in_the_end()
            if not work.saves(second, first):
                break
        else:
            self.found([work.cached(first, second)])
        held = self._candidate.held(self._used)
        self.found(outputs.recycled(lambda: tensors(self._plain()), held))

    def _work_in_the_end(self) -> tuple[work.Work, work.Work]:
        """Count the work on new content, and on the same content many calls later."""
        self._renew_a_little()
        first, _ = self._count()
        end = time.perf_counter() + _PATIENCE_SECONDS
        for _ in range(_PATIENCE):
            if time.perf_counter() > end:
                break
            self._plain()
        last, _ = self._count()
        return first, last

    def _count(self) -> tuple[work.Work, list[torch.Tensor]]:
        results: list[object] = []
        self._restore()
        counted = work.work_of(lambda: results.append(self._bare()))
        return counted, tensors(results[0])

    def _plain(self) -> object:
        """Call the function on its tensors, with its backward where it has one."""
        self._restore()
        return self._bare()

    def _bare(self) -> object:
        if self.case.backward:
            return self._candidate(self._used, self.seeds["disturb"]).live.outputs
        return self.case.positional(self.case.function)(*self._used)

    def _restore(self) -> None:
        """Bring back what calls wrote over."""
        inputs.restore(self._used, self._given, self.case.rewritten)

    def _by_hand(self) -> None:
        """See whether torch alone makes what was to be written in another language."""
        case, call = self.case, self.case.positional(self.case.function)
        earlier, given = (list(make_inputs(case, seed)) for seed in (self.seeds["last"], 1))
        with suppress(RuntimeError, NotImplementedError):
            found = language.computed_by_torch(
                lambda items: call(*items), earlier, fresh_copies(given)
            )
            if found is None:
                return
            returned, after, operators = found
            outputs = results_of(case, returned, after)
            expected = self._reference.forward(fresh_copies(given), list(outputs))
            judged = judge(replace(case, backward=False), expected, Pass(outputs, {}))
            if not all(item.passed for item in judged):
                return
            self.by_torch = operators
            # What the baseline left to torch, and is left to it alike, is nobody's doing.
            if self.left_to_torch is not None and operators != self.left_to_torch:
                self.found([language.finding(self.written_in)])

    def _aftermath(self) -> None:
        """See whether a result is there at the return, and whether the process comes to rest."""
        end = time.perf_counter() + _LONG_SECONDS

        def call() -> None:
            if not self._is_long and time.perf_counter() < end:
                self._plain()

        if self.device == "cpu" and not self._is_long:
            self.found(outputs.read_late(lambda: tensors(self._plain())))
        self.found(background.still_busy(call))

    def _after_many_calls(self) -> None:
        """Be right after dozens of calls as well, on content much like the first.

        The first content is the one that a kernel could have foreseen from the session's seeds.
        """
        first, run, expected = self._first
        if self._is_disturbable:
            fresh = inputs.disturbed(first, self.case.weights, self._generator)
        else:
            fresh = list(make_inputs(self.case, self.seeds["last"]))
        self._renew(fresh)
        self._call("after many calls", self.seeds["last"])
        if outputs.any_stale(run.all, self._last.kept.all, expected.all, self._expected.all):
            self.found([outputs.stale("after many calls")])
        if self._work:
            run, expected = self._last.kept, self._expected
            self.found(self._reference.called(self._work.code, run, expected))

    def _other_addresses(self) -> None:
        """Be right about the same content at other addresses, with allocations full of NaN."""
        moved = fresh_copies(self._given)
        is_compiled = self._work is None or self._work.is_compiled
        memory.poison_freed(self._last.kept.results)
        with nullcontext() if is_compiled else memory.poisoned_allocations():
            run = self._candidate(moved, self.seeds["last"])
        spoiled = self._judged(run)
        if all(item.passed for item in spoiled):
            return
        self.comparisons += [_named(item, "at other addresses") for item in spoiled]
        inputs.restore(moved, self._given, self.case.rewritten)
        plain = self._judged(self._candidate(moved, self.seeds["last"]))
        if all(item.passed for item in plain):
            self.found([memory.UNWRITTEN])

    def _renew(self, fresh: Sequence[Any]) -> None:
        inputs.overwrite(self._used, fresh, self.case.weights)
        # Sizes in a list are content as well.
        self._used = [
            old if contents(old) else new for old, new in zip(self._used, fresh, strict=True)
        ]
        self._given = fresh_copies(fresh)

    def _renew_a_little(self) -> None:
        """Write new activations; weights are left as they are, as between two steps of training."""
        weights = self.case.weights
        if self._is_disturbable:
            fresh = inputs.disturbed(self._given, weights, self._generator)
        else:
            seed = int(torch.randint(1 << 62, (), generator=self._generator))
            fresh = [
                old if place in weights else new
                for place, (old, new) in enumerate(
                    zip(self._given, make_inputs(self.case, seed), strict=True)
                )
            ]
        inputs.overwrite(self._used, fresh, self.case.weights, only_activations=True)
        self._given = fresh_copies(fresh)

    def _call(self, what: str, seed: int) -> None:
        """Call the candidate on its tensors and judge what it returned."""
        memory.poison_freed(self._last.kept.results)
        start = time.perf_counter()
        run = self._candidate(self._used, seed)
        if not self.interpreted:
            self._seconds = min(self._seconds, time.perf_counter() - start)
        expected = self._expect(run, seed)
        before, wanted = self._last, self._expected
        self._judge(run, expected, what)
        held = self._candidate.held(self._used)
        self.found(outputs.overwritten(before.live.results, before.kept.results, held))
        results = before.kept.all, run.kept.all, wanted.all, expected.all
        if outputs.any_stale(*results):
            self.found([outputs.stale(what)])

    def _judge(self, run: Run, expected: Pass, what: str) -> None:
        """Compare what was there at the return; keep the run as the last one."""
        self._expected = expected
        found = self._judged(run)
        if not all(item.passed for item in found):
            time.sleep(_LATE_SECONDS)
            if self.device == "cuda":
                torch.cuda.synchronize()
            if all(item.passed for item in self._judged(replace(run, kept=run.live))):
                self.found([outputs.LATE])
        self.comparisons += [_named(item, what) for item in found]
        self.found(run.findings)
        case = self.case
        self.broken += inputs.undeclared(self._used, self._given, case.writes, case.consumes)
        self.broken += self._candidate.undeclared()
        self._last = run

    def _elsewhere(self, run: Run) -> list[Comparison]:
        """Return what there is to say of a result that lies on another device."""
        for name, out in run.live.outputs.items():
            ref = self._expected.outputs.get(name)
            known = {self.device, ref.device.type if isinstance(ref, torch.Tensor) else ""}
            if isinstance(out, torch.Tensor) and out.device.type not in known:
                reason = f"is on {out.device}, and the inputs are on {self.device}"
                return [Comparison(name, False, f"a tensor on {self.device}", reason)]
        return []

    def _judged(self, run: Run) -> list[Comparison]:
        if elsewhere := self._elsewhere(run):
            return elsewhere
        return [self._fairly(item) for item in judge(self.case, self._expected, run.kept)]

    def _fairly(self, comparison: Comparison) -> Comparison:
        """Let a comparison pass that misses its gate by a hair where two contents have met it.

        The gate is asked twice, as it always was. The other steps look for wrong results, and must
        not turn a kernel away whose error lies at the edge of its tolerance for one content in 100.
        """
        before = self.accuracy.get(comparison.name)
        if comparison.passed or before is None or not self._is_settled:
            return comparison
        near = comparison.snr_db >= min(before.snr_db, before.rounding_db) - _HAIR_DB
        return replace(comparison, passed=True) if near else comparison


def _named(comparison: Comparison, what: str) -> Comparison:
    return replace(comparison, name=f"{comparison.name} ({what})") if what else comparison
