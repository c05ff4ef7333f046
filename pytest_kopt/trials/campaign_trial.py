"""The steps that trials of a campaign (baseline, round, race, final) have in common."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_kopt.campaign import tips
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
from pytest_kopt.cases.order import Depth, Purpose, WorkerOrders
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.clock import now
from pytest_kopt.decide.grounds import incomplete
from pytest_kopt.decide.verdict import KernelTime, RaceCandidate, Verdict
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.devices.machine import this_machine
from pytest_kopt.devices.vendor import choose
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import CHANGE, in_unit
from pytest_kopt.paired.pairing import PairedResult
from pytest_kopt.profiling.kernel_table import CaseProfile, gpu_step_us
from pytest_kopt.schema.metrics import geomean, is_backward
from pytest_kopt.schema.table import Classes, Row
from pytest_kopt.show import standing
from pytest_kopt.show.files import projections
from pytest_kopt.show.rooflines import write_profiles
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.measurements import Measurements
from pytest_kopt.trials.stages import Asked, OpenTrial, Racer, Ran
from pytest_kopt.trials.trees import Builds, Trees


def carry_out(campaign: Campaign, *, apply: bool = True) -> None:
    """Do what was decided, also by an earlier session that was cut off at it.

    The decision is the one that the ledger holds and that was not carried out, `state.pending`.
    """
    commits = apply and campaign.pending_step()[0] == "commit"
    campaign.settle(apply=apply, log=projections.performance(campaign) if commits else ())
    projections.refresh(campaign)


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

    #: How far the session's cases are gone into.
    depth = Depth.TIMES
    #: Whether the manifest's benchmark_command runs.
    runs_benchmark = True

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._opened = self.open()
        #: What `begin` adds to it: the version, the trees, and what the commands came to.
        self._begun: tuple[KernelVersion, Trees, str, str] | None = None
        self._held = contextlib.ExitStack()
        self._is_held = False

    @property
    def campaign(self) -> Campaign:
        return self.asked.campaign

    def open(self) -> OpenTrial:
        """Return the trial as it can be run now; BadInput or KernelError where it cannot."""
        raise NotImplementedError

    def prepare(self, held: contextlib.ExitStack) -> None:
        """Do what has to be done to the campaign, once it is held, before anything is measured."""

    def collected(self, opened: OpenTrial, ids: Sequence[str], collector: Collector) -> None:
        """Check the collection, of the cases that this trial expects."""

    def conclude(self, ran: Ran) -> Closing:
        """Gather, judge, record and carry out; raises BadInput for drifted input."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """The subject of the trial, for the header line."""
        return self._opened.title

    @property
    def preface(self) -> Sequence[str]:
        """Lines below the header: what is to be read before anything runs."""
        return ()

    @property
    def is_settled(self) -> bool:
        """Whether the verdict is known without running anything: both versions are the same."""
        return self._opened.same_as is not None

    @property
    def running_file(self) -> Path | None:
        """The file that says how far the session is."""
        return self.campaign.layout.running

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that every process which runs kernel code gets."""
        return self.campaign.manifest.env

    def orders(self, session: WorkerOrders) -> WorkerOrders:
        """Return the orders of the workers; nothing is expected before the baseline."""
        opened, target = self._opened, self.campaign.manifest.target_gpu
        device = session.device
        if target == "cpu":
            device = choose(self.asked.settings.device, target=target)
        is_compared = bool(opened.frozen) and self.asked.settings.compare != "stored"
        return replace(
            session,
            device=device,
            engine=engine_of(opened),
            depth=self.depth,
            purpose=Purpose.COMPARISON if is_compared else Purpose.VERDICT,
            classes=opened.classes.columns,
            expected=tuple(opened.frozen.values()) or None,
            target=target,
            language=self.campaign.manifest.target_lang,
            operating_point=self.campaign.manifest.operating_point,
            metric=None if opened.frozen else self.campaign.manifest.primary_metric,
            # What the baseline skipped is no part of the case set.
            ignored=tuple(self.campaign.skipped_at_baseline()) if opened.frozen else (),
            untimed=opened.untimed,
            selected=opened.selected,
        )

    def begin(self) -> str:
        """Hold the campaign, finish what was cut off, and take down the candidate's version."""
        campaign = self.campaign
        self._hold()
        try:
            carry_out(campaign, apply=self.asked.settings.apply)
            self._opened = self.open()
            self.prepare(self._held)
            manifest, root = campaign.manifest, campaign.root.resolve()
            command, folder = manifest.rebuild_command, campaign.layout.builds
            builds = Builds(root, self.asked.command(command), folder) if command else None
            blocked, benchmark = _run_commands(self.asked, builds, self.runs_benchmark)
            kernel, state = campaign.candidate(), campaign.state
            if builds:
                measured = (campaign.first, campaign.best) if state.baseline else ()
                builds.keep(kernel, [attempt.kernel() for attempt in measured])
            trees = Trees(self._held, root, builds, folder)
            self._begun = kernel, trees, blocked, benchmark
        except BaseException:
            self.release()
            raise
        return blocked

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Raise BadInput for cases that are not the baseline's; fewer are for the decision."""
        _check_cases(self._opened, ids, collector, filtered)
        self.collected(self._opened, ids, collector)

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge, record and carry out; raises BadInput, with nothing changed, for drifted input."""
        opened, begun = self._opened, self._begun
        assert begun is not None
        session = collector, measurements, interrupted
        return self.conclude(Ran(opened, *begun, *session, opened.level, opened.harness))

    def no_idle_gpu(self, error: AllGpusBusy) -> None:
        """Record it; nothing where another session holds the campaign."""
        campaign, is_final = self.campaign, self.asked.settings.round == "final"
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


def engine_of(opened: OpenTrial) -> str:
    """Return the option's engine, else the manifest's; BadInput where the baseline had another."""
    option = opened.asked.settings.engine
    frozen = {name for case in opened.frozen.values() for name in case.engine.split("+") if name}
    if option != "auto" and frozen and option not in frozen:
        raise BadInput(
            f"{option}, but the baseline was timed by {', '.join(sorted(frozen))}",
            where="--kopt-engine",
            fix="remove --kopt-engine; a new campaign with engine in its manifest has another",
        )
    return opened.campaign.manifest.engine if option == "auto" else option


def _check_cases(
    opened: OpenTrial, ids: Sequence[str], collector: Collector, filtered: bool
) -> None:
    where = f"campaign {opened.campaign.name}"
    selects = "; the manifest's key 'tests' or paths select them"
    judging.check_some(ids, collector, where, selects)
    if not opened.frozen:
        return
    fix = "restore the cases of the baseline, or kopt init NEW --from OLD"
    foreign = [nodeid for nodeid in ids if nodeid not in opened.frozen]
    gone = [
        nodeid
        for nodeid in opened.frozen
        if nodeid not in ids and not judging.under(nodeid, collector.collect_errors)
    ]
    if foreign or (gone and not filtered):
        how = [f"{i} is not in the baseline" for i in foreign]
        how += [f"{i} of the baseline is gone" for i in gone]
        raise BadInput(f"the case set changed: {how[0]}", where=where, fix=fix)


def _run_commands(asked: Asked, builds: Builds | None, runs_benchmark: bool) -> tuple[str, str]:
    """Format, rebuild, test and benchmark, as far as the manifest says; stop at a failure.

    Returns why nothing can be measured, if so, and what the benchmark printed. Raises BadInput for
    a command that writes to the ledger, which lies in the tree that it may write to.
    """
    manifest, printed = asked.campaign.manifest, ""
    ledger = asked.campaign.layout.ledger
    records = ledger.read_bytes() if ledger.exists() else b""
    benchmark = manifest.benchmark_command if runs_benchmark else None
    before = (manifest.format_command, manifest.rebuild_command, manifest.test_command)
    for command in filter(None, (*before, benchmark)):
        if command == manifest.rebuild_command and builds:
            failure, output = builds.into_project(), ""
        else:
            failure, output = asked.command(command).run(asked.campaign.root)
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


def open_round(asked: Asked) -> tuple[int, str, Notes]:
    """Return the round's number, title and notes; BadInput where the campaign is not ready."""
    settings, campaign = asked.settings, asked.campaign
    assert settings.round is not None and settings.round != "final"
    number = campaign.state.check_round(settings.round)
    of_round = campaign.state.rounds.get(number, Round(number))
    tips.check(asked.notes, of_round, str(settings.notes))
    stops.refuse_another_round(
        stops.check(campaign.name, campaign.state, campaign.manifest, asked.policy)
    )
    campaign.check_ready()
    title = f"campaign {campaign.name}, round {number}, policy {asked.policy.name}"
    return number, title, of_round.notes.plus(asked.notes)


