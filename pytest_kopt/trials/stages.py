"""A question about a campaign: as it is asked, as it can be asked now, and as its cases ran."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.cases.result import CaseResult, Check, Collector, ExpectedCase, loaded_by, names
from pytest_kopt.decide.grounds import Ground, Observation
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Level, RaceCandidate
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.fingerprint import Fingerprint, edits
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.arms import Versions
from pytest_kopt.schema.table import Classes, Table
from pytest_kopt.trials import judging
from pytest_kopt.trials.harness import HarnessWatch
from pytest_kopt.trials.measurements import Measurements
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.trials.trees import Trees


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


@dataclass(slots=True)
class OpenTrial:
    """A question that can be asked of the campaign as it stands.

    `number` is the round, for a final comparison the best one. `harness` is that of the tests
    before anything runs. `frozen` are the baseline's cases by node id, all of which are checked,
    `representative` the node ids of the quick level. `notes` are all of the round so far.
    `same_as` is the round whose code the candidate has: nothing has to run then.
    """

    asked: Asked
    title: str
    number: int
    harness: Fingerprint
    frozen: Mapping[str, ExpectedCase] = field(default_factory=dict)
    representative: tuple[str, ...] = ()
    level: Level = "full"
    notes: Notes = field(default_factory=Notes)
    same_as: int | None = None

    @property
    def campaign(self) -> Campaign:
        return self.asked.campaign

    @property
    def selected(self) -> tuple[str, ...]:
        """The target shapes that a baseline is limited to; none for all."""
        shapes = self.campaign.manifest.target_shapes
        return () if self.frozen or shapes == "all" else tuple(shapes)

    @property
    def classes(self) -> Classes:
        return Classes(tuple(self.campaign.manifest.classes), self.notes.target_class)

    @property
    def untimed(self) -> tuple[str, ...]:
        """The node ids of the cases that are only checked."""
        if self.level == "full":
            return ()
        return tuple(name for name in self.frozen if name not in self.representative)

    @property
    def core(self) -> tuple[str, ...] | None:
        """The node ids of the core cases, which every level times; None where all are."""
        core = self.campaign.manifest.core_shapes
        if core == "all":
            return None
        return levels.select(core, names(self.frozen.values()), levels.CORE) or None


@dataclass(slots=True)
class Racer:
    """A candidate of a race: its files, what its check came to, and what is told of it."""

    kernel: KernelVersion
    collector: Collector
    record: RaceCandidate

    @property
    def name(self) -> str:
        return self.record.name

    def say(self, **update: Any) -> None:
        self.record = self.record.model_copy(update=update)


@dataclass(slots=True)
class Ran:
    """The cases have run, unless `interrupted`, with the files of the version that is judged.

    `blocked` says which command of the manifest failed, if one did; `benchmark` is what its
    benchmark_command printed. `level` is the one that decides. `gather` adds the `harness` as it is
    recorded, and its `edits` meanwhile. `raced` are the candidates of a race, the judged one first.
    """

    opened: OpenTrial
    kernel: KernelVersion
    trees: Trees
    blocked: str
    benchmark: str
    collector: Collector
    measurements: Measurements
    interrupted: str
    level: Level
    harness: Fingerprint
    edits: Sequence[Finding] = ()
    raced: Sequence[Racer] = ()

    @property
    def results(self) -> list[CaseResult]:
        """The results of the cases in declaration order."""
        return self.collector.in_order()

    @property
    def table(self) -> Table | None:
        return self.collector.table()

    @property
    def rows(self) -> Table:
        table = self.table
        assert table is not None
        return table

    @property
    def is_same(self) -> bool:
        """Whether the incumbent's code is judged, without running any."""
        return self.opened.same_as is not None and not self.blocked

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
        return (of_round.failed_checks(self.kernel.hashes) if of_round else 0) - 1

    def versions(self, opponent: KernelVersion) -> Versions:
        """Return the trees in which another version can be measured next to this one."""
        return self.trees.having({**dict.fromkeys(self.kernel.files), **opponent.sources})

    def observed(self, ids: Iterable[str], step: str) -> Iterator[Observation | None]:
        """Yield what kept these cases from being judged; `step` puts an edited harness back."""
        yield from judging.unfinished(self.collector, ids, self.interrupted)
        yield judging.dishonest(self.results, self.edits, step, Ground.EDITED)

    def leave_out_untimed(self) -> None:
        """Drop the rows of cases that were only checked, unless they failed.

        A row without times stands in no table, unless it is why the version is refused.
        """
        if self.level == "quick":
            untimed = self.opened.untimed
            self.collector.results = {
                name: result
                for name, result in self.collector.results.items()
                if name not in untimed or result.check != "PASS"
            }

    def fail(self, nodeid: str, check: Check, how: str) -> None:
        # A raced candidate keeps the rows that it had before its round was judged.
        results = self.collector.results
        failed = judging.failed(results[nodeid], check, how)
        self.collector.results = {**results, nodeid: failed}


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


def gather(ran: Ran) -> None:
    """Give each case its row, and take the harness, as kernel code has run; BadInput for drift."""
    opened, collector = ran.opened, ran.collector
    judging.refuse(collector.refusals())
    add_error_rows(collector, opened.frozen)
    judging.fail_rows_of_failed_tests(collector)
    # Two cases of one row are refused before anything is judged.
    collector.table()
    _check_imported(opened.campaign, ran.results)
    watch, ids = opened.asked.watch, list(opened.frozen) or collector.order
    ran.edits = tuple(edits(opened.harness, watch.take(ids)))
    # What the baseline's cases have loaded belongs to the harness that it freezes.
    ran.harness = watch.take(ids, ran.results)


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
