"""Every round after the baseline: a candidate meets the incumbent and is kept or rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pytest_kopt.campaign import hypothesis, ledger, levels
from pytest_kopt.campaign.campaign import AttemptRecord, Campaign
from pytest_kopt.campaign.ledger import PairedChange
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.gates import checked_shape, correctness_verdict
from pytest_kopt.decide.kernel_time import ON_CPU, judge_kernel_time
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.promotion import asks_for_full
from pytest_kopt.decide.stored import StoredEvidence, decide_stored, remeasurements_needed
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import KernelError
from pytest_kopt.figures import changed
from pytest_kopt.honesty.heldout import SUPPORT
from pytest_kopt.honesty.inflation import gap_finding
from pytest_kopt.options.settings import Settings
from pytest_kopt.profiling.table import CaseProfile
from pytest_kopt.sameness.program import differing
from pytest_kopt.schema.table import Key, Table
from pytest_kopt.show import trend
from pytest_kopt.show.closing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_round import CampaignRound
from pytest_kopt.trials.campaign_trial import CAUGHT_STEP, EDITED_HARNESS
from pytest_kopt.trials.examination import Examination
from pytest_kopt.trials.harness import PytestSetup
from pytest_kopt.trials.trial import Measurements


class CandidateRound(CampaignRound):
    """Compares the tree's kernel with the last accepted version."""

    def __init__(self, settings: Settings, campaign: Campaign, setup: PytestSetup) -> None:
        self._seen_quick: Verdict | None = None
        self._same_as: int | None = None
        super().__init__(settings, campaign, setup)

    def _validate(self) -> None:
        self._open()
        self._freeze_cases()
        self._take_level()
        # What the round will be compared with is read before anything is measured.
        self.campaign.incumbent()
        wanted = {case.key for case in self.expected.values()}
        rows = self.campaign.incumbent_table().rows
        self._check_target_class([row for row in rows if row.key in wanted])
        self._harness = self._watch.check(self.frozen)
        hypothesis.check_parses(self.campaign)
        same_as = hypothesis.check_differs(self.campaign, self._extra_benefit())
        if same_as is not None:
            self._same_as, self.is_settled = same_as, True
            decided = self.campaign.state.rounds[same_as].verdict
            assert decided is not None
            self.level = decided.level

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Check the case set; KernelError when a file of its cases does not import any more."""
        super().check_collection(ids, collector, filtered)
        for nodeid in self.expected:
            error = judging.under(nodeid, collector.collect_errors)
            if error:
                raise KernelError(f"the kernel does not import; nothing was measured\n{error}")

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge, record and carry out; the incumbent's rows stand for those of the same code."""
        if self._is_same:
            assert self._same_as is not None
            rows = self.campaign.results(self._same_as)
            collector.results = {result.nodeid: result for result in rows}
        return super().close(collector, measurements, interrupted)

    @property
    def _is_same(self) -> bool:
        """Whether the incumbent's code is judged, without running any."""
        return self.is_settled and not self._blocked

    def _take_level(self) -> None:
        """Expect the cases of the round's level; BadInput where there is no such level."""
        campaign, shapes = self.campaign, self.campaign.manifest.representative_shapes
        recorded = campaign.recorded_manifest().get(levels.KEY)
        levels.check_unchanged(shapes, recorded, campaign.state.first_quick_round)
        representative = self._representative
        self.level = levels.choose(self._settings.level, len(self.frozen), shapes)
        if self.level == "quick":
            self.expected = {name: self.frozen[name] for name in representative}

    @cached_property
    def _representative(self) -> tuple[str, ...]:
        """The node ids of the quick level; none where no shapes are set."""
        return levels.representative(self.campaign.manifest, levels.names(self.frozen.values()))

    @cached_property
    def _examination(self) -> Examination:
        return Examination(self.campaign, self._kernel, self._own_notes().claim)

    def _judge(self, collector: Collector, measurements: Measurements, interrupted: str) -> Verdict:
        verdict = self._decide(collector, measurements, interrupted)
        verdict = self._with_notes(verdict, collector)
        return self._without_inflation(verdict, collector.in_order())

    def _decide(
        self, collector: Collector, measurements: Measurements, interrupted: str
    ) -> Verdict:
        wanted = list(collector.results if self._is_same else self.expected)
        broken = judging.cut_off(collector, wanted, interrupted, self.policy)
        if self._edits and not interrupted:
            return self._edited(collector)
        if broken:
            return broken
        if self._is_same:
            if differing(self.campaign.incumbent().sources, self._kernel.sources):
                return judging.incomplete(self.policy, "the kernel files changed meanwhile")
            return judging.same_code(
                Decision.ACCEPTED_WITH_NOTE,
                f"the same code as round {self._same_as}, kept for its extra benefit: "
                f"{self._extra_benefit()}",
                collector.in_order(),
                self.policy,
            )
        verdict = self._judge_level(collector, measurements)
        if asks_for_full(self.level, verdict, self.policy):
            return self._promote(verdict, collector, measurements)
        return verdict

    def _promote(self, quick: Verdict, collector: Collector, measurements: Measurements) -> Verdict:
        """Have all cases decide on a small quick gain, in this session and with its trees."""
        outside = [name for name in self.frozen if name not in self.expected]
        total = quick.aggregate
        assert total is not None and total.change_pct is not None
        self._seen_quick = quick
        measurements.check_also(outside)
        self.level, self.expected = "full", self.frozen
        collector.order = list(self.frozen)
        self._complete_rows(collector)
        self._look_at_harness_again(collector)
        if self._edits:
            return self._edited(collector)
        broken = judging.cut_off(collector, list(self.expected), "", self.policy)
        verdict = broken or self._judge_level(collector, measurements)
        flag = (
            f"quick, {total.metric} changed by {changed(total.change_pct)}: less than "
            f"{self.policy.full_below_pct:g} % is decided by all {len(self.frozen)} cases"
        )
        return verdict.model_copy(update={"flags": [flag, *verdict.flags]})

    def _judge_level(self, collector: Collector, measurements: Measurements) -> Verdict:
        """Judge the cases of the level, which all have a row."""
        results, table = collector.in_order(), collector.table()
        assert table is not None
        policy = judging.with_directions(self.policy, results)
        failed = correctness_verdict(table, policy, self._failed_repairs())
        damning = judging.damning(results, self._examination.found(results))
        if damning:
            return judging.overfit(results, damning, policy, CAUGHT_STEP)
        if failed:
            return failed
        if judging.is_interpreted(results):
            return judging.incomplete(policy, *judging.INTERPRETED)
        if self._by_kernel_time and judging.on_cpu(results):
            return judging.incomplete(policy, *ON_CPU)
        if self._settings.compare == "stored":
            return self._stored(collector, table, policy, measurements)
        verdict = self._compare_or_fail(collector, policy, measurements, self.campaign.incumbent())
        if verdict is None:
            return self._judge_level(collector, measurements)
        special = [found for found in self._nearby if found.rejects]
        return judging.overfit(results, special, policy, CAUGHT_STEP) if special else verdict

    def _edited(self, collector: Collector) -> Verdict:
        return judging.overfit(
            collector.in_order(),
            self._edits,
            self.policy,
            "the incumbent is back; put the harness back too",
            EDITED_HARNESS,
        )

    def _with_notes(self, verdict: Verdict, collector: Collector) -> Verdict:
        """Add what was found and does not reject; an accepted weight cache carries an asterisk."""
        results = collector.in_order()
        found = [*self._examination.found(results), *self._nearby]
        found += self._watch.undeclared(self._harness)
        verdict = judging.flagged(verdict, [str(item) for item in found if not item.rejects])
        if verdict.decision is not Decision.ACCEPTED:
            return verdict
        narrower = [item for item in self._nearby if item.check in SUPPORT]
        if self._examination.gains_by_weight_cache(results):
            bound = self._own_notes().claim.bound_pct
            return _noted(verdict, f"a weight cache (W1): a real step gains at most {bound:.3f} %")
        if narrower:
            return _noted(verdict, f"it supports less than the incumbent: {narrower[0]}")
        return verdict

    def _without_inflation(self, verdict: Verdict, results: Sequence[CaseResult]) -> Verdict:
        """Say what of a gain only reused tensors have; one that is nothing else does not count."""
        gain = verdict.aggregate.change_pct if verdict.aggregate else None
        if gain is None or not verdict.decision.keeps:
            return verdict
        found = self._examination.inflation(results, gain)
        if found is None or not found.is_inflated:
            return verdict
        text = str(gap_finding(found))
        verdict = judging.flagged(verdict, [text])
        if found.counts:
            return verdict
        return verdict.model_copy(
            update={
                "decision": Decision.ROLLED_BACK,
                "reason": f"a gain that fresh tensors do not have does not count: {text}",
                "next_step": CAUGHT_STEP,
            }
        )

    def _session(self, collector: Collector) -> dict[str, Any]:
        seen = self._seen_quick
        quick = seen.model_dump(mode="json") if seen else None
        return {**super()._session(collector), "quick": quick}

    def _completed(self, record: AttemptRecord, collector: Collector) -> AttemptRecord:
        """Add the paired change, at a full round over the representative cases as well."""
        paired = self._paired
        quick, full = self.level == "quick", self.level == "full"
        kept = self._is_same and record.verdict.decision.keeps
        none = _no_change(collector.in_order()) if kept else None
        return replace(
            record,
            paired=paired.change() if paired else none,
            paired_quick=paired.change(self._representative)
            if paired and full and self._representative
            else none,
            baseline=self._baseline_of(record.evidence.table) if quick else None,
        )

    def _baseline_of(self, table: Table | None) -> ledger.Trend | None:
        """Return round 1's figures over these rows' cases."""
        if table is None:
            return None
        return trend.figures(self.campaign.baseline_table().only(table.by_key()))

    def _stored(
        self, collector: Collector, table: Table, policy: Policy, measurements: Measurements
    ) -> Verdict:
        self._same_engines(collector.in_order())
        # An incumbent that was measured quick has rows of those cases alone.
        incumbent = self.campaign.incumbent_table().only(table.by_key())
        known = incumbent.by_key()
        evidence = StoredEvidence(
            candidate=table.only(known),
            incumbent=incumbent,
            primary=self.campaign.manifest.primary_metric,
            failed_repairs=self._failed_repairs(),
            extra_benefit=self._extra_benefit(),
            core=self._core_keys(),
            classes=self._classes(),
            devices={
                result.key: result.evidence.get("device", "") for result in collector.in_order()
            },
        )
        verdict = decide_stored(evidence, policy)
        if asks_for_full(self.level, verdict, policy):
            return verdict
        for _ in range(remeasurements_needed(verdict, policy)):
            again = Collector(order=list(collector.order))
            again.results = {result.nodeid: result for result in measurements.measure_again()}
            repeat = again.table()
            if repeat is None or len(repeat.rows) != len(table.rows):
                return judging.incomplete(self.policy, "a re-measurement lost cases")
            repeats = (*evidence.remeasurements, repeat.only(known))
            evidence = replace(evidence, remeasurements=repeats)
            verdict = decide_stored(evidence, policy)
        results = collector.in_order()
        if verdict.decision.keeps and any(result.evidence.get("groups") for result in results):
            return judging.incomplete(self.policy, *judging.SKEW_NOT_TIMED)
        engines = sorted({str(r.evidence.get("engine", "-")) for r in results})
        flags = [*verdict.flags, *judging.device_flags(results, self.expected)]
        flags += judging.machine_flags(self.campaign.incumbent_session())
        alone = [row for row in table.rows if row.key not in known]
        if alone:
            flags.append(
                f"{len(alone)} case(s) were checked but not compared: round "
                f"{self.campaign.state.incumbent_round} was measured without them"
            )
        shapes = [*verdict.shapes, *map(checked_shape, alone)]
        update = {"engine": ", ".join(engines), "flags": flags, "shapes": shapes}
        return verdict.model_copy(update=update)

    def _profile(
        self, verdict: Verdict, collector: Collector, measurements: Measurements
    ) -> tuple[Verdict, list[CaseProfile]]:
        """Profile as asked to, and have the kernels' time judge what was compared (S4)."""
        if self._is_same:
            return verdict, []
        verdict, found = super()._profile(verdict, collector, measurements)
        compared = verdict.decision.keeps or verdict.decision is Decision.ROLLED_BACK
        if not self._by_kernel_time or not compared or verdict.compare == "none":
            return verdict, found
        versions = self._versions(self.campaign.incumbent())
        pairs = measurements.profile_pairs(collector.passed(), (versions.root, versions.trees[0]))
        return judge_kernel_time(verdict, pairs, self.policy), found or list(pairs[0][0])

    def _core_keys(self) -> frozenset[Key] | None:
        core = self._core()
        return None if core is None else frozenset(self.frozen[name].key for name in core)

    def _extra_benefit(self) -> str | None:
        return self._own_notes().extra_benefit

    def _failed_repairs(self) -> int:
        return self._known_round().failed_checks - 1


def _no_change(results: Sequence[CaseResult]) -> PairedChange:
    """Return the paired change of a version that is the same code."""
    cells = [cell for result in results for cell in result.cells.items()]
    backward = any(name.startswith("Backward") and value is not None for name, value in cells)
    return PairedChange(step_pct=0.0, forward_pct=0.0, backward_pct=0.0 if backward else None)


def _noted(verdict: Verdict, note: str) -> Verdict:
    """Return an accepted verdict as one with a note."""
    return verdict.model_copy(
        update={
            "decision": Decision.ACCEPTED_WITH_NOTE,
            "reason": f"{verdict.reason}; {note}",
        }
    )
