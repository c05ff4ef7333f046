"""The gate of a pull request: cases as they are now, on today's kernel code and on the base's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from pytest_kopt import policies
from pytest_kopt.campaign import commands
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.details import with_details
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.options.declare import STEP
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.arms import CandidateDied, NotComparable, Versions
from pytest_kopt.paired.noise import Known
from pytest_kopt.paired.pairing import PairedMetric, PairedResult, judge
from pytest_kopt.paired.replica import Caught
from pytest_kopt.processes.worker_orders import WorkerOrders
from pytest_kopt.sameness.program import differing
from pytest_kopt.show.standing import Closing
from pytest_kopt.show.words import gate_outcome
from pytest_kopt.trials import judging
from pytest_kopt.trials.pull_request.base import Base
from pytest_kopt.trials.pull_request.inventory import Inventory, removed, take_inventory
from pytest_kopt.trials.trees import overlays, why_not_in_place
from pytest_kopt.trials.trial import Measurements, Trial
from pytest_kopt.versions.affected_modules import DATA_SUFFIXES, NATIVE_SUFFIXES

_STEP = PairedMetric("step speed", "step")
_COMPUTE = "compute what the cases ask for"
_NEXT = {
    Decision.ACCEPTED_WITH_NOTE: "mind the slower case",
    Decision.ROLLED_BACK: "mend the slower cases, or leave them the base's code",
    Decision.INCONCLUSIVE: "not decided: run it again, on a quieter machine if there is one",
}


class PullRequestGate(Trial):
    """`--kopt-base REF`: a verdict without a campaign; leaves nothing behind."""

    def __init__(self, config: pytest.Config, settings: Settings, session: WorkerOrders) -> None:
        assert settings.base is not None
        policy = policies.load(settings.policy or "primus")
        base = Base.of(settings.base, settings.root)
        files = {path: base.root / path for path in base.old}
        now = {path: file.read_bytes() if file.is_file() else None for path, file in files.items()}
        other = frozenset(differing(base.old, now))
        self._change = Change(config, settings, policy, base, other)
        # A bisection asks how two versions compare; what each takes in all is not needed.
        step = config.pluginmanager.has_plugin(STEP)
        self._ids: Sequence[str] = ()
        self._orders = replace(session, cases_only=True, compared=True, check_only=step)

    @property
    def title(self) -> str:
        change = self._change
        return f"{change.base}, gate {change.settings.gate}, policy {change.policy.name}"

    @property
    def is_settled(self) -> bool:
        return self._change.is_settled

    def orders(self, session: WorkerOrders) -> WorkerOrders:
        return self._orders

    def begin(self) -> str:
        """Learn which cases the base has, and build today's kernels; why that failed, or ""."""
        self._change = self._change.begun(self._orders)
        return self._change.unbuilt

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Raise BadInput when there is no case, or one whose file does not import at the base."""
        judging.check_some(ids, collector, "--kopt-base")
        self._ids = ids
        for nodeid in ids:
            error = judging.under(nodeid, self._change.then.errors)
            if error:
                raise BadInput(
                    f"{nodeid.partition('::')[0]} does not import there: {error}",
                    where=str(self._change.base),
                    legal="a base whose cases import",
                )

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge; nothing is recorded or changed."""
        return self._change.close(collector, measurements, interrupted)

    def versions(self) -> Versions | None:
        """Return what closing will compare; a build is left for when the cases have passed."""
        change = self._change
        if change.is_settled or change.unbuilt or change.settings.rebuild_command:
            return None
        _, changed = change.reached_by(self._ids)
        return change.beside(changed) if changed else None

    def release(self) -> None:
        self._change.held.close()


