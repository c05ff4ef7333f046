"""What every session on a campaign does around its judging: open, hold, compare, describe."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from pytest_kopt import policies
from pytest_kopt.campaign import commands, levels
from pytest_kopt.campaign.archive import Evidence
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.result import CaseResult, ExpectedCase
from pytest_kopt.clock import now
from pytest_kopt.decide.gates import metrics_verdict
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.devices.choice import choose
from pytest_kopt.devices.idle import NoIdleGpu
from pytest_kopt.devices.machine import this_machine
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.heldout import Tried
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.comparison import CandidateDied, NotComparable, Versions
from pytest_kopt.paired.noise import Known
from pytest_kopt.paired.pairing import PairedMetric, PairedResult, judge, nearby_findings
from pytest_kopt.paired.replica import Caught
from pytest_kopt.processes.worker_orders import WorkerOrders
from pytest_kopt.schema.classes import Classes
from pytest_kopt.schema.metrics import parse_primary
from pytest_kopt.schema.table import Table
from pytest_kopt.show import projections
from pytest_kopt.trials import judging
from pytest_kopt.trials.trees import overlays
from pytest_kopt.trials.trial import Measurements

#: Why a round is rejected in which kernel code, or somebody else, edited the harness.
EDITED_HARNESS = "the harness was edited while the kernel ran"
#: What follows when a candidate was caught.
CAUGHT_STEP = "the incumbent is back; only gains that a real step has are kept"


def carry_out(campaign: Campaign, settings: Settings) -> None:
    """Do what was decided, also by an earlier session that was cut off at it."""
    campaign.settle(apply=settings.apply, beside=projections.performance)
    projections.refresh(campaign)


class CampaignTrial:
    """A session on a campaign; a round and the final comparison differ in what they judge.

    Made while pytest is configured (reads and validates, changes nothing), begun when the session
    starts (locks, finishes what an earlier kill cut off), closed when all cases have run.
    """

    #: Whether the manifest's benchmark_command is run too.
    runs_benchmark = False
    #: Whether the verdict is known without running anything.
    is_settled = False

    def __init__(self, settings: Settings, campaign: Campaign) -> None:
        self._settings = settings
        self.campaign = campaign
        asked = settings.policy
        self.policy: Policy = policies.load(asked) if asked else campaign.policy()
        campaign.check_policy(self.policy, "--kopt-policy" if asked else "policy (manifest.yaml)")
        self.frozen: dict[str, ExpectedCase] = {}
        self.expected: dict[str, ExpectedCase] = {}
        self._ignored: tuple[str, ...] = ()
        self._trees: Versions | None = None
        self._paired: PairedResult | None = None
        self._detail = self._benchmark = ""
        self._nearby: list[Finding] = []
        self._tried: list[Tried] = []
        self._validate()
        self.started = now()
        self._stack = contextlib.ExitStack()
        self._is_held = False

    def _validate(self) -> None:
        """Raise BadInput when this session cannot run on the campaign as it stands now."""
        raise NotImplementedError

    def _freeze_cases(self) -> None:
        """Take over the case set that the baseline froze, all of it expected.

        BadInput for core_shapes that name no case, or were edited after a round was judged by them.
        """
        self.frozen = self.expected = self.campaign.expected_cases()
        self._ignored = tuple(self.campaign.skipped_at_baseline())
        rounds = self.campaign.state.rounds.values()
        judged_by = [item.number for item in rounds if item.attempts and item.number > 1]
        core, known = self.campaign.manifest.core_shapes, self.campaign.recorded_manifest()
        recorded = known.get(levels.CORE, core)
        levels.check_unchanged(core, recorded, min(judged_by, default=None), levels.CORE)
        self._core()

    @property
    def preface(self) -> Sequence[str]:
        return ()

    @property
    def environment(self) -> Mapping[str, str]:
        return self.campaign.manifest.env

    @property
    def wants_replicas(self) -> bool:
        """Whether closing will need a comparison in processes that can be started early."""
        return self._settings.compare != "stored" and not self.campaign.manifest.rebuild_command

    def orders(self, device: str, session_seed: int) -> WorkerOrders:
        """Return the orders of the workers; nothing is expected before the baseline."""
        target = self.campaign.manifest.target_gpu
        if target == "cpu":
            device = choose(self._settings.device, target=target)
        return replace(
            WorkerOrders.of(self._settings, device, session_seed),
            cases_only=True,
            classes=self._classes().columns,
            expected=tuple(self.frozen.values()) or None,
            target=target,
            language=self.campaign.manifest.target_lang,
            ignored=(*self._ignored, *(name for name in self.frozen if name not in self.expected)),
        )

    def begin(self) -> str:
        """Take the campaign, finish what was cut off, and take down the candidate's version.

        Returns why nothing can be measured when a command of the manifest failed, else "".

        Raises BadInput when the campaign is in use, moved on meanwhile, or its tree is not ready.
        """
        self._hold()
        try:
            carry_out(self.campaign, self._settings)
            self._validate()
            self._prepare()
            self._detail = self._blocked = self._run_commands()
            self._kernel = self.campaign.candidate()
        except BaseException:
            self.release()
            raise
        return self._blocked

    def no_idle_gpu(self, found: NoIdleGpu) -> None:
        """Record it; nothing where another session holds the campaign."""
        with contextlib.suppress(BadInput):
            self._hold()
            self.campaign.record_no_idle_gpu(
                found, final=self._settings.round == "final", policy=self.policy
            )
            projections.refresh(self.campaign)

    def _hold(self) -> None:
        if not self._is_held:
            self._stack.enter_context(self.campaign.locked())
            self._is_held = True

    def _prepare(self) -> None:
        """Do what the trial has to do to the campaign before it measures."""

    def release(self) -> None:
        """Give the campaign back; safe to repeat."""
        self._stack.close()
        self._is_held = False

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Raise BadInput when the collected cases are not the baseline's.

        A case may be missing when the user filtered the run or its file did not import: that is
        for the decision to say.
        """
        if not ids and not collector.collect_errors:
            raise BadInput(
                "no kopt case was collected",
                where=f"campaign {self.campaign.name}",
                legal="tests marked kopt; the manifest's key 'tests' or paths select them",
            )
        if not self.expected:
            return
        foreign = [nodeid for nodeid in ids if nodeid not in self.expected]
        if foreign:
            raise BadInput(
                f"the case set changed: {foreign[0]} is not in the baseline",
                where=f"campaign {self.campaign.name}",
                legal="the cases of the baseline; `kopt init --from` starts over with new ones",
            )
        gone = [
            nodeid
            for nodeid in self.expected
            if nodeid not in ids and not judging.under(nodeid, collector.collect_errors)
        ]
        if gone and not filtered:
            raise BadInput(
                f"the case set changed: {gone[0]} of the baseline is gone",
                where=f"campaign {self.campaign.name}",
                legal="the cases of the baseline; `kopt init --from` starts over with new ones",
            )

    def _complete_rows(self, collector: Collector) -> None:
        """Give everything that can speak its row; BadInput for drifted input."""
        if collector.refusals:
            shown, more = collector.refusals[:3], len(collector.refusals) - 3
            raise BadInput("; ".join([*shown, f"and {more} more"] if more > 0 else shown))
        self._add_error_rows(collector)
        judging.fail_rows_of_failed_tests(collector)

    def _said_why_blocked(self, verdict: Verdict) -> Verdict:
        """Put the command that failed in front of the reason, where one did."""
        if not self._blocked:
            return verdict
        reason = f"{self._blocked.splitlines()[0]}; {verdict.reason}"
        return verdict.model_copy(update={"reason": reason})

    def _add_error_rows(self, collector: Collector) -> None:
        """Give the baseline's cases that could not speak their ERROR rows: dead or not imported."""
        for nodeid, case in self.expected.items():
            if nodeid in collector.results:
                continue
            error = collector.dead.get(nodeid) or judging.under(nodeid, collector.collect_errors)
            error = error or collector.startup_death or collector.failures.get(nodeid)
            if error:
                collector.results[nodeid] = CaseResult.failed(nodeid, case, error, {})
        collector.collected(list(self.expected))

    def _compare_or_fail(
        self, collector: Collector, policy: Policy, measurements: Measurements, other: KernelVersion
    ) -> Verdict | None:
        """Compare; None when the candidate ended its processes: the case's row is ERROR then."""
        table = collector.table()
        assert table is not None
        try:
            return self._compare(collector.in_order(), table, policy, measurements, other)
        except CandidateDied as death:
            result = collector.results[death.case]
            collector.results[death.case] = judging.failed(result, "ERROR", str(death))
            self._detail = judging.head(str(death))
            return None

    def _compare(
        self,
        results: Sequence[CaseResult],
        table: Table,
        policy: Policy,
        measurements: Measurements,
        other: KernelVersion,
    ) -> Verdict:
        """Compare the tree's kernel with another version of it, paired."""
        self._same_engines(results)
        metrics = parse_primary(self.campaign.manifest.primary_metric, table, policy.directions)
        unusable = metrics_verdict(table, metrics, policy)
        if unusable:
            return unusable
        try:
            versions = self._versions(other)
            paired = [PairedMetric.of(metric, table) for metric in metrics]
            known = Known.here(self._settings.workspace, results, self.campaign)
            core, classes = self._core(), self._classes()
            with measurements.compare(
                [result.nodeid for result in results], versions
            ) as comparison:
                self._paired = judge(
                    comparison,
                    results,
                    paired,
                    policy,
                    known,
                    core=core,
                    classes=classes,
                    extra_benefit=self._extra_benefit(),
                )
            self._tried = comparison.tried
            self._nearby = nearby_findings(comparison)
        except Caught as caught:
            return judging.overfit(results, caught.findings, policy, CAUGHT_STEP)
        except NotComparable as error:
            raise BadInput(
                f"the incumbent cannot be measured beside the candidate: {error}",
                where="--kopt-compare",
                legal="mend it, or --kopt-compare stored",
            ) from None
        return self._paired.verdict

    def _versions(self, other: KernelVersion) -> Versions:
        """Return trees of the project with the one other version of its kernel that is met here.

        They are made once and last until the campaign is given back.
        """
        if self._trees is None:
            incumbent = other.sources
            manifest, here = self.campaign.manifest, list(self._kernel.files)
            made = overlays(
                self.campaign.root.resolve(),
                incumbent,
                absent=[path for path in here if path not in incumbent],
                rebuild=manifest.rebuild_command,
                env=manifest.env,
            )
            self._trees = self._stack.enter_context(made)
        return self._trees

    def _same_engines(self, results: Sequence[CaseResult]) -> None:
        for result in results:
            frozen = self.expected[result.nodeid].engine
            engine = result.evidence.get("engine", frozen)
            if engine != frozen:
                raise BadInput(
                    f"timed by {engine}, but the baseline by {frozen}: stored times of two engines "
                    "are not compared",
                    where=f"case {result.nodeid}",
                    legal="--kopt-compare paired, which times both versions alike",
                )

    def _run_commands(self) -> str:
        """Format, rebuild, test and benchmark, as far as the manifest says; stop at a failure.

        Formatting comes first, so that what is measured is what is committed. The benchmark's
        figures decide nothing: they are kept beside ours, at both ends of a campaign.
        """
        manifest = self.campaign.manifest
        asked = [manifest.format_command, manifest.rebuild_command, manifest.test_command]
        if self.runs_benchmark:
            asked.append(manifest.benchmark_command)
        for command in filter(None, asked):
            done = commands.run(command, self.campaign.root, manifest.env)
            if not done.ok:
                return f"`{command}` ended with status {done.returncode}\n{done.output}".rstrip()
            if command == manifest.benchmark_command:
                self._benchmark = done.output
        return ""

    def _extra_benefit(self) -> str | None:
        """Return what the author claims for an equal version; None outside a round."""
        return None

    def _core(self) -> tuple[str, ...] | None:
        """Return the node ids of the level's core cases; None where all of the level are."""
        core = self.campaign.manifest.core_shapes
        if core == "all":
            return None
        named = levels.select(core, levels.names(self.frozen.values()), levels.CORE)
        return tuple(nodeid for nodeid in named if nodeid in self.expected) or None

    def _classes(self) -> Classes:
        return Classes(tuple(self.campaign.manifest.classes))

    def _evidence(self, collector: Collector, table: Table | None) -> Evidence:
        return Evidence(
            kernel=self._kernel,
            results=collector.in_order(),
            table=table,
            session=self._session(collector),
            pairs_csv=self._paired.pairs_csv if self._paired else "",
            benchmark_log=self._benchmark,
        )

    def _session(self, collector: Collector) -> dict[str, Any]:
        return {
            "started": self.started,
            "ended": now(),
            "policy": self.policy.model_dump(mode="json"),
            **this_machine(),
            "python": platform.python_version(),
            "pytest_kopt": version("pytest-kopt"),
            "skipped": sorted(collector.skipped),
            "lost": collector.lost,
            "collect_errors": collector.collect_errors,
            "dead": collector.dead,
            "comparison": self._paired.session if self._paired else {},
            "held_out": [item.to_document() for item in self._tried],
        }