def check_target_class(classes: Classes, rows: Sequence[Row]) -> None:
    classes.target_among(classes.group({row.key: row.dims for row in rows}))


def record_round(
    ran: Ran, verdict: Verdict, paired: PairedResult | None = None, detail: str = ""
) -> Closing:
    """Record the attempt, carry its verdict out, and return what the terminal shows.

    `detail` is the stack of a case that ended its process.
    """
    opened, asked, campaign = ran.opened, ran.opened.asked, ran.opened.campaign
    profiles = _profiles(ran, verdict)
    results, table = ran.results, ran.table
    is_kept_as_same = ran.is_same and verdict.decision.keeps
    change = paired.change() if paired else _no_change(results) if is_kept_as_same else None
    is_full = ran.level == "full"
    baseline = None if is_full or not table else campaign.first.table().only(table.by_key())
    verdict = saying_why_blocked(ran, _with_kernel_time(verdict, profiles))
    if not campaign.candidate().same_content(ran.kernel):
        changed = "the kernel files changed while they were measured"
        verdict = incomplete(asked.policy, changed)
    lines = rooflines(results, asked.settings.workspace)
    over = [line.over_declared for line in lines if line.over_declared]
    verdict = judging.flagged(verdict, over).saying(
        rooflines=lines, level=ran.level, thresholds=asked.policy.model_dump(mode="json")
    )
    verdict = verdict.saying(candidates=_candidates(ran.raced, verdict))
    attempt = record_attempt(
        campaign,
        opened.number,
        started=asked.started,
        evidence=evidence(ran, paired, harness=asdict(ran.harness)),
        verdict=with_details(verdict, results, opened.number),
        trend=trend.figures(table) if table else None,
        paired=change,
        baseline=trend.figures(baseline) if baseline else None,
        notes=asked.notes,
        policy=asked.policy,
    )
    if profiles:
        write_profiles(campaign.layout, opened.number, attempt.number, profiles)
    carry_out(campaign, apply=asked.settings.apply)
    final = campaign.state.rounds[opened.number].last.verdict()
    assert final.attempt == attempt.number
    outlook = tuple(standing.closing_lines(campaign, asked.policy))
    return Closing(final, detail or ran.blocked, tuple(profiles), outlook)


