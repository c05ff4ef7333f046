"""Round 1, from top to bottom: every case is checked and measured, and what it finds is frozen.

Schema, case set and harness are those of the whole campaign from here on. Nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_kopt.campaign import levels, prerequisites
from pytest_kopt.cases.details import choices_of, in_a_line, tuning_flags
from pytest_kopt.cases.result import Collector, names, observed_by
from pytest_kopt.decide.classes import measured_classes
from pytest_kopt.decide.grounds import (
    Ground,
    Observation,
    by_ground,
    checked_shape,
    no_figure,
    wrong_rows,
)
from pytest_kopt.decide.verdict import Aggregate, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.nearby_shapes import USES
from pytest_kopt.schema.metrics import aggregate, parse_primary
from pytest_kopt.show.standing import Closing, tip_lines
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import (
    CampaignTrial,
    open_round,
    record_round,
)
from pytest_kopt.trials.trees import builds_inline, built_meanwhile


class Baseline(CampaignTrial):
    """Round 1."""

    def open(self) -> None:
        campaign = self.campaign
        open_round(self)
        self.preface = [*tip_lines(campaign)]
        if self.number != 1:
            why = "another session decided the baseline meanwhile"
            raise BadInput(why, where="--kopt-round", legal=str(self.number))
        levels.always_full(self.settings.level, "the baseline")
        # The session itself looks for its device.
        missing = prerequisites.gaps(campaign.manifest, campaign.root, elsewhere=True)
        if missing:
            raise BadInput("; ".join(missing), where="--kopt-round 1")
        self.harness = self.watch.take(())
        # Before there is a baseline no class can be the target.
        self.classes.target_among(())
        prerequisites.check_parses(campaign)

    def prepare(self) -> None:
        """Have torch build for the comparisons to come, next to what it builds for the cases."""
        campaign = self.campaign
        sources = campaign.candidate().sources
        if builds_inline(sources.values()) and not campaign.manifest.rebuild_command:
            modules = self.watch.modules(sources)
            confined = self.settings.isolates
            building = built_meanwhile(modules, campaign.layout.builds, confined=confined)
            self._held.enter_context(building)

    def collected(self, ids: Sequence[str], collector: Collector) -> None:
        """Take the harness of the collected cases down: nothing has run yet."""
        self.harness = self.watch.take(ids)

    def conclude(self) -> Closing:
        self.gather()
        results, verdict = self.results, _judge(self)
        what = "fails as its xfail mark expects: the campaign leaves it out"
        left_out = [f"{nodeid} {what}" for nodeid in self.collector.xfailed()]
        # The cases are frozen from here on: a round would carry this every time.
        excluded = {word for result in results for word in result.evidence.domain or ()}
        words = ", ".join(sorted(excluded.difference(USES)))
        narrow = [f"the cases exclude inputs by domain=: {words}"] if words else []
        notices = [f for f in judging.findings_of(results) if not f.rejects]
        tuned = tuning_flags(choices_of(results))
        flags = (*_editable(self), *left_out, *narrow, *tuned)
        return record_round(self, judging.flagged(verdict, [*notices, *flags]))


def _judge(trial: CampaignTrial) -> Verdict:
    collector, policy = trial.collector, trial.policy_of_cases
    observed = [*judging.unfinished(collector, None, trial.interrupted)]
    if not observed or (collector.outside and not collector.results):
        _check_labels(trial)
    if trial.edits:
        changed = f"the harness changed while the baseline ran: {trial.edits[0]}"
        observed.append(Observation(Ground.SPOILED, changed))
    return by_ground(observed, policy) or _measured(trial).verdict(policy.name)


def _check_labels(trial: CampaignTrial) -> None:
    manifest, results, collector = trial.campaign.manifest, trial.results, trial.collector
    labels = {**collector.outside, **{result.nodeid: result.label for result in results}}
    for shape in trial.selected:
        if shape not in labels and shape not in labels.values():
            legal = dict.fromkeys(labels[name] for name in collector.order if name in labels)
            raise BadInput(f"{shape!r} names no case", where=levels.TARGET, legal=legal)
    named = names(results)
    if manifest.core_shapes != "all":
        levels.select(manifest.core_shapes, named, levels.CORE)
    levels.select(manifest.representative_shapes or (), named)


def _measured(trial: CampaignTrial) -> Observation:
    """Return that all cases are right and timed, or what one of them lacks."""
    table, policy = trial.rows, trial.policy_of_cases
    if wrong := wrong_rows(table, policy, failed_repairs=-1):
        first = next(result for result in trial.results if result.check != "PASS")
        what = f"{first.nodeid}: {in_a_line(first.diagnosis)}"
        step = f"the baseline has to be correct: {what}; correct that and run round 1 again"
        return replace(wrong, next_step=step)
    metrics = parse_primary(trial.campaign.manifest.primary_metric, table, policy.directions)
    if unusable := no_figure(table, metrics, policy):
        return Observation(Ground.UNSOUND, unusable.reason, unusable.next_step)
    totals = [
        Aggregate(metric=metric.name, better=metric.better, candidate=aggregate(table.rows, metric))
        for metric in metrics
    ]
    return Observation(
        Ground.FIRST,
        f"{len(table.rows)} case(s) PASS; the schema and the case set are frozen",
        f"change the kernel, then: `pytest --kopt-campaign {trial.campaign.name} "
        f"--kopt-round next`{_quick_words(trial)}",
        {
            "shapes": [*map(checked_shape, table.rows)],
            "aggregate": totals[0],
            "secondary": totals[1:],
            "classes": measured_classes(trial.classes, table, metrics[0]),
        },
    )


def _editable(trial: CampaignTrial) -> Iterator[str]:
    """Say so where a candidate may edit what it is judged by."""
    judging = observed_by(trial.results).judged_by
    if editable := sorted({*judging} & {*trial.campaign.candidate().files}):
        yield (
            f"code in {editable[0]} draws the inputs or runs in the reference, and a candidate may "
            "edit that file: move the code to a file of its own, outside kernel_source"
        )


def _quick_words(trial: CampaignTrial) -> str:
    shapes = trial.campaign.manifest.representative_shapes
    shapes = shapes or levels.proposal(trial.rows, trial.results)
    if not shapes:
        return ""
    return (
        f", which times {', '.join(shapes)} (representative_shapes in manifest.yaml: edit "
        "them before the first quick round)"
    )
