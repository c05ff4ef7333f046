"""Round 1: every case is checked and measured, and what it finds is frozen for the campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_kopt.campaign import hypothesis, levels
from pytest_kopt.campaign.campaign import AttemptRecord
from pytest_kopt.campaign.prerequisites import tree_gaps
from pytest_kopt.campaign.workspace import extraction
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.classes import measured_classes
from pytest_kopt.decide.gates import checked_shape, correctness_verdict, metrics_verdict
from pytest_kopt.decide.kernel_time import ON_CPU, kernel_time, require_kernel_time
from pytest_kopt.decide.verdict import Aggregate, Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.transfer import bucket_findings
from pytest_kopt.processes.worker_orders import WorkerOrders
from pytest_kopt.profiling.table import CaseProfile
from pytest_kopt.schema.metrics import aggregate, parse_primary
from pytest_kopt.show.tips import lines as known_tips
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_round import CampaignRound
from pytest_kopt.trials.trial import Measurements


class BaselineRound(CampaignRound):
    """Freezes schema, case set and harness; compared with nothing."""

    runs_benchmark = True

    @property
    def preface(self) -> Sequence[str]:
        return list(known_tips(self.campaign))

    @property
    def wants_replicas(self) -> bool:
        """A baseline is compared with nothing."""
        return False

    def orders(self, device: str, session_seed: int) -> WorkerOrders:
        """Return the orders of the workers: here the target shapes are selected."""
        shapes = self.campaign.manifest.target_shapes
        selected = () if shapes == "all" else tuple(shapes)
        return replace(super().orders(device, session_seed), selected=selected)

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Take the harness of the collected cases down: it is frozen here."""
        super().check_collection(ids, collector, filtered)
        self._harness = self._watch.take(ids)

    def _validate(self) -> None:
        self._open()
        if self.number != 1:
            raise BadInput(
                "another session decided the baseline meanwhile",
                where="--kopt-round",
                legal=str(self.number),
            )
        levels.always_full(self._settings.level, "the baseline")
        campaign = self.campaign
        different = [
            *tree_gaps(campaign.manifest, campaign.root, campaign.repository),
            *extraction.edited(campaign.manifest, campaign.root),
        ]
        if different:
            raise BadInput("; ".join(different), where="--kopt-round 1")
        self._check_target_class(())
        hypothesis.check_parses(self.campaign)
        self._harness = self._watch.take(())

    def _judge(self, collector: Collector, measurements: Measurements, interrupted: str) -> Verdict:
        wanted = [nodeid for nodeid in collector.order if nodeid not in collector.skipped]
        broken = judging.cut_off(collector, wanted, interrupted, self.policy)
        if broken is None or (collector.outside and not collector.results):
            self._check_labels(collector)
        if self._edits and not interrupted:
            verdict = judging.incomplete(
                self.policy, f"the harness changed while the baseline ran: {self._edits[0]}"
            )
        else:
            verdict = broken or self._measured(collector)
        return judging.flagged(verdict, self._notices(collector.in_order()))

    def _check_labels(self, collector: Collector) -> None:
        """Raise BadInput for target, core or representative shapes that name no case."""
        manifest, results = self.campaign.manifest, collector.in_order()
        labels = {**collector.outside, **{result.nodeid: result.label for result in results}}
        for shape in () if manifest.target_shapes == "all" else manifest.target_shapes:
            if shape not in labels and shape not in labels.values():
                legal = dict.fromkeys(labels[name] for name in collector.order if name in labels)
                raise BadInput(f"{shape!r} names no case", where=levels.TARGET, legal=legal)
        found = levels.names(results)
        if manifest.core_shapes != "all":
            levels.select(manifest.core_shapes, found, levels.CORE)
        levels.select(manifest.representative_shapes or (), found)

    def _measured(self, collector: Collector) -> Verdict:
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
        if self._by_kernel_time and judging.on_cpu(results):
            return judging.incomplete(self.policy, *ON_CPU)
        text = self.campaign.manifest.primary_metric
        metrics = parse_primary(text, table, policy.directions)
        unusable = metrics_verdict(table, metrics, self.policy)
        if unusable:
            return judging.incomplete(self.policy, unusable.reason, unusable.next_step)
        totals = [
            Aggregate(
                metric=metric.name,
                better=metric.better,
                candidate=aggregate(table.rows, metric),
            )
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

    def _profile(
        self, verdict: Verdict, collector: Collector, measurements: Measurements
    ) -> tuple[Verdict, list[CaseProfile]]:
        """Profile as asked to; every case has a GPU kernel time where later rounds need one."""
        verdict, found = super()._profile(verdict, collector, measurements)
        if not self._by_kernel_time or verdict.decision is not Decision.BASELINE:
            return verdict, found
        found = found or measurements.profile(collector.passed(), vendor=False)
        verdict = verdict.model_copy(update={"kernel_time": kernel_time(found)})
        return require_kernel_time(verdict, found), found

    def _notices(self, results: Sequence[CaseResult]) -> list[str]:
        """Return what the checks found; nothing rejects a baseline."""
        found = [found for result in results for found in result.findings]
        found += bucket_findings(self._own_notes().claim, found)
        return [str(item) for item in found if not item.rejects]

    def _completed(self, record: AttemptRecord, collector: Collector) -> AttemptRecord:
        """Propose the representative shapes along with a baseline that stands."""
        if record.verdict.decision is not Decision.BASELINE:
            return record
        return replace(record, representative=self._proposed(collector))

    def _proposed(self, collector: Collector) -> list[str] | None:
        """Return the representative shapes of a new baseline: the user's, else the plugin's."""
        shapes, table = self.campaign.manifest.representative_shapes, collector.table()
        return shapes or (levels.proposal(table, collector.in_order()) if table else None)

    def _quick_words(self, collector: Collector) -> str:
        shapes = self._proposed(collector)
        if not shapes:
            return ""
        return (
            f", which measures {', '.join(shapes)} (representative_shapes in manifest.yaml: edit "
            "them before the first quick round)"
        )