def _no_change(results: Sequence[CaseResult]) -> PairedChange:
    cells = [cell for result in results for cell in result.cells.items()]
    backward = any(is_backward(name) and value is not None for name, value in cells)
    return PairedChange(step_pct=0.0, forward_pct=0.0, backward_pct=0.0 if backward else None)


def _profiles(ran: Ran, verdict: Verdict) -> Sequence[CaseProfile]:
    """Profile a decided round where an option or the policy asks for it, unless nothing ran."""
    ids, is_asked = ran.collector.passed(), ran.opened.asked.settings.profile
    # performance.md has a column for a GPU's kernels, and a CPU has none.
    logged = ran.opened.asked.policy.performance_log and not judging.on_cpu(ran.results)
    if not (is_asked or logged) or ran.is_same or verdict.decision.leaves_open or not ids:
        return ()
    return ran.measurements.profile(ids, vendor=is_asked)


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


def saying_why_blocked(ran: Ran, verdict: Verdict) -> Verdict:
    """Return the verdict with the command that failed in front of the reason, where one did."""
    if not ran.blocked:
        return verdict
    return verdict.saying(reason=f"{ran.blocked.splitlines()[0]}; {verdict.reason}")


def _candidates(raced: Sequence[Racer], verdict: Verdict) -> list[RaceCandidate]:
    """Return the candidates of a race, the first with what the round says of it."""
    candidates = [racer.record for racer in raced]
    total = verdict.aggregate
    interval = {} if total is None else total.model_dump(include={*CHANGE})
    update = {**interval, "decision": verdict.decision, "reason": verdict.reason}
    return [*(first.model_copy(update=update) for first in candidates[:1]), *candidates[1:]]


def evidence(ran: Ran, paired: PairedResult | None, **facts: Any) -> Evidence:
    """Return what was measured as it is kept; `facts` go into the session's, behind the others."""
    asked, collector = ran.opened.asked, ran.collector
    session = {
        "started": asked.started,
        "ended": now(),
        "policy": asked.policy.model_dump(mode="json"),
        **this_machine(),
        "python": platform.python_version(),
        "pytest_kopt": version("pytest-kopt"),
        "skipped": sorted(collector.skipped),
        "lost": collector.lost,
        "collect_errors": collector.collect_errors,
        "dead": collector.dead,
        "comparison": paired.session if paired else {},
        "held_out": [asdict(shape) for shape in paired.tried] if paired else [],
        "timeline": [asdict(span) for span in ran.measurements.progress.timeline],
        **facts,
    }
    return Evidence(
        kernel=ran.kernel,
        results=tuple(ran.results),
        table=ran.table,
        session=session,
        pairs_csv=paired.pairs_csv if paired else "",
        benchmark_log=ran.benchmark,
        candidates=[(racer.kernel, racer.collector.table()) for racer in ran.raced],
    )
