"""Round 1, from top to bottom: every case is checked and measured, and what it finds is frozen.

Schema, case set and harness are those of the whole campaign from here on. Nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
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
    check_target_class,
    open_round,
    record_round,
)
from pytest_kopt.trials.stages import OpenTrial, Ran, gather
from pytest_kopt.trials.trees import builds_inline, built_meanwhile


class Baseline(CampaignTrial):
    """Round 1."""

    @property
    def preface(self) -> Sequence[str]:
        return list(tip_lines(self.campaign))

    def open(self) -> OpenTrial:
        asked, campaign = self.asked, self.campaign
        number, title, notes = open_round(asked)
        if number != 1:
            why = "another session decided the baseline meanwhile"
            raise BadInput(why, where="--kopt-round", legal=str(number))
        levels.always_full(asked.settings.level, "the baseline")
        # The session itself looks for its device.
        missing = prerequisites.gaps(campaign.manifest, campaign.root, elsewhere=True)
        if missing:
            raise BadInput("; ".join(missing), where="--kopt-round 1")
        opened = OpenTrial(asked, title, number, asked.watch.take(()), notes=notes)
        check_target_class(opened.classes, ())
        prerequisites.check_parses(campaign)
        return opened

    def prepare(self, held: ExitStack) -> None:
        """Have torch build for the comparisons to come, next to what it builds for the cases."""
        campaign = self.campaign
        sources = campaign.candidate().sources
        if builds_inline(sources.values()) and not campaign.manifest.rebuild_command:
            modules = self.asked.watch.modules(sources)
            confined = self.asked.settings.isolates
            held.enter_context(built_meanwhile(modules, campaign.layout.builds, confined=confined))

    def collected(self, opened: OpenTrial, ids: Sequence[str], collector: Collector) -> None:
        """Take the harness of the collected cases down: nothing has run yet."""
        opened.harness = self.asked.watch.take(ids)

    def conclude(self, ran: Ran) -> Closing:
        gather(ran)
        results, verdict = ran.results, _judge(ran)
        what = "fails as its xfail mark expects: the campaign leaves it out"
        left_out = [f"{nodeid} {what}" for nodeid in ran.collector.xfailed()]
        # The cases are frozen from here on: a round would carry this every time.
        excluded = {word for result in results for word in result.evidence.domain or ()}
        words = ", ".join(sorted(excluded.difference(USES)))
        narrow = [f"the cases exclude inputs by domain=: {words}"] if words else []
        notices = [f for f in judging.findings_of(results) if not f.rejects]
        tuned = tuning_flags(choices_of(results))
        flags = (*_editable(ran), *left_out, *narrow, *tuned)
        return record_round(ran, judging.flagged(verdict, [*notices, *flags]))


def _judge(ran: Ran) -> Verdict:
    collector, policy = ran.collector, ran.policy
    observed = [*judging.unfinished(collector, None, ran.interrupted)]
    if not observed or (collector.outside and not collector.results):
        _check_labels(ran)
    if ran.edits:
        changed = f"the harness changed while the baseline ran: {ran.edits[0]}"
        observed.append(Observation(Ground.SPOILED, changed))
    return by_ground(observed, policy) or _measured(ran).verdict(policy.name)


def _check_labels(ran: Ran) -> None:
    manifest, results, collector = ran.opened.campaign.manifest, ran.results, ran.collector
    labels = {**collector.outside, **{result.nodeid: result.label for result in results}}
    for shape in ran.opened.selected:
        if shape not in labels and shape not in labels.values():
            legal = dict.fromkeys(labels[name] for name in collector.order if name in labels)
            raise BadInput(f"{shape!r} names no case", where=levels.TARGET, legal=legal)
    named = names(results)
    if manifest.core_shapes != "all":
        levels.select(manifest.core_shapes, named, levels.CORE)
    levels.select(manifest.representative_shapes or (), named)


def _measured(ran: Ran) -> Observation:
    """Return that all cases are right and timed, or what one of them lacks."""
    opened, table, policy = ran.opened, ran.rows, ran.policy
    if wrong := wrong_rows(table, policy, failed_repairs=-1):
        first = next(result for result in ran.results if result.check != "PASS")
        what = f"{first.nodeid}: {in_a_line(first.diagnosis)}"
        step = f"the baseline has to be correct: {what}; correct that and run round 1 again"
        return replace(wrong, next_step=step)
    metrics = parse_primary(opened.campaign.manifest.primary_metric, table, policy.directions)
    if unusable := no_figure(table, metrics, policy):
        return Observation(Ground.UNSOUND, unusable.reason, unusable.next_step)
    totals = [
        Aggregate(metric=metric.name, better=metric.better, candidate=aggregate(table.rows, metric))
        for metric in metrics
    ]
    return Observation(
        Ground.FIRST,
        f"{len(table.rows)} case(s) PASS; the schema and the case set are frozen",
        f"change the kernel, then: `pytest --kopt-campaign {opened.campaign.name} "
        f"--kopt-round next`{_quick_words(ran)}",
        {
            "shapes": [*map(checked_shape, table.rows)],
            "aggregate": totals[0],
            "secondary": totals[1:],
            "classes": measured_classes(opened.classes, table, metrics[0]),
        },
    )


def _editable(ran: Ran) -> Iterator[str]:
    """Say so where a candidate may edit what it is judged by."""
    judging = observed_by(ran.results).judged_by
    if editable := sorted({*judging} & {*ran.opened.campaign.candidate().files}):
        yield (
            f"code in {editable[0]} draws the inputs or runs in the reference, and a candidate may "
            "edit that file: move the code to a file of its own, outside kernel_source"
        )


def _quick_words(ran: Ran) -> str:
    shapes = ran.opened.campaign.manifest.representative_shapes
    shapes = shapes or levels.proposal(ran.rows, ran.results)
    if not shapes:
        return ""
    return (
        f", which times {', '.join(shapes)} (representative_shapes in manifest.yaml: edit "
        "them before the first quick round)"
    )
