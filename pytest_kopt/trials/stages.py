"""The stages of a question about a campaign, each made once from the one before it.

`Asked`: what the session's options say. `OpenTrial`: it can be asked now, and nothing is changed.
`Begun`: the campaign is held and the candidate is built. `Ran`: pytest has run the cases.
`Gathered`: each of them has its row. `Judged`: a verdict, with what it rests on. The record then
lies in the campaign.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.cases.result import CaseResult, Check, Collector, ExpectedCase, loaded_by, names
from pytest_kopt.decide.grounds import Ground, Observation
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import KernelTime, Level, RaceCandidate, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import CHANGE
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.fingerprint import Fingerprint, edits
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.arms import Versions
from pytest_kopt.paired.pairing import PairedResult
from pytest_kopt.profiling.kernel_table import CaseProfile, gpu_step_us
from pytest_kopt.schema.metrics import geomean
from pytest_kopt.schema.table import Classes, Table
from pytest_kopt.trials import judging
from pytest_kopt.trials.harness import HarnessWatch
from pytest_kopt.trials.measurements import Measurements
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.trials.trees import Trees


@dataclass(frozen=True, slots=True)
class RaceEntrant:
    """A version to race; `size` is how many lines it changes."""

    name: str
    kernel: KernelVersion
    size: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a session to a campaign; `notes` are those given with `--kopt-notes`."""

    settings: Settings
    campaign: Campaign
    policy: Policy
    notes: Notes
    watch: HarnessWatch
    started: str

    def command(self, text: str) -> ProjectCommand:
        """Return a command of the manifest, to be run as this session runs them."""
        env, confined = self.campaign.manifest.env, self.settings.isolates
        return ProjectCommand(text, env, is_confined=confined)


@dataclass(frozen=True, slots=True)
class RacedCandidate:
    """A candidate after its race: what is told of it, its files, and the rows of its check."""

    record: RaceCandidate
    kernel: KernelVersion
    table: Table | None


@dataclass(frozen=True, slots=True)
class OpenTrial:
    """A question that can be asked of the campaign as it stands.

    `number` is the round, for a final comparison the best one. `frozen` are the baseline's cases by
    node id, all of which are checked. `skipped` is what the baseline left out, `selected` the
    target shapes of a baseline, `representative` the node ids of the quick level. `notes` are all
    of the round so far. `harness` is None where it is not watched. `same_as` is the round whose
    code the candidate has: nothing has to run then. `candidates` are those of a race, and `raced`
    how it went, the one that is judged first.
    """

    asked: Asked
    title: str
    number: int
    frozen: Mapping[str, ExpectedCase] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    representative: tuple[str, ...] = ()
    level: Level = "full"
    notes: Notes = field(default_factory=Notes)
    harness: Fingerprint | None = None
    same_as: int | None = None
    candidates: tuple[RaceEntrant, ...] = ()
    raced: tuple[RacedCandidate, ...] = ()

    @property
    def campaign(self) -> Campaign:
        return self.asked.campaign

    @property
    def classes(self) -> Classes:
        return Classes(tuple(self.campaign.manifest.classes), self.notes.target_class)

    @property
    def timed(self) -> Collection[str]:
        """The node ids of the cases that the level times."""
        return self.representative if self.level == "quick" else self.frozen.keys()

    @property
    def core(self) -> tuple[str, ...] | None:
        """The node ids of the core cases, which every level times; None where all are."""
        core = self.campaign.manifest.core_shapes
        if core == "all":
            return None
        return levels.select(core, names(self.frozen.values()), levels.CORE) or None


@dataclass(frozen=True, slots=True)
class Begun:
    """The campaign is held, what was cut off is done, and the candidate's files are known.

    `blocked` says which command of the manifest failed, if one did; `benchmark` is what its
    benchmark_command printed. `trees` are kept until the campaign is given back.
    """

    opened: OpenTrial
    kernel: KernelVersion
    trees: Trees
    blocked: str = ""
    benchmark: str = ""

    def beside(self, version: KernelVersion) -> Versions:
        """Return the trees in which a version can be measured next to the candidate's."""
        return self.trees.having({**dict.fromkeys(self.kernel.files), **version.sources})


