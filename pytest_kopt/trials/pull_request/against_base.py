"""A pull request against its base: which cases the change reaches, and what they come to."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from pytest_kopt import policies
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.cases.details import in_a_line, with_details
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.result import CaseResult, Collector, loaded_by
from pytest_kopt.decide.case_verdict import Same, Shape
from pytest_kopt.decide.conclusion import with_untimed, without
from pytest_kopt.decide.grounds import Ground, Observation, by_ground, some, unchanged
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding, names_of
from pytest_kopt.options.declare import IN_TREE
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.paired.judge import Caught
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.pairing import Criteria, PairedResult, compare
from pytest_kopt.paired.runner import Died
from pytest_kopt.processes.launched import scratch
from pytest_kopt.processes.launcher import launcher_of
from pytest_kopt.sameness.sources import differing
from pytest_kopt.schema.metrics import STEP
from pytest_kopt.show.standing import Closing
from pytest_kopt.show.words import gate_outcome
from pytest_kopt.trials import judging
from pytest_kopt.trials.measurements import Measurements
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.trials.pull_request.base import (
    Base,
    check_known,
    harness_of,
    ignored_code,
    is_conftest,
    removed,
    take_inventory,
)
from pytest_kopt.trials.pull_request.own_rules import (
    changed_cases,
    check_rules,
    edited_around,
    edited_settings,
    settings_of,
)
from pytest_kopt.trials.trees import Builds, Trees, why_not_in_place

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

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        assert settings.base is not None
        self.config, self.settings = config, settings
        self.policy = policies.load(settings.policy or "primus")
        here = Path(config.invocation_params.dir)
        shown = getattr(config.pluginmanager.get_plugin(IN_TREE), "base", "")
        self.other = base = Base.of(settings.base, settings.root, here, shown)
        files = {path: base.root / path for path in base.old}
        now = {path: file.read_bytes() if file.is_file() else None for path, file in files.items()}
        #: The changed files that are other code than at the base.
        self._differing = differing(base.old, now)
        #: The files of cases, now or at the base.
        self._tests: set[str] = set()
        self._then, self._unbuilt = Collector(), ""
        #: Known once the session asks for `orders`.
        self._orders: WorkerOrders
        self._held = ExitStack()
        command = settings.rebuild_command
        self._builds = None
        if command:
            rebuild = ProjectCommand(command, is_confined=settings.isolates)
            self._builds = Builds(base.root, rebuild, self._held.enter_context(scratch()))
        self._trees = Trees(self._held, base.root, self._builds)
        #: Trees that lead to what is built in the project.
        self._linked = Trees(self._held, base.root) if command else self._trees
        #: Tells which files have no content at the base; a build makes them for each version.
        self._git = Repository.around(base.root) if base.commit and not command else None
        #: Sources that git ignores.
        self._ignored = ignored_code(self._git, settings.workspace) if self._git else set[str]()

    @property
    def title(self) -> str:
        return f"{self.other}, gate {self.settings.gate}, policy {self.policy.name}"

    @property
    def is_settled(self) -> bool:
        """Whether every source is known to git, and the same code as at the base."""
        return not (self._differing or self._ignored)

    def orders(self, session: WorkerOrders) -> WorkerOrders:
        self._orders = replace(session, decides=True, compares=True)
        return self._orders

    def begin(self) -> str:
        """Learn which cases the base has, and build today's kernels; why that failed, or ""."""
        if self.is_settled:
            return ""
        base, command, then = self.other, self.settings.rebuild_command, self._settings_then
        edited = edited_around(self.config, base.root, then, self._differing)
        check_rules(self.config, self.settings, base, then, self._differing, edited)
        if edited:
            launcher_of(self.config).forget_variables()
        check_known(base, (), [path for path in self._differing if path.endswith(".py")])
        if command and (problem := why_not_in_place(command)):
            raise BadInput(problem, where="kopt_rebuild_command")
        if self._builds:
            # The base's cases may import what it makes, which a fresh check-out lacks.
            self._unbuilt = self._builds.into_project()
            self._linked = Trees(self._held, base.root)
        if base.old and not self._unbuilt:
            self._then = take_inventory(self.config, self._orders, base, self._base_copy)
        return self._unbuilt

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        judging.check_some(ids, collector, "--kopt-base")
        files = {nodeid.partition("::")[0] for nodeid in (*ids, *self._then.order)}
        self._tests = {*map(self.other.in_tree, files)}
        self._check_base_imports(ids)
        self._check_same_ids(ids)

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        self.collector, self.measurements = collector, measurements
        self.interrupted = interrupted
        try:
            verdict, detail, results = self._judge()
        except NotComparable as error:
            raise BadInput(
                f"kopt cannot run the cases with the base's kernels: {error}",
                where=str(self.other),
                fix=error.fix or "keep renamed functions and modules under both names",
            ) from None
        verdict = verdict.saying(
            base=self.other.commit or self.other.name,
            outcome=gate_outcome(verdict),
            thresholds=self.policy.model_dump(mode="json"),
        )
        return Closing(with_details(verdict, results), detail)

    def no_idle_gpu(self, error: AllGpusBusy) -> None:
        """Record nothing: there is no campaign."""

    def release(self) -> None:
        """Give everything back; safe to repeat."""
        self._held.close()

    def _judge(self) -> tuple[Verdict, str, Sequence[CaseResult]]:
        """Judge what is missing, dishonest or wrong, then the times, where kernels changed.

        Returns the verdict, a candidate's stack, and the cases as they were judged.
        """
        if self.is_settled:
            return self._nothing(f"the same code as {self.other}"), "", ()
        observed = self._observed()
        checked = self.collector.in_order()
        if unfinished := by_ground(observed, self.policy):
            return unfinished, self._unbuilt, checked
        differing = self._differing
        touched, around = self._around(checked)
        kernels = [path for path in differing if not (self._is_of_tests(path) or path in around)]
        there = self._by_base(checked, touched)
        cases = changed_cases(checked, there, self._then.order, self.policy, other=bool(kernels))
        results = cases.judged
        found = [*judging.findings_of(results), *self._audit(results, kernels)]
        cheat = judging.dishonest(results, judging.rejecting(found), judging.COMPUTE)
        if cheat:
            return cheat.verdict(self.policy.name), "", results
        broken = self._broken_at_base(results)
        results = [result for result in results if result.nodeid not in broken]
        gone = removed(self.config, self._then, self._base_copy, self.collector, self.measurements)
        apart = {*cases.new, *cases.together}
        wrong, detail = _wrong_cases(results, cases.by_base), ""
        try:
            verdict = by_ground([wrong], self.policy)
            verdict = verdict or self._compared(results, kernels, around, apart)
        except Caught as caught:
            why = "the results are not the base's"
            refused = _refused(results, caught.findings, why, accuses=caught.accuses)
            verdict = refused.verdict(self.policy.name)
        except Died as death:
            how = str(death)
            told = judging.all_failed(results, {death.case: how}, "ERROR")
            detail = judging.head(how)
            verdict = _wrong(told, how.splitlines()[0]).verdict(self.policy.name)
        flags = [f"removed case: {nodeid}" for nodeid in gone]
        flags += [f"fails at the base in the same way: {nodeid}" for nodeid in broken]
        # The base's tests check with the base's file, and what is timed has today's.
        shared = "a kernel shares a changed file with what judges it"
        flags += [f"{shared}: {path}" for path in touched if path in kernels]
        # A case's own file is held against the base's by what the case declares.
        theirs = [path for path in touched if path not in self._tests and path not in kernels]
        if kernels and there and theirs:
            what = "what only the changed ones select is not timed"
            flags.append(f"the cases run with the base's {some(theirs)}: {what}")
        if cases.looser:
            less = f"the cases declare less than the base's: {'; '.join(cases.looser)}"
            verdict = verdict.saying(reason=f"{less}; {verdict.reason}")
        verdict = judging.flagged(verdict, [*flags, *cases.flags, *found])
        if not self.settings.allow_removed:
            verdict = without([*gone, *cases.together], cases.new, verdict)
        return verdict, detail, results

    def _observed(self) -> list[Observation]:
        """Return why not every case can be judged; BadInput for input that is refused.

        A kernel that does not build is wrong. So is a file of cases, of the base's or others, that
        does not import.
        """
        collector, failed = self.collector, dict[str, str]()
        if self._unbuilt:
            return [_wrong([], f"the kernel does not build: {self._unbuilt.splitlines()[0]}")]
        if not self.interrupted:
            failed = judging.not_imported(collector, self._then.order, self.config.rootpath)
            self._check_base_imports(failed)
            # A file that does not import tells of nothing that it opened.
            is_pointer = any("git-lfs" in error for error in failed.values())
            check_known(self.other, (), self._differing if is_pointer else ())
            self._check_known(collector.in_order())
        judging.refuse(collector.refusals())
        judging.fail_rows_of_failed_tests(collector)
        unfinished = [*judging.unfinished(collector, None, self.interrupted)]
        if not failed or (unfinished and collector.results):
            return unfinished
        return [_wrong(collector.in_order(), "; ".join(failed.values()))]

    def _by_base(
        self, results: Sequence[CaseResult], touched: Mapping[str, bytes | None]
    ) -> Collector | None:
        """Check today's kernels by the base's cases, where what decides there is `touched`."""
        ids = [result.nodeid for result in results if result.nodeid in self._then.order]
        if not (touched and ids):
            return None
        tree, doing = self._trees.tree(touched, copies_sources=True), "checking by the base's cases"
        (there,) = self.measurements.run_in([tree.copy], ids, doing)
        # Pytest runs none of the cases that are named where one of their files does not import.
        errors = there.collect_errors
        left = [nodeid for nodeid in ids if not judging.under(nodeid, errors)]
        if errors and left and not there.results:
            (there,) = self.measurements.run_in([tree.copy], left, doing)
            there.collect_errors |= errors
        return there

    def _broken_at_base(self, results: Sequence[CaseResult]) -> set[str]:
        """Return the cases that fail now, and fail in the same way with the base's files.

        BadInput where no other case fails: the change is not at fault, and nothing can be compared.
        """
        failed = [result for result in results if result.check != "PASS"]
        ids = [result.nodeid for result in failed if result.nodeid in self._then.order]
        if not ids or not self.other.old:
            return set()
        try:
            tree = self._trees.tree(self.other.old)
        except NotComparable:
            return set()
        (there,) = self.measurements.run_in([tree.copy], ids, "checking the base")
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
        """Raise BadInput where an id is another one in each process, as one that is drawn is."""
        then = self._then.order
        gone, new = (
            {nodeid.partition("[")[0] for nodeid in {*these} - {*others}}
            for these, others in ((then, ids), (ids, then))
        )
        if gone & new:
            # The same tests in another process: a change may have renamed cases as well.
            again = take_inventory(self.config, self._orders, self.other, self._base_copy)
            judging.check_same_ids(then, again.order, str(self.other))

    def _check_known(self, results: Sequence[CaseResult]) -> None:
        """Raise BadInput where it is not known what a file that the cases use was at the base.

        Files that tests alone read are as they are now for both versions.
        """
        opened = self.other.opened(results)
        used = {*map(self.other.in_tree, loaded_by(results)), *opened}
        ignored = self._ignored & used
        if self._git:
            ignored |= self._git.ignored(opened)
        if ignored:
            harness, _, read = harness_of(self.config, self.other, results)
            ignored -= harness | (opened.keys() - read)
        check_known(self.other, ignored, used)

    def _around(
        self, results: Sequence[CaseResult]
    ) -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
        """Return what differs of the files that decide, or are run around the cases, at the base.

        First all of them, then those that no kernel imports, which are so for times too.
        """
        differing, old = self._differing, self.other.old
        harness, needed, read = harness_of(self.config, self.other, results)
        touched = harness.intersection(differing) | {*filter(self._is_of_tests, differing)}
        touched |= edited_settings(self.config, self._settings_then, differing)
        is_kernels = {path for path in needed | read if not self._is_of_tests(path)}
        # A kernel that was split needs its new file, whether or not changed tests import that too.
        touched -= {path for path in is_kernels.intersection(touched) if old[path] is None}
        return (
            {path: old[path] for path in sorted(touched)},
            {path: old[path] for path in sorted(touched - is_kernels)},
        )

    @property
    def _base_copy(self) -> tuple[Path, Path]:
        """The project's root and a tree of the whole base, its tests included."""
        return self._linked.tree(self.other.old).copy

    @cached_property
    def _settings_then(self) -> Mapping[str, Any]:
        return settings_of(self.config, self._base_copy)

    def _audit(self, results: Sequence[CaseResult], kernels: Collection[str]) -> list[Finding]:
        loaded = {self.other.in_tree(file) for file in loaded_by(results)}
        paths = sorted(loaded.intersection(kernels))
        now = {path: (self.other.root / path).read_bytes() for path in paths}
        then = {path: self.other.old[path] or b"" for path in paths}
        return audit(now, then)

    def _compared(
        self,
        results: Sequence[CaseResult],
        kernels: Sequence[str],
        around: Mapping[str, bytes | None],
        apart: Collection[str],
    ) -> Verdict:
        """Compare the cases, except those `apart`, on both versions of the kernels."""
        if not kernels:
            same_code = any(not self._is_of_tests(path) for path in self.other.old) and not around
            why = (
                "the kernels are the same code as" if same_code else "no kernel code changed since"
            )
            return self._nothing(f"{why} {self.other}", judging.same_shapes(results))
        if not (self._builds or self.other.any_used(kernels, results)):
            return self._nothing(self._unreached(results, kernels), judging.same_shapes(results))
        both = [result for result in results if result.nodeid not in apart]
        interpreted = [result for result in both if result.evidence.interpreted]
        timed = [result for result in both if not result.evidence.interpreted]
        # A command that rebuilds kernels may read any of its files.
        is_open = bool(self._builds)
        reached = [c for c in interpreted if is_open or self.other.any_called(kernels, c)]
        same: dict[str, Same] = {c.nodeid: "source" for c in interpreted if c not in reached}
        paired = None
        if timed:
            paired = self._compare(timed, kernels, around)
            same |= paired.same
        rest = judging.shapes((r for r in results if r.nodeid in {*same, *apart}), same)
        decided: Verdict | None = None
        if paired and len(paired.same) < len(paired.results):
            verdict = self._with_nearby(paired)
            decided = verdict.saying(shapes=verdict.shapes + rest)
        elif rest:
            why = f"no case can be compared with {self.other}"
            if paired and paired.has_same_machine_code:
                why = f"the GPU does the same work as at {self.other}: the same machine code"
            elif both:
                why = self._unreached(results, kernels) + (" that is compared" if apart else "")
            decided = self._nothing(why, rest)
        untimed = judging.shapes(reached)
        return with_untimed(decided, untimed, self.policy, judging.INTERPRETED)

    def _unreached(self, results: Sequence[CaseResult], kernels: Sequence[str]) -> str:
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
            f"no case runs the files that differ: {some(kernels)}; the cases call "
            f"{judging.called_by(results)}",
            where=str(self.other),
            fix=fix,
        )

    def _is_of_tests(self, path: str) -> bool:
        """Say whether a path is one of the cases' files, or of the conftest files."""
        return path in self._tests or is_conftest(path)

    def _nothing(self, why: str, shapes: Sequence[Shape] = ()) -> Verdict:
        """Return the verdict on unchanged kernels."""
        same = unchanged(why, shapes, asks_gain=self.settings.gate == "improve")
        return same.verdict(self.policy.name)

    def _compare(
        self,
        cases: Sequence[CaseResult],
        kernels: Sequence[str],
        around: Mapping[str, bytes | None],
    ) -> PairedResult:
        """Compare the kernels of both versions, each with the base's files `around` them.

        Today's have a tree of their own where such files differ. NotComparable where the base's do
        not build.
        """
        old = {path: self.other.old[path] for path in kernels}
        own = self._trees.tree(around, copies_sources=True) if around else None
        versions = self._trees.having(old | {**around}, kernels, own)
        criteria = Criteria(
            [STEP],
            self.policy,
            NoiseHistory.here(self.settings.workspace, cases),
            gate=self.settings.gate,
            reached_only=True,
        )
        with self.measurements.compare(cases, versions) as comparison:
            return compare(comparison, cases, criteria)

    def _with_nearby(self, paired: PairedResult) -> Verdict:
        """Return the verdict with what to do, and what the versions did near the inputs."""
        verdict = paired.verdict
        if paired.refusing:
            reached = [result for result in paired.results if result.nodeid not in paired.same]
            why = "the other side is right where this one is not"
            verdict = _refused(reached, paired.refusing, why).verdict(self.policy.name)
        elif verdict.decision is not Decision.INCOMPLETE:
            verdict = verdict.saying(next_step=NEXT.get(verdict.decision, ""))
        return judging.flagged(verdict, paired.nearby)