@dataclass(frozen=True, slots=True)
class Change:
    """A change of kernels, and what the session was asked about it.

    `differing` are the changed files that are other code than at the base. `then` are the cases
    that the base has, `unbuilt` says why today's kernels do not build: both are known once it is
    begun.
    """

    config: pytest.Config
    settings: Settings
    policy: Policy
    base: Base
    differing: frozenset[str]
    then: Inventory = field(default_factory=Inventory)
    unbuilt: str = ""
    held: ExitStack = field(default_factory=ExitStack)
    _made: dict[tuple[str, ...], Versions] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Whether nothing that cases can run or read is other code than at the base."""
        told = {".py", ".md", ".rst", *DATA_SUFFIXES, *NATIVE_SUFFIXES}
        others = {path for path in self.base.old if PurePosixPath(path).suffix not in told}
        return not others and all(path.endswith((".md", ".rst")) for path in self.differing)

    def begun(self, orders: WorkerOrders) -> Change:
        """Return the same with the base's cases, after today's kernels were built."""
        if self.is_settled:
            return self
        command, base = self.settings.rebuild_command, self.base
        problem = why_not_in_place(command) if command else ""
        if problem:
            raise BadInput(problem, where="kopt_rebuild_command")
        then, unbuilt = self.then, ""
        if base.old:
            then = take_inventory(self.config, orders, base)
        if command:
            done = commands.run(command, base.root, {})
            if not done.ok:
                unbuilt = f"`{command}` ended with status {done.returncode}\n{done.output}"
        return replace(self, then=then, unbuilt=unbuilt.rstrip())

    def close(self, collector: Collector, measurements: Measurements, interrupted: str) -> Closing:
        """Gather the rows and judge them."""
        judging.refuse(collector.refusals)
        judging.fail_rows_of_failed_tests(collector)
        verdict = judging.cut_off(collector, None, interrupted, self.policy)
        detail = self.unbuilt
        if self.is_settled:
            verdict = self._nothing([], f"the same code as {self.base}")
        elif self.unbuilt:
            verdict = self._wrong([], f"the kernel does not build: {detail.splitlines()[0]}")
        elif verdict is None:
            verdict, detail = self._judge(collector, measurements)
        thresholds = self.policy.model_dump(mode="json")
        told = {"base": self.base.commit, "outcome": gate_outcome(verdict)}
        verdict = verdict.model_copy(update={**told, "thresholds": thresholds})
        return Closing(with_details(verdict, collector.in_order()), detail)

    def _judge(self, collector: Collector, measurements: Measurements) -> tuple[Verdict, str]:
        """Judge what is dishonest or wrong, then the times, where kernels changed.

        Returns the stack of a candidate that ended its processes too, "" for any other.
        """
        results = collector.in_order()
        sources, changed = self.reached_by(result.nodeid for result in results)
        found = [item for result in results for item in result.findings]
        found += self._audit(results, changed)
        damning = judging.rejecting(found)
        if damning:
            return judging.overfit(results, damning, self.policy, _COMPUTE), ""
        failed = [result for result in results if result.check != "PASS"]
        if failed:
            names = ", ".join(result.nodeid for result in failed[:3])
            kinds = "/".join(sorted({result.check for result in failed}))
            why = f"{len(failed)} of {len(results)} case(s) are {kinds}: {names}"
            return self._wrong(results, why), ""
        if judging.is_interpreted(results):
            return judging.incomplete(self.policy, *judging.INTERPRETED), ""
        gone = removed(self.config, self.then, self.base, collector, measurements)
        if changed:
            verdict, detail = self._compare(results, changed, measurements)
        else:
            why = "the kernels are the same code as" if sources else "no kernel code changed since"
            verdict, detail = self._nothing(results, f"{why} {self.base}"), ""
        verdict = judging.flagged(verdict, [f"removed case: {nodeid}" for nodeid in gone])
        verdict = judging.flagged(verdict, found)
        new = [result.nodeid for result in results if result.nodeid not in self.then.ids]
        return verdict if self.settings.allow_removed else _without(gone, new, verdict), detail

    def reached_by(self, ids: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the changed files besides these cases' own, and which of them do other things."""
        harness = [self._in_tree(nodeid.partition("::")[0]) for nodeid in ids]
        sources = self.base.kernel_changes(harness, self.config.getini("python_files"))
        return sources, [path for path in sources if path in self.differing]

    def beside(self, changed: Sequence[str]) -> Versions:
        """Return trees in which these files are the base's, made once and kept while it is held.

        Raises NotComparable where the base does not build.
        """
        if (*changed,) not in self._made:
            old = {path: self.base.old[path] for path in changed}
            made = overlays(self.base.root, old, rebuild=self.settings.rebuild_command)
            self._made[(*changed,)] = self.held.enter_context(made)
        return self._made[(*changed,)]

    def _audit(self, results: Sequence[CaseResult], changed: Sequence[str]) -> list[Finding]:
        """Audit the changed sources that the cases have loaded, and no other script's."""
        loaded = {file for result in results for file in result.evidence.loaded or ()}
        paths = sorted(set(changed) & {self._in_tree(file) for file in loaded})
        now = {path: (self.base.root / path).read_bytes() for path in paths}
        then = {path: self.base.old[path] or b"" for path in paths}
        return audit(now, then)

    def _compare(
        self, results: Sequence[CaseResult], changed: Sequence[str], measurements: Measurements
    ) -> tuple[Verdict, str]:
        """Compare the cases that the base has, or can run, on both versions of the kernels."""
        try:
            versions = self.beside(changed)
            new = self._without_twin(results, versions, measurements)
            known = [result for result in results if result.nodeid not in new]
            found = self._measure(known, versions, measurements) if known else None
        except Caught as caught:
            return judging.overfit(results, caught.findings, self.policy, _COMPUTE), ""
        except CandidateDied as death:
            how = str(death)
            told = [
                judging.failed(result, "ERROR", how) if result.nodeid == death.case else result
                for result in results
            ]
            return self._wrong(told, how.splitlines()[0]), judging.head(how)
        except NotComparable as error:
            raise BadInput(
                f"its kernel code cannot be measured beside today's: {error}",
                where=str(self.base),
                legal="a base whose kernels load and run these cases",
            ) from None
        return judging.flagged(self._told(results, found, new), list(new.values())), ""

    def _measure(
        self, known: Sequence[CaseResult], versions: Versions, measurements: Measurements
    ) -> PairedResult:
        noise = Known.here(self.settings.workspace, known)
        with measurements.compare([result.nodeid for result in known], versions) as comparison:
            return judge(
                comparison,
                known,
                [_STEP],
                self.policy,
                noise,
                gate=self.settings.gate,
                reached_only=True,
            )

    def _told(
        self, results: Sequence[CaseResult], found: PairedResult | None, new: Mapping[str, str]
    ) -> Verdict:
        """Return the verdict on all cases; `new` are those that were not compared."""
        if found is None or len(found.same) == len(found.results):
            why = f"the change since {self.base} reaches no case"
            same = found.same if found else {}
            if found and found.has_same_machine_code:
                why = f"the GPU does the same work as at {self.base}: the same machine code"
            verdict = self._nothing([], why if found else f"every case is new since {self.base}")
            verdict.shapes.extend(judging.shapes(results, same.keys() | new.keys(), same))
            return verdict
        verdict = found.verdict
        rest = judging.shapes(results, found.same.keys() | new.keys(), found.same)
        update: dict[str, Any] = {"shapes": verdict.shapes + rest}
        if verdict.decision is not Decision.INCOMPLETE:
            update["next_step"] = _NEXT.get(verdict.decision, "")
        return verdict.model_copy(update=update)

    def _without_twin(
        self, results: Sequence[CaseResult], versions: Versions, measurements: Measurements
    ) -> dict[str, str]:
        """Return the new cases that the base's kernels do not pass, each with what to say of it."""
        new = [r.nodeid for r in results if self.base.old and r.nodeid not in self.then.ids]
        if not new:
            return {}
        copy = (versions.root, versions.trees[0])
        (there,) = (run.results for run in measurements.run_in([copy], new, check_only=True))
        found = {nodeid: there[nodeid].check if nodeid in there else "" for nodeid in new}
        return {
            nodeid: f"new case, not compared: {nodeid}" + (check and f" ({check} at the base)")
            for nodeid, check in found.items()
            if check != "PASS"
        }

    def _nothing(self, results: Sequence[CaseResult], why: str) -> Verdict:
        """Return the verdict on unchanged kernels: no regression, and no gain either."""
        decision, step = Decision.ACCEPTED, ""
        if self.settings.gate == "improve":
            decision = Decision.INCONCLUSIVE
            step = "the gate asks for a gain; there is none to measure"
        return judging.same_code(decision, why, results, self.policy, step)

    def _wrong(self, results: Sequence[CaseResult], reason: str) -> Verdict:
        step = "mend the kernel; nothing was compared"
        return judging.uncompared(results, self.policy, Decision.REPAIR, reason, step)

    def _in_tree(self, path: str) -> str:
        """Return a path below pytest's root as one below the work tree."""
        inside = self.settings.root.resolve().relative_to(self.base.root)
        return str(PurePosixPath(inside.as_posix()) / path)


def _without(gone: Sequence[str], new: Sequence[str], verdict: Verdict) -> Verdict:
    """Return the verdict on a change that removes cases: refused, unless it is worse as it is."""
    if not gone or not (verdict.decision.keeps or verdict.decision is Decision.INCONCLUSIVE):
        return verdict
    names = _some(gone)
    renamed = f" or have a new name ({_some(new)})" if new else ""
    return verdict.model_copy(
        update={
            "decision": Decision.ROLLED_BACK,
            "reason": f"{len(gone)} case(s) of the base are gone or skipped, and nothing says that "
            f"their shapes are not slower: {names}; of the others: {verdict.reason}",
            "next_step": "bring them back, or pass --kopt-allow-removed if they are meant to go"
            + renamed,
            "removed": list(gone),
        }
    )


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
