"""A round of a campaign: opened before anything runs, judged and carried out when all has run."""

from __future__ import annotations

import contextlib
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from pytest_kopt import policies
from pytest_kopt.campaign import commands, tips
from pytest_kopt.campaign import notes as notes_file
from pytest_kopt.campaign.campaign import AttemptRecord, Campaign
from pytest_kopt.campaign.choice import choose_campaign
from pytest_kopt.campaign.layout import find
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.cases.result import CaseResult, ExpectedCase
from pytest_kopt.clock import now
from pytest_kopt.decide.gates import checked_shape, correctness_verdict, metrics_verdict
from pytest_kopt.decide.kernel_time import judge_kernel_time
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.stored import StoredEvidence, decide_stored, remeasurements_needed
from pytest_kopt.decide.verdict import Aggregate, Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.options.settings import Settings
from pytest_kopt.profiling.table import CaseProfile, gpu_step_us
from pytest_kopt.schema.metrics import aggregate, parse_primary
from pytest_kopt.schema.table import Table
from pytest_kopt.session.brief import Brief
from pytest_kopt.session.collector import Collector
from pytest_kopt.session.comparison import Comparison, Versions
from pytest_kopt.session.pairing import PairedResult, judge, overlays
from pytest_kopt.session.rooflines import rooflines
from pytest_kopt.show import projections, trend
from pytest_kopt.show.profiles import write_profiles


class Laboratory(Protocol):
    """What a round can have measured in fresh processes once its cases have passed."""

    def measure_again(self) -> Sequence[CaseResult]:
        """Run the round's cases once more and return their results."""

    def compare(self, ids: Sequence[str], versions: Versions) -> Comparison:
        """Return a comparison of two versions over these cases, nothing measured yet."""

    def profile(self, ids: Sequence[str], tree: Path | None = None) -> list[CaseProfile]:
        """Return profiles of the cases, of the copy of the project in `tree` where one is given."""


@dataclass(frozen=True, slots=True)
class Closing:
    """What a finished round hands to the terminal; `detail` is the output of a failed command."""

    verdict: Verdict
    table: Table | None
    detail: str = ""
    profiles: tuple[CaseProfile, ...] = ()


