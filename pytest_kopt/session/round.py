"""A round of a campaign: opened before anything runs, judged and carried out when all has run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pytest_kopt.campaign import ledger, levels, stops, tips
from pytest_kopt.campaign import notes as notes_file
from pytest_kopt.campaign.campaign import AttemptRecord
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.cases.result import CaseResult, reuse_log_ratios
from pytest_kopt.decide.classes import measured_classes
from pytest_kopt.decide.gates import checked_shape, correctness_verdict, metrics_verdict
from pytest_kopt.decide.kernel_time import judge_kernel_time, kernel_time
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.promotion import asks_for_full
from pytest_kopt.decide.stored import StoredEvidence, decide_stored, remeasurements_needed
from pytest_kopt.decide.verdict import Aggregate, Decision, Level, Verdict
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.fingerprint import edits
from pytest_kopt.honesty.inflation import gap_finding, inflation
from pytest_kopt.honesty.transfer import BOUNDED, bucket_findings, caches_weights
from pytest_kopt.options.settings import Settings
from pytest_kopt.profiling.table import CaseProfile, gpu_step_us
from pytest_kopt.schema.classes import Classes
from pytest_kopt.schema.metrics import aggregate, parse_primary
from pytest_kopt.schema.table import Row, Table
from pytest_kopt.session import judging
from pytest_kopt.session.auditing import audit_candidate
from pytest_kopt.session.brief import Brief
from pytest_kopt.session.campaign_trial import CAUGHT_STEP, CampaignTrial
from pytest_kopt.session.collector import Collector
from pytest_kopt.session.harness import HarnessWatch, PytestSetup
from pytest_kopt.session.rooflines import rooflines
from pytest_kopt.session.trial import Closing, Laboratory
from pytest_kopt.show import projections, standing, trend
from pytest_kopt.show.profiles import write_profiles
from pytest_kopt.show.tips import lines as known_tips


class CampaignRound(CampaignTrial):
    """One attempt at one round."""

    def __init__(self, settings: Settings, setup: PytestSetup) -> None:
        self._notes = notes_file.load(settings.notes) if settings.notes else Notes()
        tips.check_notes(self._notes, str(settings.notes))
        self._audited: list[Finding] | None = None
        self._seen_quick: Verdict | None = None
        super().__init__(settings)
        self._watch = HarnessWatch(self.campaign, setup)
        self._harness = self._watch.take(self.frozen)
        self._edits = self._watch.edits(self._harness)

    @property
    def title(self) -> str:
        cases = f", quick: {len(self.expected)} of {len(self.frozen)} cases"
        return (
            f"campaign {self.campaign.name}, round {self.number}, policy {self.policy.name}"
            f"{cases if self.level == 'quick' else ''}"
        )

    @property
    def preface(self) -> Sequence[str]:
        return list(known_tips(self.campaign)) if self.number == 1 else ()

    @property
    def wants_replicas(self) -> bool:
        """A baseline is compared with nothing, and an edited harness refused before that."""
        return super().wants_replicas and self.number > 1 and not self._edits

    def brief(self, device: str, session_seed: int) -> Brief:
        """Return the orders of this round's workers."""
        return replace(super().brief(device, session_seed), declare_only=bool(self._edits))

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Hold the cases against the baseline; the baseline's harness is taken down here."""
        super().check_collection(ids, collector, filtered)
        if self.number == 1:
            self._harness = self._watch.take(ids)

    def close(self, collector: Collector, lab: Laboratory, interrupted: str = "") -> Closing:
        """Judge, record and carry out; raises BadInput, with nothing changed, for drifted input."""
        begun = self.level
        self._complete_rows(collector)
        self._look_at_harness_again(collector)
        verdict = self._with_notes(self._judge(collector, lab, interrupted), collector)
        verdict = self._without_inflation(verdict, collector.in_order())
        verdict = self._said_why_blocked(verdict)
        if not self.campaign.candidate().same_content(self._kernel):
            verdict = judging.incomplete(
                self.policy, "the kernel files changed while they were measured"
            )
        verdict, profiles = self._profile(verdict, collector, lab)
        lines = rooflines(collector.in_order(), self._settings.workspace)
        verdict = verdict.model_copy(update={"rooflines": lines, "level": self.level})
        table = collector.table()
        is_baseline = verdict.decision is Decision.BASELINE
        attempt = self.campaign.record(
            AttemptRecord(
                round=self.number,
                started=self.started,
                level=begun,
                evidence=self._evidence(collector, table),
                verdict=verdict,
                trend=trend.figures(table) if table else None,
                notes=self._notes,
                paired=self._paired.change() if self._paired else None,
                paired_quick=self._quick_change(),
                baseline=self._quick_baseline(table),
                representative=self._proposed(collector) if is_baseline else None,
                policy=self.policy,
            )
        )
        if profiles:
            write_profiles(self.campaign.layout, self.number, attempt.number, profiles)
        self.campaign.settle(apply=self._settings.apply, beside=projections.performance)
        projections.refresh(self.campaign, [self.number])
        final = self.campaign.verdict(self.campaign.state.rounds[self.number])
        assert final is not None and final.attempt == attempt.number
        outlook = standing.lines(self.campaign, self.policy)
        return Closing(final, table, self._blocked, tuple(profiles), tuple(outlook))

    def _validate(self) -> None:
        settings, campaign = self._settings, self.campaign
        assert settings.round is not None and settings.round != "final"
        self.number = campaign.state.check_round(settings.round)
        stops.refuse_another_round(campaign.termination_check(self.policy))
        campaign.check_ready()
        rows: Sequence[Row] = ()
        self.level: Level = "full"
        if self.number == 1:
            levels.always_full(settings.level, "the baseline")
        else:
            self._freeze_cases()
            self._take_level()
            # What the round will be compared with is read before anything is measured.
            campaign.incumbent()
            wanted = {case.key for case in self.expected.values()}
            rows = [row for row in campaign.incumbent_table().rows if row.key in wanted]
        classes = self._classes()
        classes.target_among(classes.group({row.key: row.dims for row in rows}))

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
        """The node ids of the representative cases; none where no shapes are set."""
        shapes = self.campaign.manifest.representative_shapes or []
        return levels.representative(shapes, levels.names(self.frozen.values()))

    def _judge(self, collector: Collector, lab: Laboratory, interrupted: str) -> Verdict:
        wanted = list(self.expected) or [
            nodeid for nodeid in collector.order if nodeid not in collector.skipped
        ]
        broken = judging.cut_off(collector, wanted, interrupted, self.policy)
        if self._edits and not interrupted:
            return self._edited(collector)
        if broken:
            return broken
        if self.number == 1:
            return self._baseline(collector)
        verdict = self._judge_level(collector, lab)
        if asks_for_full(self.level, verdict, self.policy):
            return self._promote(verdict, collector, lab)
        return verdict

    def _promote(self, quick: Verdict, collector: Collector, lab: Laboratory) -> Verdict:
        """Have all cases decide on a small quick gain, in this session and with its trees."""
        outside = [name for name in self.frozen if name not in self.expected]
        total = quick.aggregate
        assert total is not None and total.change_pct is not None
        self._seen_quick = quick
        lab.check_also(outside)
        self.level, self.expected = "full", self.frozen
        collector.order = list(self.frozen)
        self._complete_rows(collector)
        self._look_at_harness_again(collector)
        if self._edits:
            return self._edited(collector)
        broken = judging.cut_off(collector, list(self.expected), "", self.policy)
        verdict = broken or self._judge_level(collector, lab)
        flag = (
            f"quick, {total.metric} changed by {total.change_pct:+.3f} %: less than "
            f"{self.policy.full_below_pct:g} % is decided by all {len(self.frozen)} cases"
        )
        return verdict.model_copy(update={"flags": [flag, *verdict.flags]})

    def _judge_level(self, collector: Collector, lab: Laboratory) -> Verdict:
        """Judge the cases of the level, which all have a row."""
        results, table = collector.in_order(), collector.table()
        assert table is not None
        policy = judging.with_directions(self.policy, results)
        failed = correctness_verdict(table, policy, self._failed_repairs())
        found = [found for found in self._found(results) if found.rejects]
        if not judging.rejecting(results) and any(item.check == "ERROR" for item in results):
            # A kernel that ended its process is one that crashed, until it runs.
            found = [item for item in found if item.check != "process-exit"]
        if found:
            return judging.overfit(results, found, policy, CAUGHT_STEP)
        if failed:
            return failed
        if judging.is_interpreted(results):
            return judging.incomplete(policy, *judging.INTERPRETED)
        if self._settings.compare == "stored":
            return self._stored(collector, table, policy, lab)
        verdict = self._compare(results, table, policy, lab, self.campaign.incumbent())
        special = [found for found in self._nearby if found.rejects]
        return judging.overfit(results, special, policy, CAUGHT_STEP) if special else verdict

    def _look_at_harness_again(self, collector: Collector) -> None:
        """Take the harness down once more: kernel code has run meanwhile."""
        ids = list(self.frozen) or collector.order
        again = self._watch.take(ids)
        found = [*edits(self._harness, again), *self._watch.edits(again)]
        self._edits = list({str(item): item for item in [*self._edits, *found]}.values())
        self._harness = self._watch.take(ids, collector.in_order())

    def _edited(self, collector: Collector) -> Verdict:
        if self.number == 1:
            return judging.incomplete(
                self.policy, f"the harness changed while the baseline ran: {self._edits[0]}"
            )
        return judging.overfit(
            collector.in_order(),
            self._edits,
            self.policy,
            "the incumbent is back; put the harness back too, or take it into a new campaign "
            f"(kopt init NEW --from {self.campaign.name})",
            "the harness is not the baseline's",
        )

    def _found(self, results: Sequence[CaseResult]) -> list[Finding]:
        """Return what the cases' findings, the audit and the notes' bucket say together."""
        found = [found for result in results for found in result.findings]
        found += self._audit(results)
        # A weight cache that the incumbent has as well is not this round's gain.
        old = self._incumbent_caches_weights
        own = [item for item in found if not (old and item.check == "weight-cache")]
        return [*found, *bucket_findings(self._own_notes().claim, own)]

    def _audit(self, results: Sequence[CaseResult]) -> list[Finding]:
        if self.number == 1:
            return []
        if self._audited is None:
            lang = self.campaign.manifest.target_lang
            before = self.campaign.incumbent()
            self._audited = audit_candidate(self._kernel.sources, before.sources, results, lang)
        return self._audited

    def _with_notes(self, verdict: Verdict, collector: Collector) -> Verdict:
        """Add what was found and does not reject; an accepted weight cache carries an asterisk."""
        results = collector.in_order()
        found = [*self._found(results), *self._nearby]
        if self.number > 1:
            found += self._watch.undeclared(self._harness)
        texts = {str(item) for item in found if not item.rejects}
        update: dict[str, Any] = {"flags": sorted({*verdict.flags, *texts})}
        if verdict.decision is Decision.ACCEPTED and self._gains_by_weight_cache(results):
            bound = self._own_notes().claim.bound_pct
            update |= _noted(
                verdict, f"a weight cache (W1): a real step gains at most {bound:.3f} %"
            )
        elif verdict.decision is Decision.ACCEPTED and self._narrower:
            update |= _noted(verdict, f"it supports less than the incumbent: {self._narrower[0]}")
        return verdict.model_copy(update=update)

    @property
    def _narrower(self) -> list[Finding]:
        """What the candidate does not support near the declared shapes, and the incumbent does."""
        return [item for item in self._nearby if item.check == "held-out-shape"]

    def _without_inflation(self, verdict: Verdict, results: Sequence[CaseResult]) -> Verdict:
        """Say what of a gain only reused tensors have; one that is nothing else does not count."""
        before = self.campaign.state.incumbent_round
        gain = verdict.aggregate.change_pct if verdict.aggregate else None
        if before is None or gain is None or not verdict.decision.keeps:
            return verdict
        old = self.campaign.results(before)
        found = inflation(reuse_log_ratios(results), reuse_log_ratios(old), gain)
        if found is None or not found.is_inflated:
            return verdict
        text = str(gap_finding(found))
        update: dict[str, Any] = {"flags": sorted({*verdict.flags, text})}
        if not found.counts:
            update["decision"] = Decision.ROLLED_BACK
            update["reason"] = f"a gain that fresh tensors do not have does not count: {text}"
            update["next_step"] = CAUGHT_STEP
        return verdict.model_copy(update=update)

    def _gains_by_weight_cache(self, results: Sequence[CaseResult]) -> bool:
        if self._own_notes().bucket == BOUNDED:
            return True
        seen = caches_weights(result.trace for result in results)
        return seen and not self._incumbent_caches_weights

    @cached_property
    def _incumbent_caches_weights(self) -> bool:
        """Whether the version that this round is held against caches its weights."""
        before = self.campaign.state.incumbent_round
        if before is None:
            return False
        return caches_weights(result.trace for result in self.campaign.results(before))

    def _session(self, collector: Collector) -> dict[str, Any]:
        seen = self._seen_quick
        return {
            **super()._session(collector),
            "harness": self._harness.to_document(),
            "quick": seen.model_dump(mode="json") if seen else None,
        }

    def _baseline(self, collector: Collector) -> Verdict:
        results, table = collector.in_order(), collector.table()
        assert table is not None
        policy = judging.with_directions(self.policy, results)
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
            return judging.incomplete(self.policy, unusable.reason, unusable.next_step)
        totals = [
            Aggregate(metric=metric.name, candidate=aggregate(table.rows, metric))
            for metric in metrics
        ]
        return Verdict(
            decision=Decision.BASELINE,
            reason=f"{len(table.rows)} case(s) PASS; the schema and the case set are frozen",
            next_step=f"change the kernel, then: pytest --kopt-campaign {self.campaign.name} "
            f"--kopt-round next{self._quick_words(collector)}",
            compare="none",
            policy=self.policy.name,
            aggregate=totals[0],
            secondary=totals[1:],
            shapes=[checked_shape(row) for row in table.rows],
            classes=measured_classes(self._classes(), table, metrics[0]),
        )

    def _proposed(self, collector: Collector) -> list[str] | None:
        """Return the representative shapes of a new baseline: the user's, else the plugin's.

        BadInput for one of the user's that names no case.
        """
        results = collector.in_order()
        shapes = self.campaign.manifest.representative_shapes
        if shapes:
            levels.representative(shapes, levels.names(results))
            return shapes
        table = collector.table()
        return levels.proposal(table, results) if table else None

    def _quick_words(self, collector: Collector) -> str:
        shapes = self._proposed(collector)
        if not shapes:
            return ""
        return (
            f", which measures {', '.join(shapes)} (representative_shapes in manifest.yaml: edit "
            "them before the first quick round)"
        )

    def _quick_baseline(self, table: Table | None) -> ledger.Trend | None:
        """Return round 1's figures over the cases of a quick round."""
        if self.level == "full" or table is None:
            return None
        return trend.figures(self.campaign.baseline_table().only(table.by_key()))

    def _quick_change(self) -> ledger.PairedChange | None:
        """Return a full round's paired gain over the representative cases."""
        if self._paired is None or self.level == "quick" or not self._representative:
            return None
        return self._paired.change(self._representative)

    def _stored(
        self, collector: Collector, table: Table, policy: Policy, lab: Laboratory
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
            core=self._core(),
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
            again.results = {result.nodeid: result for result in lab.measure_again()}
            repeat = again.table()
            if repeat is None or len(repeat.rows) != len(table.rows):
                return judging.incomplete(self.policy, "a re-measurement lost cases")
            repeats = (*evidence.remeasurements, repeat.only(known))
            evidence = replace(evidence, remeasurements=repeats)
            verdict = decide_stored(evidence, policy)
        results = collector.in_order()
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
        self, verdict: Verdict, collector: Collector, lab: Laboratory
    ) -> tuple[Verdict, list[CaseProfile]]:
        """Profile a decided round where asked to, and let S4's rule judge the kernels' time."""
        ids = [result.nodeid for result in collector.in_order() if result.check == "PASS"]
        if not self._settings.profile or verdict.decision.leaves_open or not ids:
            return verdict, []
        found = lab.profile(ids)
        verdict = verdict.model_copy(update={"kernel_time": kernel_time(found)})
        if not self.policy.kernel_time or not verdict.decision.keeps or self.number == 1:
            return verdict, found
        versions = self._versions(self.campaign.incumbent())
        before = lab.profile(ids, (versions.root, versions.trees[0]))
        return judge_kernel_time(verdict, gpu_step_us(found), gpu_step_us(before)), found

    def _classes(self) -> Classes:
        return replace(super()._classes(), target=self._own_notes().target_class)

    def _own_notes(self) -> Notes:
        known = self.campaign.state.rounds.get(self.number)
        return known.notes.plus(self._notes) if known else self._notes

    def _failed_repairs(self) -> int:
        known = self.campaign.state.rounds.get(self.number)
        return known.failed_checks - 1 if known else -1

    def _extra_benefit(self) -> str | None:
        return self._own_notes().extra_benefit


def _noted(verdict: Verdict, note: str) -> dict[str, Any]:
    """Return what makes an accepted verdict one with a note."""
    return {"decision": Decision.ACCEPTED_WITH_NOTE, "reason": f"{verdict.reason}; {note}"}
