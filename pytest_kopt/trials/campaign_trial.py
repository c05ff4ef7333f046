"""The steps that trials of a campaign (baseline, round, race, final) have in common."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from pytest_kopt.campaign import levels, tips
from pytest_kopt.campaign.attempt import Evidence
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops, trend
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.campaign.ledger import PairedChange
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.recording import record_attempt, record_no_idle_gpu
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.case_rooflines import rooflines
from pytest_kopt.cases.details import with_details
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.result import CaseResult, Check, Collector, ExpectedCase, loaded_by, names
from pytest_kopt.clock import now
from pytest_kopt.decide.grounds import Ground, Observation, incomplete
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import KernelTime, Level, RaceCandidate, Verdict
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.devices.machine import this_machine
from pytest_kopt.devices.vendor import CPU, choose
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import CHANGE, in_unit
from pytest_kopt.honesty.fingerprint import Fingerprint, edits
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.arms import Versions
from pytest_kopt.paired.pairing import PairedResult
from pytest_kopt.profiling.kernel_table import CaseProfile, gpu_step_us
from pytest_kopt.schema.metrics import geomean, is_backward
from pytest_kopt.schema.table import Classes, Table
from pytest_kopt.show import standing
from pytest_kopt.show.files import projections
from pytest_kopt.show.rooflines import write_profiles
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.harness import HarnessWatch
from pytest_kopt.trials.measurements import Measurements
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.trials.trees import Builds, Trees


def carry_out(campaign: Campaign, *, apply: bool = True) -> None:
    """Do what was decided, also by an earlier session that was cut off at it.

    The decision is the one that the ledger holds and that was not carried out, `state.pending`.
    """
    commits = apply and campaign.pending_step()[0] == "commit"
    campaign.settle(apply=apply, log=projections.performance(campaign) if commits else ())
    projections.refresh(campaign)


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


class CampaignTrial:
    """Made while pytest is configured, begun when the session starts, closed when all cases ran.

    `session/assemble.py` makes it, and the controller calls the methods that no kind overrides.
    These call the ones that the kinds do, one file each:

    - `open`, when it is made, and in `begin` once more: another session may have changed the
      campaign until it is held
    - `prepare`, in `begin` before anything is measured
    - `collected`, once pytest has collected
    - `conclude`, in `close` after them
    """

    #: Whether the session's cases are checked and none is timed.
    only_checks = False
    #: Lines below the header: what is to be read before anything runs.
    preface: Sequence[str] = ()
    #: Whether the manifest's benchmark_command runs.
    runs_benchmark = True
    #: That of the tests before anything runs.
    harness: Fingerprint

    def __init__(
        self,
        settings: Settings,
        campaign: Campaign,
        policy: Policy,
        notes: Notes,
        watch: HarnessWatch,
    ) -> None:
        self.settings, self.campaign, self.policy, self.watch = settings, campaign, policy, watch
        #: Those given with `--kopt-notes`, and all of the round so far.
        self.notes, self.round_notes = notes, Notes()
        #: Variables that every process which runs kernel code gets.
        self.environment = campaign.manifest.env
        #: The file that says how far the session is.
        self.running_file = campaign.layout.running
        self.started = now()
        #: The round, for a final comparison the best one; the subject, for the header line.
        self.number, self.title = 0, ""
        #: The baseline's cases by node id, all of which are checked; those of the quick level.
        self.frozen: Mapping[str, ExpectedCase] = {}
        self.representative: tuple[str, ...] = ()
        #: The level that decides.
        self.level: Level = "full"
        #: The round whose code the candidate has: nothing has to run then.
        self.same_as: int | None = None
        #: The candidates of a race, the judged one first.
        self.raced: Sequence[Racer] = ()
        self._held = contextlib.ExitStack()
        self._is_held = False
        self.open()

    def open(self) -> None:
        """Set what is asked as it can be run now; BadInput or KernelError where it cannot."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Do what has to be done to the campaign, once it is held, before anything is measured."""

    def collected(self, ids: Sequence[str], collector: Collector) -> None:
        """Check the collection, of the cases that this trial expects."""

    def conclude(self) -> Closing:
        """Gather, judge, record and carry out; raises BadInput for drifted input."""
        raise NotImplementedError

    @property
    def is_settled(self) -> bool:
        """Whether the verdict is known without running anything: both versions are the same."""
        return self.same_as is not None

    @property
    def selected(self) -> tuple[str, ...]:
        """The target shapes that a baseline is limited to; none for all."""
        shapes = self.campaign.manifest.target_shapes
        return () if self.frozen or shapes == "all" else tuple(shapes)

    @property
    def classes(self) -> Classes:
        return Classes(tuple(self.campaign.manifest.classes), self.round_notes.target_class)

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

    @property
    def results(self) -> list[CaseResult]:
        """The results of the cases in declaration order."""
        return self.collector.in_order()

    @property
    def rows(self) -> Table:
        table = self.collector.table()
        assert table is not None
        return table

    @property
    def is_same(self) -> bool:
        """Whether the incumbent's code is judged, without running any."""
        return self.is_settled and not self.blocked

    @property
    def policy_of_cases(self) -> Policy:
        """The session's, with the directions that the cases declare where it has none."""
        directions = dict[str, str]()
        for result in self.results:
            directions |= result.evidence.better or {}
        return self.policy.model_copy(update={"directions": directions | self.policy.directions})

    @property
    def failed_repairs(self) -> int:
        """How many repairs of the round have failed before, other versions than this one."""
        of_round = self.campaign.state.rounds.get(self.number)
        return (of_round.failed_checks(self.kernel.hashes) if of_round else 0) - 1

    def command(self, text: str) -> ProjectCommand:
        """Return a command of the manifest, to be run as this session runs them."""
        return ProjectCommand(text, self.campaign.manifest.env, is_confined=self.settings.isolates)

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
        untimed = self.untimed
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

    def orders(self, session: WorkerOrders) -> WorkerOrders:
        """Return the orders of the workers; nothing is expected before the baseline."""
        manifest, device = self.campaign.manifest, session.device
        if manifest.target_gpu == "cpu":
            device = choose(self.settings.device, target=manifest.target_gpu)
        return replace(
            session,
            device=device,
            engine=engine_of(self),
            only_checks=self.only_checks,
            decides=True,
            compares=bool(self.frozen) and self.settings.compare != "stored",
            classes=self.classes.columns,
            expected=tuple(self.frozen.values()) or None,
            target=manifest.target_gpu,
            language=manifest.target_lang,
            operating_point=manifest.operating_point,
            metric=None if self.frozen else manifest.primary_metric,
            # What the baseline skipped is no part of the case set.
            ignored=tuple(self.campaign.skipped_at_baseline()) if self.frozen else (),
            untimed=self.untimed,
            selected=self.selected,
        )

    def begin(self) -> str:
        """Hold the campaign, finish what was cut off, and take down the candidate's version.

        Returns which command of the manifest failed, and how, "" where none did.
        """
        campaign = self.campaign
        self._hold()
        try:
            carry_out(campaign, apply=self.settings.apply)
            self.open()
            self.prepare()
            manifest, root = campaign.manifest, campaign.root.resolve()
            command, folder = manifest.rebuild_command, campaign.layout.builds
            builds = Builds(root, self.command(command), folder) if command else None
            self.blocked, self.benchmark = _run_commands(self, builds)
            self.kernel, state = campaign.candidate(), campaign.state
            if builds:
                measured = (campaign.first, campaign.best) if state.baseline else ()
                builds.keep(self.kernel, [attempt.kernel() for attempt in measured])
            self.trees = Trees(self._held, root, builds, folder)
        except BaseException:
            self.release()
            raise
        return self.blocked

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Raise BadInput for cases that are not the baseline's; fewer are for the decision."""
        where = f"campaign {self.campaign.name}"
        selects = "; the manifest's key 'tests' or paths select them"
        judging.check_some(ids, collector, where, selects)
        foreign = [nodeid for nodeid in ids if self.frozen and nodeid not in self.frozen]
        gone = [
            nodeid
            for nodeid in self.frozen
            if nodeid not in ids and not judging.under(nodeid, collector.collect_errors)
        ]
        if foreign or (gone and not filtered):
            how = [f"{i} is not in the baseline" for i in foreign]
            how += [f"{i} of the baseline is gone" for i in gone]
            fix = "restore the cases of the baseline, or kopt init NEW --from OLD"
            raise BadInput(f"the case set changed: {how[0]}", where=where, fix=fix)
        self.collected(ids, collector)

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge, record and carry out; raises BadInput, with nothing changed, for drifted input."""
        self.collector, self.measurements = collector, measurements
        self.interrupted = interrupted
        return self.conclude()

    def gather(self) -> None:
        """Give each case its row, and take the harness: kernel code has run; BadInput for drift."""
        collector = self.collector
        judging.refuse(collector.refusals())
        add_error_rows(collector, self.frozen)
        judging.fail_rows_of_failed_tests(collector)
        # Two cases of one row are refused before anything is judged.
        collector.table()
        _check_imported(self.campaign, self.results)
        ids = list(self.frozen) or collector.order
        self.edits = tuple(edits(self.harness, self.watch.take(ids)))
        # What the baseline's cases have loaded belongs to the harness that it freezes.
        self.harness_to_record = self.watch.take(ids, self.results)

    def no_idle_gpu(self, error: AllGpusBusy) -> None:
        """Record it; nothing where another session holds the campaign."""
        campaign, is_final = self.campaign, self.settings.round == "final"
        with contextlib.suppress(BadInput):
            self._hold()
            record_no_idle_gpu(campaign, error, final=is_final)
            projections.refresh(campaign)

    def release(self) -> None:
        """Give everything back; safe to repeat."""
        self._held.close()
        self._is_held = False

    def _hold(self) -> None:
        if not self._is_held:
            self._held.enter_context(self.campaign.locked())
            self._is_held = True


def engine_of(trial: CampaignTrial) -> str:
    """Return the option's engine, else the manifest's; BadInput where the baseline had another."""
    option = trial.settings.engine
    frozen = {name for case in trial.frozen.values() for name in case.engine.split("+") if name}
    if option != "auto" and frozen and option not in frozen:
        raise BadInput(
            f"{option}, but the baseline was timed by {', '.join(sorted(frozen))}",
            where="--kopt-engine",
            fix="remove --kopt-engine; a new campaign with engine in its manifest has another",
        )
    return trial.campaign.manifest.engine if option == "auto" else option


def _run_commands(trial: CampaignTrial, builds: Builds | None) -> tuple[str, str]:
    """Format, rebuild, test and benchmark, as far as the manifest says; stop at a failure.

    Returns why nothing can be measured, if so, and what the benchmark printed. Raises BadInput for
    a command that writes to the ledger, which lies in the tree that it may write to.
    """
    manifest, printed = trial.campaign.manifest, ""
    ledger = trial.campaign.layout.ledger
    records = ledger.read_bytes() if ledger.exists() else b""
    benchmark = manifest.benchmark_command if trial.runs_benchmark else None
    before = (manifest.format_command, manifest.rebuild_command, manifest.test_command)
    for command in filter(None, (*before, benchmark)):
        if command == manifest.rebuild_command and builds:
            failure, output = builds.into_project(), ""
        else:
            failure, output = trial.command(command).run(trial.campaign.root)
        if records and not (ledger.is_file() and ledger.read_bytes() == records):
            ledger.write_bytes(records)
            raise BadInput(
                f"`{command}` changed the campaign's ledger; kopt restored it",
                where=str(ledger),
                fix="let the command write outside of the campaign's folder",
            )
        if failure:
            return failure, printed
        if command == manifest.benchmark_command:
            printed = output
    return "", printed


def open_round(trial: CampaignTrial) -> None:
    """Set the round's number, title and notes; BadInput where the campaign is not ready."""
    settings, campaign, policy = trial.settings, trial.campaign, trial.policy
    assert settings.round is not None and settings.round != "final"
    trial.number = campaign.state.check_round(settings.round)
    of_round = campaign.state.rounds.get(trial.number, Round(trial.number))
    tips.check(trial.notes, of_round, str(settings.notes))
    stops.refuse_another_round(
        stops.check(campaign.name, campaign.state, campaign.manifest, policy)
    )
    campaign.check_ready()
    trial.title = f"campaign {campaign.name}, round {trial.number}, policy {policy.name}"
    trial.round_notes = of_round.notes.plus(trial.notes)