@dataclass(frozen=True, slots=True)
class Ran:
    """The cases have run, unless `interrupted`; `measurements` are what can still be measured."""

    begun: Begun
    collector: Collector
    measurements: Measurements
    interrupted: str

    @property
    def opened(self) -> OpenTrial:
        return self.begun.opened

    @property
    def is_same(self) -> bool:
        """Whether the incumbent's code is judged, without running any."""
        return self.opened.same_as is not None and not self.begun.blocked


@dataclass(frozen=True, slots=True)
class Gathered:
    """The results of the cases in declaration order, and edits of the harness meanwhile.

    `level` is the one that decides.
    """

    ran: Ran
    results: tuple[CaseResult, ...]
    table: Table | None
    level: Level
    harness: Fingerprint | None = None
    edits: tuple[Finding, ...] = ()

    @property
    def opened(self) -> OpenTrial:
        return self.ran.opened

    @property
    def policy(self) -> Policy:
        """The session's, with the directions that the cases declare where it has none."""
        policy, directions = self.opened.asked.policy, dict[str, str]()
        for result in self.results:
            directions |= result.evidence.better or {}
        return policy.model_copy(update={"directions": directions | policy.directions})

    @property
    def failed_repairs(self) -> int:
        """How many repairs of the round have failed before, other versions than this one."""
        of_round = self.opened.campaign.state.rounds.get(self.opened.number)
        return (of_round.failed_checks(self.ran.begun.kernel.hashes) if of_round else 0) - 1

    def observed(self, ids: Iterable[str], step: str) -> Iterator[Observation | None]:
        """Yield what kept these cases from being judged; `step` puts an edited harness back."""
        yield from judging.unfinished(self.ran.collector, ids, self.ran.interrupted)
        yield judging.dishonest(self.results, self.edits, step, Ground.EDITED)

    @property
    def rows(self) -> Table:
        assert self.table is not None
        return self.table

    def of_level(self) -> Gathered:
        """Return the same without cases that were only checked, unless they failed."""
        if self.level == "full":
            return self
        collector, timed = self.ran.collector, self.opened.timed
        # A row without times stands in no table, unless it is why the version is refused.
        collector.results = {
            name: result
            for name, result in collector.results.items()
            if name in timed or result.check != "PASS"
        }
        return replace(self, results=tuple(collector.in_order()), table=collector.table())

    def with_failure(self, nodeid: str, check: Check, how: str) -> Gathered:
        collector = self.ran.collector
        collector.results[nodeid] = judging.failed(collector.results[nodeid], check, how)
        return replace(self, results=tuple(collector.in_order()), table=collector.table())


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, with what it rests on."""

    gathered: Gathered
    verdict: Verdict
    paired: PairedResult | None = None
    detail: str = ""
    profiles: tuple[CaseProfile, ...] = ()

    @property
    def candidates(self) -> list[RaceCandidate]:
        """The candidates of a race, the first with what the round says of it."""
        candidates = [raced.record for raced in self.gathered.opened.raced]
        if not candidates:
            return []
        total = self.verdict.aggregate
        interval = {} if total is None else total.model_dump(include={*CHANGE})
        update = {**interval, "decision": self.verdict.decision, "reason": self.verdict.reason}
        return [candidates[0].model_copy(update=update), *candidates[1:]]

    @property
    def nearby(self) -> tuple[Finding, ...]:
        return self.paired.nearby if self.paired else ()

    def of(self, verdict: Verdict) -> Judged:
        return replace(self, verdict=verdict)

    def saying(self, **update: Any) -> Judged:
        return self.of(self.verdict.saying(**update))

    def profiled(self, profiles: Sequence[CaseProfile]) -> Judged:
        """Return the same with the profiles, and in the verdict a step's GPU time by them."""
        judged, times = replace(self, profiles=tuple(profiles)), gpu_step_us(profiles).values()
        if not times:
            return judged
        on_gpu = (profile.hottest for profile in profiles if profile.on == "gpu")
        hottest = next(row.kernel for row in on_gpu if row)
        timed = KernelTime(hottest=hottest, candidate_us=geomean(times))
        flag = (
            f"GPU kernel time: {timed.candidate_us:.2f} us a step, geometric mean over the cases; "
            "it is shown only, the comparison decides"
        )
        return judged.saying(kernel_time=timed).flagged(flag)

    def flagged(self, *findings: Finding | str) -> Judged:
        return self.of(judging.flagged(self.verdict, findings))

    def saying_why_blocked(self) -> Judged:
        """Return the same with the command that failed in front of the reason, where one did."""
        blocked = self.gathered.ran.begun.blocked
        if not blocked:
            return self
        return self.saying(reason=f"{blocked.splitlines()[0]}; {self.verdict.reason}")


