"""A pull request against its base: which cases the change reaches, and what they come to."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_kopt import policies
from pytest_kopt.cases.details import in_a_line, with_details
from pytest_kopt.cases.order import Purpose, WorkerOrders
from pytest_kopt.cases.result import CaseResult, Collector, loaded_by
from pytest_kopt.decide import hard_gates
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.conclusion import of_parts, with_untimed, without
from pytest_kopt.decide.hard_gates import some
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding, names_of
from pytest_kopt.options.declare import IN_TREE
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.arms import CandidateDied, NotComparable, Versions
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.pairing import Criteria, PairedMetric, PairedResult, judge
from pytest_kopt.paired.replica import Caught
from pytest_kopt.processes.launcher import launcher_of
from pytest_kopt.sameness.sources import differing
from pytest_kopt.show.standing import Closing
from pytest_kopt.show.words import gate_outcome
from pytest_kopt.trials import judging
from pytest_kopt.trials.harness import PytestSetup
from pytest_kopt.trials.measurements import InCopies, Measurements
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.trials.pull_request import base
from pytest_kopt.trials.pull_request.base import Base, removed, take_inventory
from pytest_kopt.trials.pull_request.own_rules import (
    Reach,
    check_known,
    check_rules,
    edited_around,
    edited_settings,
    ignored_among,
    ignored_code,
    plugin_files,
)
from pytest_kopt.trials.trees import Builds, Trees, scratch, why_not_in_place

#: What to do after a decision.
NEXT = {
    Decision.ACCEPTED: "",
    Decision.ACCEPTED_WITH_NOTE: "look at the slower case",
    Decision.ROLLED_BACK: "make the slower cases faster, or keep the base's code for them",
    Decision.INCONCLUSIVE: "not decided: run it again, on a quieter machine if there is one",
}


class PullRequestGate:
    """`--kopt-base REF`: a change of kernels next to the commit where it branched off.

    Made while pytest is configured, begun when the session starts, closed when all cases ran; it
    leaves nothing behind.
    """

    #: Lines below the header: what is to be read before anything runs.
    preface: Sequence[str] = ()
    #: The file that says how far the session is: nobody would read it.
    running_file: Path | None = None
    #: Variables that every process which runs kernel code gets.
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(self, config: pytest.Config, settings: Settings, session: WorkerOrders) -> None:
        assert settings.base is not None
        self.config, self.settings = config, settings
        self.policy = policies.load(settings.policy or "primus")
        self._orders = replace(session, purpose=Purpose.COMPARISON)
        here = Path(config.invocation_params.dir)
        shown = getattr(config.pluginmanager.get_plugin(IN_TREE), "base", "")
        self.other = base = Base.of(settings.base, settings.root, here, shown)
        files = {path: base.root / path for path in base.old}
        now = {path: file.read_bytes() if file.is_file() else None for path, file in files.items()}
        #: The changed files that are other code than at the base.
        self._differing = differing(base.old, now)
        #: The files of cases, now or at the base; the changed files but those and conftest files,
        #: and which of these do other things.
        self._tests: set[str] = set()
        self._sources: Sequence[str] = ()
        self._changed: Sequence[str] = ()
        self._then, self._unbuilt = Collector(), ""
        #: What kernels need not support by the base's cases, where today's say more.
        self._domains: dict[str, tuple[str, ...]] = {}
        #: Files around the kernels that differ, as the base has them, and the cases by these.
        self._around: dict[str, bytes | None] = {}
        self._as_then: dict[str, CaseResult] = {}
        self._held = ExitStack()
        command = settings.rebuild_command
        self._builds = None
        if command:
            rebuild = ProjectCommand(command, is_confined=settings.isolates)
            self._builds = Builds(base.root, rebuild, self._held.enter_context(scratch()))
        self._trees = Trees(self._held, base.root, self._builds)
        self._own_trees = Trees(self._held, base.root, self._builds, copies_sources=True)
        #: Sources that git ignores, as far as no build makes them for each version.
        asks_git = base.commit and not command
        self._ignored = ignored_code(base.root, settings.workspace) if asks_git else frozenset()
        self._reach = Reach(base.root, settings.root, self._differing, rebuilds=bool(command))

    @property
    def title(self) -> str:
        return f"{self.other}, gate {self.settings.gate}, policy {self.policy.name}"

    @property
    def is_settled(self) -> bool:
        """Whether every source is known to git, and the same code as at the base."""
        return not (self._differing or self._ignored)

    def orders(self, session: WorkerOrders) -> WorkerOrders:
        return self._orders

    def begin(self) -> str:
        """Learn which cases the base has, and build today's kernels; why that failed, or ""."""
        if self.is_settled:
            return ""
        check_rules(self.config, self.settings, self.other, self._differing)
        if edited_around(self.config, self.other, self._differing):
            launcher_of(self.config).forget_variables()
        base, command = self.other, self.settings.rebuild_command
        check_known(base, (), [path for path in self._differing if path.endswith(".py")])
        problem = why_not_in_place(command) if command else ""
        if problem:
            raise BadInput(problem, where="kopt_rebuild_command")
        if self._builds:
            # The base's cases may import what it makes, which a fresh check-out lacks.
            self._unbuilt = self._builds.into_project()
        if base.old and not self._unbuilt:
            self._then = take_inventory(self.config, self._orders, base)
        return self._unbuilt

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        judging.check_some(ids, collector, "--kopt-base")
        old = self.other.old
        files = {nodeid.partition("::")[0] for nodeid in (*ids, *self._then.order)}
        self._tests = {*map(self._reach.in_tree, files)}
        self._sources = [path for path in old if not self._is_of_tests(path)]
        self._changed = [path for path in self._sources if path in self._differing]
        self._check_base_imports(ids)
        self._check_same_ids(ids)

    def get_ahead(self, ids: Sequence[str], measurements: Measurements) -> None:
        # A build is left for when the cases have passed, and so are what may have no reader and
        # what may be timed with other tests around it.
        is_code = any(path.endswith(".py") for path in self._changed)
        is_whole = {*self._differing} == {*self._changed}
        if is_code and is_whole and not (self._unbuilt or self.settings.rebuild_command):
            measurements.get_ahead(ids, self._beside())

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        if not (interrupted or self.is_settled):
            failed = judging.not_imported(collector, self._then.order, self.config.rootpath)
            self._check_base_imports(failed)
            self._check_known(collector.in_order())
        verdict = self.cut_off(collector, interrupted, self._then.order)
        detail = self._unbuilt
        if self.is_settled:
            verdict = self._nothing(f"the same code as {self.other}")
        elif detail:
            verdict = self.wrong([], f"the kernel does not build: {detail.splitlines()[0]}")
        elif verdict is None:
            verdict, detail = self._judge(collector, measurements)
        base = self.other.commit or self.other.name
        return self.closed(verdict, base, collector.in_order(), detail)

    def no_idle_gpu(self, error: AllGpusBusy) -> None:
        """Record nothing: there is no campaign."""

    def release(self) -> None:
        """Give everything back; safe to repeat."""
        self._held.close()

    def _judge(self, collector: Collector, measurements: Measurements) -> tuple[Verdict, str]:
        """Judge what is dishonest or wrong, then the times, where kernels changed."""
        results = collector.in_order()
        found = [*judging.findings_of(results), *self._audit(results)]
        damning = judging.rejecting(found)
        if damning:
            return judging.overfit(results, damning, self.policy, judging.COMPUTE), ""
        new = [result.nodeid for result in results if result.nodeid not in self._then.order]
        gone: list[str] = []
        declared: dict[base.Difference, list[str]] = {}

        def compared() -> Verdict:
            gone.extend(removed(self.config, self._then, self.other, collector, measurements))
            wrong = self._judged_as_then(results, declared, measurements)
            return wrong or self._compared(results, new, measurements)

        broken = self._broken_at_base(results, measurements)
        results = [result for result in results if result.nodeid not in broken]
        verdict, detail = self.judged(results, compared)
        flags = [f"removed case: {nodeid}" for nodeid in gone]
        flags += [f"fails at the base in the same way: {nodeid}" for nodeid in broken]
        verdict, told = base.with_differences(verdict, declared)
        verdict = judging.flagged(verdict, [*flags, *told, *found])
        if not self.settings.allow_removed:
            verdict = without(gone, new, verdict)
        return verdict, detail

    def _judged_as_then(
        self,
        results: Sequence[CaseResult],
        declared: dict[base.Difference, list[str]],
        measurements: Measurements,
    ) -> Verdict | None:
        """Judge today's kernels by what decided at the base, where the change touches that.

        Returns the verdict on wrong ones; fills in what is `declared` otherwise by which labels.
        """
        touched = self._touched(results)
        wanted = [result for result in results if result.nodeid in self._then.order]
        if not (touched and wanted):
            return None
        versions = self._own_trees.having(touched)
        copy, ids = (versions.root, versions.trees[0]), [result.nodeid for result in wanted]
        (there,) = measurements.run_in(InCopies([copy], ids), "checking by the base's cases")
        failed = []
        for now in wanted:
            then = there.results.get(now.nodeid)
            if then is None or then.check == "ERROR":
                error = then.diagnosis if then else judging.under(now.nodeid, there.collect_errors)
                why = f" ({in_a_line(error)})" if error else ""
                text = f"cannot be run with the base's files{why}"
                declared.setdefault(base.Difference(text, is_known=False), []).append(now.label)
                continue
            self._as_then[now.nodeid] = then
            admitted = then.evidence.domain or ()
            if {*admitted} != {*(now.evidence.domain or ())}:
                self._domains[now.nodeid] = admitted
            for difference in base.differences(then, now, self.policy):
                declared.setdefault(difference, []).append(now.label)
            failed += [then] if then.check == "FAIL" else []
        if not (failed and self._changed):
            return None
        why = in_a_line(failed[0].diagnosis)
        what = f"{len(failed)} case(s) are wrong by what the base's cases declare"
        told = judging.all_failed(results, {r.nodeid: r.diagnosis for r in failed}, "FAIL")
        verdict = self.wrong(told, f"{what}: {failed[0].label}: {why}")
        step = "correct the kernel, or change what is right in a pull request of its own first"
        return verdict.model_copy(update={"next_step": step})

    def _broken_at_base(
        self, results: Sequence[CaseResult], measurements: Measurements
    ) -> set[str]:
        """Return the cases that fail now, and fail in the same way with the base's files.

        BadInput where no other case fails: the change is not at fault, and nothing can be compared.
        """
        failed = [result for result in results if result.check != "PASS"]
        ids = [result.nodeid for result in failed if result.nodeid in self._then.order]
        if not ids or not self.other.old:
            return set()
        try:
            versions = self._own_trees.having(self.other.old)
        except NotComparable:
            return set()
        copies = [(versions.root, versions.trees[0])]
        (there,) = measurements.run_in(InCopies(copies, ids), "checking the base")
        checks = {nodeid: result.check for nodeid, result in there.results.items()}
        broken = [result for result in failed if checks.get(result.nodeid) == result.check]
        if broken and len(broken) == len(failed):
            raise BadInput(
                f"{len(broken)} case(s) fail there in the same way: {broken[0].nodeid}: "
                f"{in_a_line(broken[0].diagnosis)}",
                where=str(self.other),
                fix="correct them in a pull request of their own first",
            )
        return {result.nodeid for result in broken}

    def _check_base_imports(self, ids: Iterable[str]) -> None:
        """Raise BadInput where a file of these cases does not import at the base."""
        for nodeid in ids:
            if error := judging.under(nodeid, self._then.collect_errors):
                raise BadInput(
                    f"{nodeid.partition('::')[0]} does not import there: {in_a_line(error)}",
                    where=str(self.other),
                    fix="name a base whose cases import",
                )

    def _check_same_ids(self, ids: Sequence[str]) -> None:
        """Raise BadInput where an id is another one in each process, as one with an address is."""
        then = self._then.order
        gone, new = (
            {nodeid.partition("[")[0] for nodeid in {*these} - {*others}}
            for these, others in ((then, ids), (ids, then))
        )
        if gone & new:
            # The same tests in another process: a change may have renamed cases as well.
            again = take_inventory(self.config, self._orders, self.other)
            judging.check_same_ids(then, again.order, str(self.other))

    def _check_known(self, results: Sequence[CaseResult]) -> None:
        """Raise BadInput where it is not known what a file that the cases use was at the base.

        Files that tests alone read are as they are now for both versions.
        """
        used, opened = self._reach.used(results), self._reach.opened(results)
        ignored = self._ignored & used
        if self.other.commit and not self._builds:
            ignored |= ignored_among(self.other.root, opened)
        if ignored:
            harness, _ = self._harness_of(results)
            is_kernels = {
                path for path in ignored if path not in opened or self._reads(harness, opened[path])
            }
            ignored = frozenset(is_kernels - harness)
        check_known(self.other, ignored, used)

    def _reads(self, harness: Collection[str], readers: Iterable[str]) -> bool:
        """Say whether one of the `readers` of a file, below the root, is no harness."""
        return not {*map(self._reach.in_tree, filter(None, readers))}.issubset(harness)

    def _touched(self, results: Sequence[CaseResult]) -> dict[str, bytes | None]:
        """Return what differs of the files that decide, or are run around the cases, at the base.

        Files that no kernel imports are as at the base for times too.
        """
        differing, old = self._differing, self.other.old
        harness, needed = self._harness_of(results)
        touched = harness.intersection(differing) | {*filter(self._is_of_tests, differing)}
        touched |= edited_settings(self.config, self.other, differing)
        is_kernels = {path for path in needed if not self._is_of_tests(path)}
        self._around = {path: old[path] for path in sorted(touched - is_kernels)}
        return {path: old[path] for path in sorted(touched)}

    def _harness_of(self, results: Sequence[CaseResult]) -> tuple[set[str], set[str]]:
        """Return the files that decide what is right in these cases, and those of kernels."""
        root, setup = self.settings.root, PytestSetup.of(self.config)
        plugins = plugin_files(self.config, root.resolve())
        harness, needed = base.harness_of(root, results, setup, plugins)
        in_tree = self._reach.in_tree
        return {*map(in_tree, harness)}, {*map(in_tree, needed)}

    def _beside(self) -> Versions:
        """Return trees of the base's kernels; NotComparable where these do not build.

        Inputs that a case excludes today and did not then are required of today's kernels all the
        same.
        """
        versions = self._trees.having({path: self.other.old[path] for path in self._changed})
        return replace(versions, domains=dict(self._domains))

    def _as_at_the_base(self) -> Versions:
        """Return trees of the base's kernels and of today's, the base's tests around them all."""
        old, around = self.other.old, self._around
        kernels = {path: old[path] for path in self._changed}
        versions = self._trees.having(kernels | around)
        own, changed = self._own_trees.having(around).trees[0], tuple(sorted(kernels))
        return replace(versions, changed=changed, own=own, domains=dict(self._domains))

    def _audit(self, results: Sequence[CaseResult]) -> list[Finding]:
        paths = sorted(
            {*self._changed} & {self._reach.in_tree(file) for file in loaded_by(results)}
        )
        now = {path: (self.other.root / path).read_bytes() for path in paths}
        then = {path: self.other.old[path] or b"" for path in paths}
        return audit(now, then)

    def _compared(
        self, results: Sequence[CaseResult], new: Sequence[str], measurements: Measurements
    ) -> Verdict:
        """Compare the cases that the base has, or can run, on both versions of the kernels."""
        opened = self._reach.opened(results)
        of_tests = [path for path in self._changed if self._is_read_by_tests(opened.get(path))]
        kernels = [path for path in self._changed if path not in (*of_tests, *self._around)]
        self._changed = kernels
        flags = [
            f"read by tests, and for both versions as it is now: {path}"
            for path in of_tests
            if path not in self._around
        ]
        if not self._changed:
            same_code = "the kernels are the same code as"
            why = same_code if self._sources and not of_tests else "no kernel code changed since"
            verdict = self._nothing(f"{why} {self.other}", judging.same_shapes(results))
            return judging.flagged(verdict, flags)
        if not self._reach.any_used(self._changed, [*results, *self._as_then.values()]):
            verdict = self._nothing(self._unreached(results), judging.same_shapes(results))
            return judging.flagged(verdict, flags)
        as_then = self._as_then if self._around else {}
        alone = self._without_twin(new, measurements)
        both = [
            as_then.get(r.nodeid) or base.by_base(r, self._as_then.get(r.nodeid))
            for r in results
            if r.nodeid not in alone
        ]
        timed, interpreted = judging.by_clock(both)
        reached = [case for case in interpreted if self._reach.any_called(self._changed, case)]
        paired = [
            self.compare(cases, versions(), measurements)
            for versions, cases in (
                (self._as_at_the_base, [case for case in timed if case.nodeid in as_then]),
                (self._beside, [case for case in timed if case.nodeid not in as_then]),
            )
            if cases
        ]
        same = {nodeid: how for part in paired for nodeid, how in part.same.items()}
        compared = [part.verdict for part in paired if len(part.same) < len(part.results)]
        same |= {case.nodeid: "source" for case in interpreted if case not in reached}
        rest = judging.shapes(results, same.keys() | alone.keys(), same)
        decided: Verdict | None = None
        if compared:
            decided = of_parts(compared)
            decided = decided.model_copy(update={"shapes": decided.shapes + rest})
        elif rest:
            if any(part.has_same_machine_code for part in paired):
                why = f"the GPU does the same work as at {self.other}: the same machine code"
            else:
                why = self._unreached(results) if both else f"every case is new since {self.other}"
            decided = self._nothing(why, rest)
        untimed = judging.shapes(reached, {case.nodeid for case in reached})
        verdict = with_untimed(decided, untimed, self.policy, *judging.INTERPRETED)
        return judging.flagged(verdict, [*alone.values(), *flags])

    def _unreached(self, results: Sequence[CaseResult]) -> str:
        """Return why no case changes; BadInput for files, which are named in order to be compared.

        A commit may hold other changes than those of kernels.
        """
        if self.other.commit:
            return f"the change since {self.other} reaches no case"
        place = "a folder that holds them at their place"
        if self.config.pluginmanager.has_plugin(IN_TREE):
            place = "their place by --at"
        fix = f"name tests that do; or name {place}"
        if any(os.path.isabs(result.evidence.home or "") for result in results):
            fix = (
                "have the tests import the project from the tree that pytest runs in (setting "
                "pythonpath): an editable install of a folder leads to the folder itself"
            )
        raise BadInput(
            f"no case runs the files that differ: {some(self._changed)}; the cases call "
            f"{judging.called_by(results)}",
            where=str(self.other),
            fix=fix,
        )

    def _is_read_by_tests(self, readers: Collection[str] | None) -> bool:
        """Say whether the `readers` of a file, below the root, are tests and conftest files."""
        return bool(readers) and all(
            self._is_of_tests(self._reach.in_tree(path)) for path in readers or ()
        )

    def _is_of_tests(self, path: str) -> bool:
        """Say whether a path is one of the cases' files, or of the conftest files."""
        return path in self._tests or base.is_conftest(path)

    def _without_twin(self, new: Sequence[str], measurements: Measurements) -> dict[str, str]:
        """Return the new cases that the base's kernels do not pass, each with what to say of it."""
        if not new or not self.other.old:
            return {}
        versions = self._beside()
        (there,) = measurements.run_in(InCopies([(versions.root, versions.trees[0])], new))
        found = {i: there.results[i].check if i in there.results else "" for i in new}
        return {
            nodeid: f"new case, not compared: {nodeid}" + (check and f" ({check} at the base)")
            for nodeid, check in found.items()
            if check != "PASS"
        }

    def _nothing(self, why: str, shapes: Sequence[Shape] = ()) -> Verdict:
        """Return the verdict on unchanged kernels."""
        asks_gain = self.settings.gate == "improve"
        return hard_gates.unchanged(self.policy, why, shapes, asks_gain=asks_gain)

    def closed(
        self, verdict: Verdict, base: str, results: Sequence[CaseResult], detail: str
    ) -> Closing:
        thresholds = self.policy.model_dump(mode="json")
        told = {"base": base, "outcome": gate_outcome(verdict), "thresholds": thresholds}
        return Closing(with_details(verdict.model_copy(update=told), results), detail)

    def cut_off(
        self, collector: Collector, interrupted: str, known: Sequence[str] = ()
    ) -> Verdict | None:
        """Return INCOMPLETE or REPAIR where not every case has a row; BadInput for refused input.

        A file of cases that does not import, the other side's `known` ones or others, is wrong.
        """
        judging.refuse(collector.refusals())
        judging.fail_rows_of_failed_tests(collector)
        unfinished = judging.cut_off(collector, None, interrupted, self.policy)
        failed = judging.not_imported(collector, known, self.config.rootpath)
        if not failed or interrupted or (unfinished and collector.results):
            return unfinished
        return self.wrong(collector.in_order(), "; ".join(failed.values()))

    def judged(
        self, results: Sequence[CaseResult], compared: Callable[[], Verdict]
    ) -> tuple[Verdict, str]:
        """Return the verdict on wrong cases, else the `compared`, and a candidate's stack."""
        failed = [result for result in results if result.check != "PASS"]
        if failed:
            names = ", ".join(result.nodeid for result in failed[:3])
            kinds = "/".join(sorted({result.check for result in failed}))
            why = f"{len(failed)} of {len(results)} case(s) are {kinds}: {names}"
            why += f"; the first: {in_a_line(failed[0].diagnosis)}"
            return self.wrong(results, why), ""
        try:
            return compared(), ""
        except Caught as caught:
            if caught.accuses:
                return judging.overfit(results, caught.findings, self.policy, judging.COMPUTE), ""
            return self._refused(results, caught.findings, "the results are not the base's"), ""
        except CandidateDied as death:
            how = str(death)
            told = judging.all_failed(results, {death.case: how}, "ERROR")
            return self.wrong(told, how.splitlines()[0]), judging.head(how)
        except NotComparable as error:
            raise BadInput(
                f"kopt cannot run the cases with the base's kernels: {error}",
                where=str(self.other),
                fix=error.fix or "keep renamed functions and modules under both names",
            ) from None

    def compare(
        self, cases: Sequence[CaseResult], versions: Versions, measurements: Measurements
    ) -> PairedResult:
        """Compare these cases; the step says after it what to do."""
        criteria = Criteria(
            [PairedMetric("step speed", "step")],
            self.policy,
            NoiseHistory.here(self.settings.workspace, cases),
            gate=self.settings.gate,
            reached_only=True,
        )
        with measurements.compare([case.nodeid for case in cases], versions) as comparison:
            paired = judge(comparison, cases, criteria)
        return replace(paired, verdict=self._with_nearby(paired))

    def _with_nearby(self, paired: PairedResult) -> Verdict:
        """Return the verdict with what the versions did at shapes near the declared ones."""
        nearby, verdict = paired.nearby, paired.verdict
        reached = [result for result in paired.results if result.nodeid not in paired.same]
        if wrong := paired.refusing:
            why = "the other side is right where this one is not"
            return judging.flagged(self._refused(reached, wrong, why), nearby)
        if verdict.decision is not Decision.INCOMPLETE:
            step = NEXT.get(verdict.decision, "")
            verdict = verdict.model_copy(update={"next_step": step})
        return judging.flagged(verdict, nearby)

    def _refused(
        self, results: Sequence[CaseResult], findings: Sequence[Finding], why: str
    ) -> Verdict:
        """Return the verdict on a version that cheats, or else on a wrong one; `why` begins it."""
        if cheats := judging.rejecting(findings):
            return judging.overfit(results, cheats, self.policy, judging.COMPUTE)
        failed = {finding.where: str(finding) for finding in findings}
        failing = judging.all_failed(results, failed, "FAIL")
        reason = f"{why}: {names_of(findings)}"
        return judging.flagged(self.wrong(failing, reason), findings)

    def wrong(self, results: Sequence[CaseResult], reason: str) -> Verdict:
        step = "correct what the reason names; nothing was compared"
        return hard_gates.wrong(self.policy, reason, step, judging.checked_shapes(results))