def record_round(
    trial: CampaignTrial, verdict: Verdict, paired: PairedResult | None = None, detail: str = ""
) -> Closing:
    """Record the attempt, carry its verdict out, and return what the terminal shows.

    `detail` is the stack of a case that ended its process.
    """
    campaign, policy, number = trial.campaign, trial.policy, trial.number
    profiles = _profiles(trial, verdict)
    results, table = trial.results, trial.collector.table()
    is_kept_as_same = trial.is_same and verdict.decision.keeps
    change = paired.change() if paired else _no_change(results) if is_kept_as_same else None
    is_full = trial.level == "full"
    baseline = None if is_full or not table else campaign.first.table().only(table.by_key())
    verdict = saying_why_blocked(trial, _with_kernel_time(verdict, profiles))
    if not campaign.candidate().same_content(trial.kernel):
        changed = "the kernel files changed while they were measured"
        verdict = incomplete(policy, changed)
    lines = rooflines(results, trial.settings.workspace)
    over = [line.over_declared for line in lines if line.over_declared]
    verdict = judging.flagged(verdict, over).saying(
        rooflines=lines, level=trial.level, thresholds=policy.model_dump(mode="json")
    )
    for first in trial.raced[:1]:
        total = verdict.aggregate
        interval = {} if total is None else total.model_dump(include={*CHANGE})
        first.say(**verdict.model_dump(include={"decision", "reason"}), **interval)
    verdict = verdict.saying(candidates=[racer.record for racer in trial.raced])
    attempt = record_attempt(
        campaign,
        number,
        started=trial.started,
        evidence=evidence(trial, paired, harness=asdict(trial.harness_to_record)),
        verdict=with_details(verdict, results, number),
        trend=trend.figures(table) if table else None,
        paired=change,
        baseline=trend.figures(baseline) if baseline else None,
        notes=trial.notes,
        policy=policy,
    )
    if profiles:
        write_profiles(campaign.layout, number, attempt.number, profiles)
    carry_out(campaign, apply=trial.settings.apply)
    final = campaign.state.rounds[number].last.verdict()
    assert final.attempt == attempt.number
    outlook = tuple(standing.closing_lines(campaign, policy))
    return Closing(final, detail or trial.blocked, tuple(profiles), outlook)


