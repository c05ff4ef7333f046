"""One case on its way through the steps of a check, and the calls that they are made of.

A kernel is a function: it may be called with any content, at any address, in any order and any
number of times, and returns a result of its own. Every step calls it in one more of these ways; a
cache, a counter or a look at what is going on gives itself away in one of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.order import Bench
from pytest_kopt.cases.running.against_reference import (
    DerivedGate,
    InFloat64,
    advised,
    derived_gates,
    gated,
    judge_twice,
    nearest,
    pairs,
)
from pytest_kopt.cases.running.execution import CandidateFunction, Pass, Run
from pytest_kopt.cases.running.reference import Reference
from pytest_kopt.honesty import inputs, outputs, renewal
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.outputs import (
    FEW,
    NARROW_REFERENCE,
    accuracy_of,
    but_for_few,
    least_exact,
)
from pytest_kopt.numerics.compare import Comparison, compare, without_numbers
from pytest_kopt.numerics.nested import contents, fresh_copies

PURPOSES = ("check", "again", "disturb", "last", "groups")
#: A call that takes longer (an interpreted kernel) is not repeated dozens of times, nor are shorter
#: ones while the process is watched for longer than that.
LONG_SECONDS = 0.3
#: The share of a core that other threads may use while nobody calls the kernel, and for how long
#: that is seen at least, mostly while calls are judged.
IDLE_SHARE, _JUDGING_SECONDS = 0.05, 0.01
#: How much SNR may vary between contents.
_HAIR_DB = 10.0


@dataclass(slots=True, kw_only=True)
class Checking:
    """The state that the steps of a check share, and their findings so far."""

    case: Case
    bench: Bench
    #: By purpose, what each content is drawn under.
    seeds: dict[str, int]
    comparisons: list[Comparison] = field(default_factory=list)
    #: One of each kind.
    findings: list[Finding] = field(default_factory=list)
    #: Findings that make the check fail.
    broken: list[Finding] = field(default_factory=list)
    #: Why the case cannot be judged.
    invalid: str = ""
    #: Whether the kernel ran in Triton's interpreter.
    interpreted: bool = False
    #: How exact results are, by name.
    accuracy: dict[str, Accuracy] = field(default_factory=dict)
    #: The bytes that a forward moves, and a backward.
    io_bytes: dict[str, int] = field(default_factory=dict)
    #: The FLOPs that torch counts in the reference, 0: not counted.
    counted_flops: int = 0
    #: The dtype of products, for the roofline.
    dtype: str | None = None
    #: The sizes that a grouped case was checked with, by distribution; None: it is none.
    groups: dict[str, tuple[int, ...]] | None = None
    #: A digest of torch's operators where these alone give the result.
    by_torch: str = ""
    #: Whether all calls on equal inputs gave equal bits; None: not compared.
    bitwise_stable: bool | None = None
    #: The gates that were derived here, by name of the result; a baseline has frozen its own.
    derived: Mapping[str, DerivedGate] = field(default_factory=dict)
    #: The bytes of the outputs.
    written: int = 0
    candidate: CandidateFunction = field(init=False)
    #: The reference.
    truth: Reference = field(init=False)
    #: What draws the content that differs a little from the one before.
    generator: torch.Generator = field(init=False)
    #: The candidate's own tensors, which keep their addresses.
    used: list[Any] = field(init=False)
    #: A copy of what `used` should hold.
    pristine: list[Any] = field(init=False)
    #: What the reference left of the content.
    drawn: list[Any] = field(init=False)
    #: The first content.
    first: list[Any] = field(init=False)
    #: The candidate's run on the last content.
    last: Run = field(init=False)
    #: The reference's results on the last content.
    expected: Pass = field(init=False)
    #: Gives `expected` once more, in the reference's dtypes.
    again: Callable[[], Pass] = field(init=False)
    #: Gives `expected` once more, in float64; None where that cannot be.
    in_float64: InFloat64 = field(init=False)
    #: Results of few elements on all contents, by name, each with the reference's.
    few: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)
    #: Whether the first call drew from torch's global generator.
    draws: bool = False
    #: How long the quickest judged call took.
    seconds: float = math.inf
    #: Whether two contents have been judged by the gates.
    is_settled: bool = False
    #: Whether only a few elements of the content changed since the call before.
    is_renewed_a_little: bool = False
    #: For how many seconds calls were judged.
    judging: float = 0.0
    #: The largest share of a core that other threads used while a call was judged.
    beside: float = 0.0

    def __post_init__(self) -> None:
        self.groups = {} if self.case.is_grouped else None
        self.candidate = CandidateFunction(self.case, self.case.function)
        self.truth = Reference(self.case)
        self.generator = torch.Generator().manual_seed(self.seeds["disturb"])

    @property
    def is_short(self) -> bool:
        """Whether the quickest judged call was short: what only the first one builds counts not."""
        return self.seconds <= LONG_SECONDS

    @property
    def passed(self) -> bool:
        """Whether every comparison so far holds, and no contract is broken."""
        return all(comparison.passed for comparison in self.comparisons) and not self.broken

    def settle_gates(self, like: Pass) -> None:
        """Give the case the gates that the baseline froze; without one, those derived here."""
        frozen = self.bench.frozen(self.case.nodeid).gates
        if self.bench.expected is None:
            self.derived = derived_gates(self.case, like)
            frozen = {name: d.gate for name, d in self.derived.items() if d.gate is not None}
        self.case = replace(self.case, derived_gates=frozen)

    def steady(self) -> Pass:
        """Return the reference's results; BadInput where two calls differ beyond the gates."""
        first, again = self.again(), self.again()
        if first.outputs.keys() != self.last.copies.outputs.keys():
            return first
        like = {name: out for name, _, out in pairs(first, self.last.copies)}
        for name, ref, repeat, gate in gated(self.case, first, again):
            if isinstance(ref, torch.Tensor) and isinstance(like[name], torch.Tensor):
                # Both are rounded: a gate may ask for more than the dtype holds.
                first_out, repeat_out = (x.to(like[name].dtype) for x in (ref, repeat))
                compared = compare(first_out, repeat_out, gate, name)
                if not compared.passed:
                    raise self.case.refusal(
                        f"the reference gives different results for equal arguments ({name}: "
                        f"{compared.snr_db:.1f} dB of SNR between two calls): it draws random "
                        "numbers of its own, or keeps state between calls",
                        fix="have inputs() return the numbers, a torch.Generator or a seed for "
                        "the function and the reference; declare statistical=1e-6 if the "
                        "function is right in distribution only",
                    )
        return first

    def add_findings(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if finding.repairs:
                self.broken += [finding] if finding not in self.broken else []
            elif finding.check not in {earlier.check for earlier in self.findings}:
                self.findings.append(finding)

    def advice(self) -> dict[str, str]:
        like, seed = self.last.copies, self.seeds["check"]
        exact = self.truth.exact(self.pristine, like, seed)
        expected = exact or self.expected_of(self.pristine)
        run = self.expected_of
        return advised(self.case, self.comparisons, like, self.pristine, expected, run)

    def expected_of(self, arguments: Sequence[Any]) -> Pass:
        """Return the reference's results on some inputs, with the last run's gradients."""
        return self.truth(fresh_copies(arguments), self.last.copies, self.seeds["check"])

    def expect(self, run: Run, seed: int) -> Pass:
        self.drawn, pristine = fresh_copies(self.pristine), self.pristine
        self.again = lambda: self.truth(fresh_copies(pristine), run.live, seed)
        self.in_float64 = partial(self.truth.exact, pristine, run.live, seed)
        return self.truth(self.drawn, run.live, seed)

    def renew(self, fresh: Sequence[Any]) -> None:
        inputs.overwrite(self.used, fresh, self.case.weights)
        self.is_renewed_a_little = False
        # Sizes in a list are content as well.
        self.used = [
            old if contents(old) else new for old, new in zip(self.used, fresh, strict=True)
        ]
        self.pristine = fresh_copies(fresh)

    def restore(self) -> None:
        inputs.restore(self.used, self.pristine, self.case.rewritten)

    def call(self, call_name: str, seed: int) -> None:
        renewal.poison_freed(self.last.copies.results)
        start = time.perf_counter()
        run = self.candidate(self.used, seed)
        if not self.interpreted:
            self.seconds = min(self.seconds, time.perf_counter() - start)
        with self.no_call():
            self.judge(run, self.expect(run, seed), call_name, (self.last, self.expected))

    @contextmanager
    def no_call(self) -> Iterator[None]:
        """Watch what else the process computes while nobody calls the kernel."""
        begin, others_before = time.perf_counter(), seconds_of_others()
        yield
        spent = time.perf_counter() - begin
        self.judging += spent
        self.beside = max(self.beside, (seconds_of_others() - others_before) / spent)

    def is_at_rest(self) -> bool:
        """Say whether the process computes nothing by itself while nobody calls the kernel."""
        if (missing := _JUDGING_SECONDS - self.judging) > 0:
            with self.no_call():
                time.sleep(missing)
        return self.beside < IDLE_SHARE

    def call_unjudged(self) -> object:
        """Call the function on its tensors, with its backward where it has one."""
        self.restore()
        if self.case.backward:
            return self.candidate(self.used, self.seeds["disturb"]).live.outputs
        return self.case.positional(self.case.function)(*self.used)

    def judge(
        self, run: Run, expected: Pass, call_name: str, earlier: tuple[Run, Pass] | None = None
    ) -> None:
        """Compare what was there at the return, and look at the call; keep it as the last one."""
        self.expected = expected
        comparisons = self.judged(run)
        self.comparisons += [named(comparison, call_name) for comparison in comparisons]
        is_right = all(comparison.passed for comparison in comparisons)
        # Pairing results compares all of what was written to: not again where none is small.
        if is_right and any(tensor.numel() < FEW for tensor in run.copies.results):
            self._pool(run, self.expected)
        self.add_findings(list(self._findings_of_call(run, call_name, earlier)))
        self.last = run

    def _findings_of_call(
        self, run: Run, call_name: str, earlier: tuple[Run, Pass] | None
    ) -> Iterator[Finding]:
        """Yield what a call and its results give away; `earlier` is the call before it.

        `run.copies.all` and `self.expected.all` belong together, place by place.
        """
        case, used, pristine, expected = self.case, self.used, self.pristine, self.expected.all
        incoming, shareable = self.candidate.incoming(), self.candidate.shareable_memory(used)
        yield from inputs.undeclared(used, pristine, case.writes, case.consumes)
        yield from inputs.undeclared_gradients(incoming, case.consumes, case.consumes_incoming)
        yield from inputs.elsewhere(run.moved)
        yield from inputs.undrawn(used, pristine, self.drawn)
        if earlier:
            before, expected_before = earlier
            yield from outputs.shared(before.live.results, run.live.results, shareable)
            if case.is_statistical:
                # A sampler may draw the same few values twice.
                return
            yield from outputs.stale(
                call_name,
                before.copies.all,
                run.copies.all,
                expected_before.all,
                expected,
                rejects=not self.is_renewed_a_little,
            )

    def _pool(self, run: Run, expected: Pass) -> None:
        """Measure results of few elements over all contents: of one content their SNR is luck."""
        for name, ref, out in nearest(expected, run.copies, self.in_float64):
            if out.numel() < FEW:
                self.few.setdefault(name, []).append((ref.flatten(), out.flatten()))
                if latest := self.accuracy.get(name):
                    refs, outs = map(torch.cat, zip(*self.few[name], strict=True))
                    computed_in = least_exact([*expected.outputs.values()])
                    self.accuracy[name] = accuracy_of(
                        refs, outs, computed_in, latest.layout, latest.terms
                    )

    def mostly(self, baseline: Mapping[str, Accuracy]) -> dict[str, Accuracy]:
        """Return how exact the results are, those below the baseline's but for few elements."""
        accuracy = dict(self.accuracy)
        for name, ref, out in pairs(self.expected, self.last.copies) if self.passed else ():
            if reached := accuracy.get(name):
                accuracy[name] = but_for_few(reached, baseline.get(name), ref, out)
        return accuracy

    def judged(self, run: Run) -> list[Comparison]:
        if elsewhere := self.elsewhere(run):
            return elsewhere
        declared = self.expected
        self.expected, comparisons = judge_twice(self.case, declared, run.copies, self.in_float64)
        if self.expected is not declared:
            self.add_findings([NARROW_REFERENCE])
        return [self._fairly(comparison) for comparison in comparisons]

    def elsewhere(self, run: Run) -> list[Comparison]:
        """Return what there is to say of a result on another device, or without numbers."""
        for name, out in run.live.outputs.items():
            ref = self.expected.outputs.get(name)
            allowed_devices = {
                self.bench.device,
                ref.device.type if isinstance(ref, torch.Tensor) else "",
            }
            if not isinstance(out, torch.Tensor):
                continue
            if refused := without_numbers(out):
                reason = f"is {refused[0]}, and the reference is not. Fix: {refused[1]}"
                return [Comparison(name, False, "a plain tensor", reason)]
            if out.device.type not in allowed_devices:
                reason = f"is on {out.device}, and the inputs are on {self.bench.device}"
                return [Comparison(name, False, f"a tensor on {self.bench.device}", reason)]
        return []

    def _fairly(self, comparison: Comparison) -> Comparison:
        """Let a comparison pass that misses its gate by a hair where two contents have met it.

        The gate holds on two contents. The other steps look for wrong results, and must
        not turn a kernel away whose error lies at the edge of its tolerance for one content in 100.
        """
        before = self.accuracy.get(comparison.name)
        if comparison.passed or before is None or not self.is_settled:
            return comparison
        near = comparison.snr_db >= min(before.snr_db, before.rounding_db) - _HAIR_DB
        return replace(comparison, passed=True) if near else comparison


def seconds_of_others() -> float:
    """Return the CPU time that this process's other threads have used."""
    return time.process_time() - time.thread_time()


def named(comparison: Comparison, call_name: str) -> Comparison:
    return replace(comparison, name=f"{comparison.name} ({call_name})") if call_name else comparison