def frozen_cases(campaign: Campaign) -> dict[str, ExpectedCase]:
    """Return the case set that the baseline froze, by node id.

    BadInput for core_shapes that name no case, or were edited after a round was judged by them.
    """
    frozen = campaign.expected_cases()
    rounds = campaign.state.rounds.values()
    judged_by = [
        of_round.number for of_round in rounds if of_round.attempts and of_round.number > 1
    ]
    core, recorded = campaign.manifest.core_shapes, campaign.recorded_manifest()
    recorded = recorded.get(levels.CORE, core)
    levels.check_unchanged(core, recorded, min(judged_by, default=None), levels.CORE)
    if core != "all":
        levels.select(core, names(frozen.values()), levels.CORE)
    return frozen


def gather(ran: Ran) -> Gathered:
    """Return what the cases and the harness came to, as kernel code has run; BadInput for drift."""
    opened, collector = ran.opened, ran.collector
    judging.refuse(collector.refusals())
    add_error_rows(collector, opened.frozen)
    judging.fail_rows_of_failed_tests(collector)
    results, table = tuple(collector.in_order()), collector.table()
    _check_imported(opened.campaign, results)
    if opened.harness is None:
        return Gathered(ran, results, table, opened.level)
    watch, ids = opened.asked.watch, list(opened.frozen) or collector.order
    now = watch.take(ids)
    # What the baseline's cases have loaded belongs to the harness that it freezes.
    harness = watch.take(ids, results)
    return Gathered(ran, results, table, opened.level, harness, tuple(edits(opened.harness, now)))


def _check_imported(campaign: Campaign, results: Sequence[CaseResult]) -> None:
    """Raise BadInput where no case imports the kernel: the tests import another copy of it."""
    manifest, files = campaign.manifest, campaign.candidate().files
    # What is built is imported by another name.
    if manifest.rebuild_command:
        return
    passed = [result for result in results if result.check == "PASS"]
    loaded, is_python = loaded_by(passed), all(path.endswith(".py") for path in files)
    # Where a kernel is a link, a case imports what that leads to.
    homes = {os.path.realpath(campaign.root / path) for path in files}
    imported = {os.path.realpath(campaign.root / path) for path in loaded}
    if is_python and loaded and homes.isdisjoint(imported):
        raise BadInput(
            f"no case imports {min(files)}; the cases call {judging.called_by(passed)}",
            where="kernel_source",
            fix="have the tests import the kernel of this tree (pip install -e . here, or pytest's "
            "setting pythonpath), or correct kernel_source in manifest.yaml",
        )


def add_error_rows(collector: Collector, expected: Mapping[str, ExpectedCase]) -> None:
    """Give the baseline's cases that could not speak their ERROR rows: dead or not imported."""
    for nodeid, case in expected.items():
        if nodeid in collector.results:
            continue
        error = collector.dead.get(nodeid) or judging.under(nodeid, collector.collect_errors)
        error = error or collector.startup_death or collector.failures.get(nodeid)
        if error:
            collector.results[nodeid] = CaseResult.failed(nodeid, case, error)
    collector.collected(list(expected))