def _no_change(results: Sequence[CaseResult]) -> PairedChange:
    cells = [cell for result in results for cell in result.cells.items()]
    backward = any(is_backward(name) and value is not None for name, value in cells)
    return PairedChange(step_pct=0.0, forward_pct=0.0, backward_pct=0.0 if backward else None)


def _profiles(trial: CampaignTrial, verdict: Verdict) -> Sequence[CaseProfile]:
    """Profile a decided round where an option or the policy asks for it, unless nothing ran."""
    ids, is_asked = trial.collector.passed(), trial.settings.profile
    # performance.md has a column for a GPU's kernels, and a CPU has none.
    on_cpu = any(result.evidence.device == CPU.uuid for result in trial.results)
    logged = trial.policy.performance_log and not on_cpu
    if not (is_asked or logged) or trial.is_same or verdict.decision.leaves_open or not ids:
        return ()
    return trial.measurements.profile(ids, vendor=is_asked)


def _with_kernel_time(verdict: Verdict, profiles: Sequence[CaseProfile]) -> Verdict:
    """Return the verdict with a step's GPU time by the profiles."""
    times = gpu_step_us(profiles).values()
    if not times:
        return verdict
    on_gpu = (profile.hottest for profile in profiles if profile.on == "gpu")
    hottest = next(row.kernel for row in on_gpu if row)
    timed = KernelTime(hottest=hottest, candidate_us=geomean(times))
    flag = (
        f"GPU kernel time: {in_unit(timed.candidate_us, 'us')} a step, geometric mean over the "
        "cases; it is shown only, the comparison decides"
    )
    return judging.flagged(verdict.saying(kernel_time=timed), [flag])