class CampaignRound:
    """One attempt at one round.

    Made while pytest is configured (reads and validates, changes nothing), begun when the session
    starts (locks, finishes what an earlier kill cut off), closed when all cases have run.
    """

    def __init__(self, settings: Settings) -> None:
        assert settings.round is not None
        self._settings = settings
        self.campaign = Campaign(
            find(
                settings.workspace,
                choose_campaign(settings.campaign, settings.root, settings.workspace),
            ),
            settings.root,
        )
        self._notes = notes_file.load(settings.notes) if settings.notes else Notes()
        tips.check_notes(self._notes, str(settings.notes))
        self._validate()
        self.started = now()
        self._stack = contextlib.ExitStack()

    def brief(self, device: str, session_seed: int) -> Brief:
        """Return the orders of this round's workers."""
        plain = Brief.of(self._settings, device, session_seed)
        expected = None if self.number == 1 else tuple(self.expected.values())
        return replace(plain, cases_only=True, expected=expected, ignored=self._ignored)

    def begin(self) -> str:
        """Take the campaign, finish what was cut off, and take down the candidate's version.

        Returns why nothing can be measured when a command of the manifest failed, else "".

        Raises BadInput when the campaign is in use, moved on meanwhile, or its tree is not ready.
        """
        self._stack.enter_context(self.campaign.locked())
        try:
            if self.campaign.settle(apply=self._settings.apply):
                projections.refresh(self.campaign)
            self._validate()
            self._blocked = self._run_commands()
            self._kernel = self.campaign.candidate()
        except BaseException:
            self.release()
            raise
        return self._blocked

    def release(self) -> None:
        """Give the campaign back; safe to repeat."""
        self._stack.close()

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
        if self.number == 1:
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
            if nodeid not in ids and not _under(nodeid, collector.collect_errors)
        ]
        if gone and not filtered:
            raise BadInput(
                f"the case set changed: {gone[0]} of the baseline is gone",
                where=f"campaign {self.campaign.name}",
                legal="the cases of the baseline; `kopt init --from` starts over with new ones",
            )

    def close(self, collector: Collector, lab: Laboratory, interrupted: str = "") -> Closing:
        """Judge, record and carry out; raises BadInput, with nothing changed, for drifted input."""
        if collector.refusals:
            raise BadInput("; ".join(collector.refusals))
        self._add_error_rows(collector)
        _fail_rows_of_failed_tests(collector)
        table = collector.table()
        self._paired: PairedResult | None = None
        verdict = self._judge(collector, table, lab, interrupted)
        if self._blocked:
            reason = f"{self._blocked.splitlines()[0]}; {verdict.reason}"
            verdict = verdict.model_copy(update={"reason": reason})
        if not self.campaign.candidate().same_content(self._kernel):
            verdict = self._incomplete("the kernel files changed while they were measured")
        verdict, profiles = self._profile(verdict, collector, lab)
        lines = rooflines(collector.in_order(), self._settings.workspace)
        verdict = verdict.model_copy(update={"rooflines": lines})
        figures = trend.figures(table) if table else None
        attempt = self.campaign.record(
            AttemptRecord(
                round=self.number,
                started=self.started,
                level="full",
                kernel=self._kernel,
                results=collector.in_order(),
                table=table,
                verdict=verdict,
                trend=figures,
                notes=self._notes,
                session=self._session(collector),
                pairs_csv=self._paired.pairs_csv if self._paired else "",
                paired=self._paired.change if self._paired else None,
            )
        )
        if profiles:
            write_profiles(self.campaign.layout, self.number, attempt.number, profiles)
        self.campaign.settle(apply=self._settings.apply)
        projections.refresh(self.campaign, [self.number])
        final = self.campaign.verdict(self.campaign.state.rounds[self.number])
        assert final is not None and final.attempt == attempt.number
        return Closing(final, table, self._blocked, tuple(profiles))

    def _validate(self) -> None:
        settings, campaign = self._settings, self.campaign
        assert settings.round is not None
        self.number = campaign.state.check_round(settings.round)
        limit = campaign.manifest.max_iterations
        if limit is not None and self.number > limit + 1:
            raise BadInput(
                f"round {self.number} is beyond max_iterations {limit} (T3)",
                where="--kopt-round",
                legal="raise max_iterations in the manifest (at most 119) to go on",
            )
        self.policy: Policy = policies.load(settings.policy or campaign.manifest.policy)
        campaign.check_ready()
        self.expected: dict[str, ExpectedCase] = {}
        self._ignored: tuple[str, ...] = ()
        if self.number > 1:
            self.expected = campaign.expected_cases()
            self._ignored = tuple(campaign.skipped_at_baseline())
            # What the round will be compared with is read before anything is measured.
            campaign.incumbent()
            campaign.incumbent_table()

    def _run_commands(self) -> str:
        """Format, rebuild and test in this order, as far as the manifest says; stop at a failure.

        Formatting comes first, so that what is measured is what is committed.
        """
        manifest = self.campaign.manifest
        for command in (manifest.format_command, manifest.rebuild_command, manifest.test_command):
            if command is None:
                continue
            done = commands.run(command, self.campaign.root, manifest.env)
            if not done.ok:
                return f"`{command}` ended with status {done.returncode}\n{done.output}".rstrip()
        return ""

    def _judge(
        self,
        collector: Collector,
        table: Table | None,
        lab: Laboratory,
        interrupted: str,
    ) -> Verdict:
        broken = self._cut_off(collector, table, interrupted)
        if broken:
            return broken
        assert table is not None
        found = [found for result in collector.in_order() for found in result.findings]
        if self.number == 1:
            return self._baseline(table, self._policy_for(collector))
        if found:
            return self._overfit(table, found)
        interpreted = any(result.evidence.get("interpreted") for result in collector.in_order())
        if self._settings.compare == "stored" and not interpreted:
            return self._stored(collector, table, lab)
        failed = correctness_verdict(table, self.policy, self._failed_repairs())
        if failed:
            return failed
        if interpreted:
            return self._incomplete(
                "Triton's interpreter timed this round; its times mean nothing and decide nothing",
                "the checks passed; run the round on a GPU to decide it",
            )
        return self._compare(collector, table, lab)

    def _cut_off(
        self, collector: Collector, table: Table | None, interrupted: str
    ) -> Verdict | None:
        """Return INCOMPLETE when not every case of the level has spoken."""
        if interrupted:
            return self._incomplete(f"the session was interrupted: {interrupted}")
        lost = collector.lost_after_all()
        if lost:
            return self._incomplete(
                f"a worker was lost: {lost[0]}",
                "the case went through when run again: not the kernel's doing; run the round again",
            )
        wanted = list(self.expected) or [
            nodeid for nodeid in collector.order if nodeid not in collector.skipped
        ]
        missing = [nodeid for nodeid in wanted if nodeid not in collector.results]
        if missing or table is None:
            reason = f"{len(missing)} case(s) have no row: {', '.join(missing[:3])}"
            if not missing:
                why = collector.startup_death or next(iter(collector.collect_errors.values()), "")
                reason = f"no case has a row; {why}".rstrip("; ")
            return self._incomplete(
                reason, "run every case; a filtered or cut-off run decides nothing"
            )
        return None

    def _baseline(self, table: Table, policy: Policy) -> Verdict:
        failed = correctness_verdict(table, self.policy, failed_repairs=-1)
        if failed:
            return failed.model_copy(
                update={
                    "next_step": "the baseline has to be correct: mend it and run round 1 again"
                }
            )
        text = self.campaign.manifest.primary_metric
        metrics = parse_primary(text, table, policy.directions)
        unusable = metrics_verdict(table, metrics, self.policy)
        if unusable:
            return self._incomplete(unusable.reason, unusable.next_step)
        totals = [
            Aggregate(metric=metric.name, candidate=aggregate(table.rows, metric))
            for metric in metrics
        ]
        return Verdict(
            decision=Decision.BASELINE,
            reason=f"{len(table.rows)} case(s) PASS; the schema and the case set are frozen",
            next_step=f"change the kernel, then: pytest --kopt-campaign {self.campaign.name} "
            "--kopt-round next",
            compare="none",
            policy=self.policy.name,
            aggregate=totals[0],
            secondary=totals[1:],
            shapes=[checked_shape(row) for row in table.rows],
        )

    def _stored(self, collector: Collector, table: Table, lab: Laboratory) -> Verdict:
        self._same_engines(collector)
        evidence = StoredEvidence(
            candidate=table,
            incumbent=self.campaign.incumbent_table(),
            primary=self.campaign.manifest.primary_metric,
            failed_repairs=self._failed_repairs(),
            extra_benefit=self._extra_benefit(),
            core=self._core(),
            devices={
                result.key: result.evidence.get("device", "") for result in collector.in_order()
            },
        )
        policy = self._policy_for(collector)
        verdict = decide_stored(evidence, policy)
        for _ in range(remeasurements_needed(verdict, policy)):
            again = Collector(order=list(collector.order))
            again.results = {result.nodeid: result for result in lab.measure_again()}
            repeat = again.table()
            if repeat is None or len(repeat.rows) != len(table.rows):
                return self._incomplete("a re-measurement lost cases")
            evidence = replace(evidence, remeasurements=(*evidence.remeasurements, repeat))
            verdict = decide_stored(evidence, policy)
        engines = sorted({str(r.evidence.get("engine", "-")) for r in collector.in_order()})
        return verdict.model_copy(update={"engine": ", ".join(engines)})

    def _compare(self, collector: Collector, table: Table, lab: Laboratory) -> Verdict:
        self._same_engines(collector)
        results = collector.in_order()
        policy = self._policy_for(collector)
        metrics = parse_primary(self.campaign.manifest.primary_metric, table, policy.directions)
        unusable = metrics_verdict(table, metrics, self.policy)
        if unusable:
            return unusable
        incumbent = {path: file.content for path, file in self.campaign.incumbent().files.items()}
        root = self.campaign.root.resolve()
        with overlays(root, incumbent, list(self._kernel.files)) as versions:
            comparison = lab.compare([result.nodeid for result in results], versions)
            self._paired = judge(
                comparison, table, results, metrics, self.policy, core=self._core()
            )
        return self._paired.verdict

    def _profile(
        self, verdict: Verdict, collector: Collector, lab: Laboratory
    ) -> tuple[Verdict, list[CaseProfile]]:
        """Profile a decided round where asked to, and let S4's rule judge the kernels' time."""
        ids = [result.nodeid for result in collector.in_order() if result.check == "PASS"]
        if not self._settings.profile or verdict.decision.leaves_open or not ids:
            return verdict, []
        found = lab.profile(ids)
        if not self.policy.kernel_time or not verdict.decision.keeps or self.number == 1:
            return verdict, found
        incumbent = {path: file.content for path, file in self.campaign.incumbent().files.items()}
        root = self.campaign.root.resolve()
        with overlays(root, incumbent, list(self._kernel.files)) as versions:
            before = lab.profile(ids, versions.trees[0])
        return judge_kernel_time(verdict, gpu_step_us(found), gpu_step_us(before)), found

    def _same_engines(self, collector: Collector) -> None:
        for result in collector.in_order():
            frozen = self.expected[result.nodeid].engine
            engine = result.evidence.get("engine", frozen)
            if engine != frozen:
                raise BadInput(
                    f"timed by {engine}, but the baseline by {frozen}",
                    where=f"case {result.nodeid}",
                    legal="one engine for the whole campaign",
                )

    def _overfit(self, table: Table, findings: Sequence[Finding]) -> Verdict:
        return Verdict(
            decision=Decision.REJECTED_OVERFIT,
            reason=f"the kernel serves the measurement instead of computing: {findings[0]}",
            next_step="the incumbent is back; only gains that a real step has are kept",
            compare="none",
            policy=self.policy.name,
            shapes=[checked_shape(row) for row in table.rows],
            flags=sorted({str(found) for found in findings}),
        )

    def _incomplete(self, reason: str, step: str = "run the round again") -> Verdict:
        return Verdict(
            decision=Decision.INCOMPLETE,
            reason=reason,
            next_step=step,
            compare="none",
            policy=self.policy.name,
        )

    def _add_error_rows(self, collector: Collector) -> None:
        """Give the baseline's cases that could not speak their ERROR rows: dead or not imported."""
        for nodeid, case in self.expected.items():
            if nodeid in collector.results:
                continue
            error = collector.dead.get(nodeid) or _under(nodeid, collector.collect_errors)
            error = error or collector.startup_death or collector.failures.get(nodeid)
            if error:
                collector.results[nodeid] = CaseResult.failed(nodeid, case, error, {})
        collector.collected(list(self.expected))

    def _core(self) -> tuple[str, ...] | None:
        core = self.campaign.manifest.core_shapes
        return None if core == "all" else tuple(core)

    def _policy_for(self, collector: Collector) -> Policy:
        """Return the policy with the directions that a schema of the user's declares."""
        declared: dict[str, Any] = {}
        for result in collector.in_order():
            declared |= result.evidence.get("better", {})
        return self.policy.model_copy(update={"directions": {**declared, **self.policy.directions}})

    def _failed_repairs(self) -> int:
        known = self.campaign.state.rounds.get(self.number)
        return known.failed_checks - 1 if known else -1

    def _extra_benefit(self) -> str | None:
        known = self.campaign.state.rounds.get(self.number)
        notes = known.notes.plus(self._notes) if known else self._notes
        return notes.extra_benefit

    def _session(self, collector: Collector) -> dict[str, Any]:
        return {
            "started": self.started,
            "ended": now(),
            "host": platform.node(),
            "python": platform.python_version(),
            "pytest_kopt": version("pytest-kopt"),
            "skipped": sorted(collector.skipped),
            "lost": collector.lost,
            "collect_errors": collector.collect_errors,
            "dead": collector.dead,
            "comparison": self._paired.session if self._paired else {},
        }


def _under(nodeid: str, collect_errors: dict[str, str]) -> str | None:
    """Return the collection error of the file or class that holds a node id."""
    for failed, text in collect_errors.items():
        if nodeid == failed or nodeid.startswith((f"{failed}::", f"{failed}/")):
            return text
    return None


def _fail_rows_of_failed_tests(collector: Collector) -> None:
    """Make a test that failed after its case was measured a failed check."""
    for nodeid, text in collector.failures.items():
        result = collector.results.get(nodeid)
        if result is not None and result.check == "PASS":
            cells = {
                name: None if cell is None else math.nan for name, cell in result.cells.items()
            }
            collector.results[nodeid] = replace(
                result, check="FAIL", cells=dict(cells), diagnosis=text
            )
