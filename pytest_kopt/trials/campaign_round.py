"""What the baseline and every later round have in common: notes, the harness, and the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_kopt.campaign import notes as notes_file
from pytest_kopt.campaign import stops, tips
from pytest_kopt.campaign.campaign import AttemptRecord, Campaign
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.details import with_details
from pytest_kopt.cases.rooflines import rooflines
from pytest_kopt.decide.kernel_time import kernel_time
from pytest_kopt.decide.verdict import Level, Verdict
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.fingerprint import Fingerprint, edits
from pytest_kopt.options.settings import Settings
from pytest_kopt.profiling.table import CaseProfile
from pytest_kopt.schema.classes import Classes
from pytest_kopt.schema.table import Row
from pytest_kopt.show import projections, standing, trend
from pytest_kopt.show.closing import Closing
from pytest_kopt.show.profiles import write_profiles
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import CampaignTrial
from pytest_kopt.trials.harness import HarnessWatch, PytestSetup
from pytest_kopt.trials.trial import Measurements


class CampaignRound(CampaignTrial):
    """One attempt at one round.

    What differs between the baseline and a candidate is judging and what the record says of it.
    """

    def __init__(self, settings: Settings, campaign: Campaign, setup: PytestSetup) -> None:
        self._notes = notes_file.load(settings.notes) if settings.notes else Notes()
        self.level: Level = "full"
        self._watch = HarnessWatch(campaign, setup)
        self._edits: list[Finding] = []
        self._harness: Fingerprint
        super().__init__(settings, campaign)

    @property
    def title(self) -> str:
        cases = f", quick: {len(self.expected)} of {len(self.frozen)} cases"
        return (
            f"campaign {self.campaign.name}, round {self.number}, policy {self.policy.name}"
            f"{cases if self.level == 'quick' else ''}"
        )

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge, record and carry out; raises BadInput, with nothing changed, for drifted input."""
        begun = self.level
        self._complete_rows(collector)
        self._look_at_harness_again(collector)
        verdict = self._said_why_blocked(self._judge(collector, measurements, interrupted))
        verdict, profiles = self._profile(verdict, collector, measurements)
        if not self.campaign.candidate().same_content(self._kernel):
            verdict = judging.incomplete(
                self.policy, "the kernel files changed while they were measured"
            )
        lines = rooflines(collector.in_order(), self._settings.workspace)
        thresholds = self.policy.model_dump(mode="json")
        doubts = [line.over_declared for line in lines if line.over_declared]
        verdict = judging.flagged(verdict, doubts).model_copy(
            update={"rooflines": lines, "level": self.level, "thresholds": thresholds}
        )
        verdict = with_details(verdict, collector.in_order())
        table = collector.table()
        record = AttemptRecord(
            round=self.number,
            started=self.started,
            level=begun,
            evidence=self._evidence(collector, table),
            verdict=verdict,
            trend=trend.figures(table) if table else None,
            notes=self._notes,
            policy=self.policy,
        )
        attempt = self.campaign.record(self._completed(record, collector))
        if profiles:
            write_profiles(self.campaign.layout, self.number, attempt.number, profiles)
        self.campaign.settle(apply=self._settings.apply, beside=projections.performance)
        projections.refresh(self.campaign)
        final = self.campaign.verdict(self.campaign.state.rounds[self.number])
        assert final is not None and final.attempt == attempt.number
        outlook = standing.lines(self.campaign, self.policy)
        return Closing(final, self._detail, tuple(profiles), tuple(outlook))

    def _judge(self, collector: Collector, measurements: Measurements, interrupted: str) -> Verdict:
        """Return the verdict on what was collected."""
        raise NotImplementedError

    def _completed(self, record: AttemptRecord, collector: Collector) -> AttemptRecord:
        """Return the record with what only this kind of round knows."""
        raise NotImplementedError

    def _open(self) -> None:
        """Take the round's number; BadInput where the campaign is not ready for it."""
        settings, campaign = self._settings, self.campaign
        assert settings.round is not None and settings.round != "final"
        self.number = campaign.state.check_round(settings.round)
        tips.check(self._notes, self._known_round(), str(settings.notes))
        stops.refuse_another_round(campaign.termination_check(self.policy))
        campaign.check_ready()

    def _check_target_class(self, rows: Sequence[Row]) -> None:
        """Raise BadInput where the notes' target class is none of these rows'."""
        classes = self._classes()
        classes.target_among(classes.group({row.key: row.dims for row in rows}))

    def _look_at_harness_again(self, collector: Collector) -> None:
        """Take the harness down once more: kernel code has run meanwhile."""
        ids = list(self.frozen) or collector.order
        self._edits += edits(self._harness, self._watch.take(ids))
        self._harness = self._watch.take(ids, collector.in_order())

    def _profile(
        self, verdict: Verdict, collector: Collector, measurements: Measurements
    ) -> tuple[Verdict, list[CaseProfile]]:
        """Profile a decided round where asked to."""
        ids = collector.passed()
        if not self._settings.profile or verdict.decision.leaves_open or not ids:
            return verdict, []
        found = measurements.profile(ids, vendor=True)
        return verdict.model_copy(update={"kernel_time": kernel_time(found)}), found

    @property
    def _by_kernel_time(self) -> bool:
        return self.campaign.manifest.judges_by_kernel_time(self.policy.kernel_time)

    def _session(self, collector: Collector) -> dict[str, Any]:
        return {**super()._session(collector), "harness": self._harness.to_document()}

    def _classes(self) -> Classes:
        return replace(super()._classes(), target=self._own_notes().target_class)

    def _known_round(self) -> Round:
        return self.campaign.state.rounds.get(self.number, Round(self.number))

    def _own_notes(self) -> Notes:
        return self._known_round().notes.plus(self._notes)