def saying_why_blocked(trial: CampaignTrial, verdict: Verdict) -> Verdict:
    """Return the verdict with the command that failed in front of the reason, where one did."""
    if not trial.blocked:
        return verdict
    return verdict.saying(reason=f"{trial.blocked.splitlines()[0]}; {verdict.reason}")


def evidence(trial: CampaignTrial, paired: PairedResult | None, **facts: Any) -> Evidence:
    """Return what was measured as it is kept; `facts` go into the session's, behind the others."""
    collector = trial.collector
    session = {
        "started": trial.started,
        "ended": now(),
        "policy": trial.policy.model_dump(mode="json"),
        **this_machine(),
        "python": platform.python_version(),
        "pytest_kopt": version("pytest-kopt"),
        "skipped": sorted(collector.skipped),
        "lost": collector.lost,
        "collect_errors": collector.collect_errors,
        "dead": collector.dead,
        "comparison": paired.session if paired else {},
        "held_out": [asdict(shape) for shape in paired.tried] if paired else [],
        "timeline": [asdict(span) for span in trial.measurements.progress.timeline],
        **facts,
    }
    return Evidence(
        kernel=trial.kernel,
        results=tuple(trial.results),
        table=collector.table(),
        session=session,
        pairs_csv=paired.pairs_csv if paired else "",
        benchmark_log=trial.benchmark,
        candidates=[(racer.kernel, racer.collector.table()) for racer in trial.raced],
    )


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