def _wrong_cases(results: Sequence[CaseResult], by_base: Collection[str]) -> Observation | None:
    """Return that cases are wrong, None where there are none."""
    failed = [result for result in results if result.check != "PASS"]
    if not failed:
        return None
    first = in_a_line(failed[0].diagnosis)
    if not any(result.nodeid in by_base for result in failed):
        names = ", ".join(result.nodeid for result in failed[:3])
        kinds = "/".join(sorted({result.check for result in failed}))
        why = f"{len(failed)} of {len(results)} case(s) are {kinds}: {names}; the first: {first}"
        return _wrong(results, why)
    what = f"{len(failed)} case(s) are wrong by what the base's cases declare"
    step = "correct the kernel, or change what is right in a pull request of its own first"
    return _wrong(results, f"{what}: {failed[0].label}: {first}", step)


def _refused(
    results: Sequence[CaseResult], findings: Sequence[Finding], why: str, *, accuses: bool = False
) -> Observation:
    """Return that a version cheats, or else that it is wrong; `why` begins the reason then."""
    cheats = findings if accuses else judging.rejecting(findings)
    if cheat := judging.dishonest(results, cheats, judging.COMPUTE):
        return cheat
    failed = {finding.where: str(finding) for finding in findings}
    failing = judging.all_failed(results, failed, "FAIL")
    return _wrong(failing, f"{why}: {names_of(findings)}", findings=findings)


def _wrong(
    results: Sequence[CaseResult],
    reason: str,
    step: str = "correct what the reason names; nothing was compared",
    findings: Sequence[Finding] = (),
) -> Observation:
    evidence = {"shapes": judging.shapes(results), **judging.flags_of(findings)}
    return Observation(Ground.WRONG, reason, step, evidence)
