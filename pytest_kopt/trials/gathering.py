"""The cases that a baseline froze, and a row for each from what arrived of them."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.result import CaseResult, ExpectedCase
from pytest_kopt.honesty.fingerprint import edits
from pytest_kopt.trials import judging
from pytest_kopt.trials.stages import Gathered, Ran


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
        levels.select(core, levels.names(frozen.values()), levels.CORE)
    return frozen


def gather(ran: Ran) -> Gathered:
    """Return what the cases and the harness came to, as kernel code has run; BadInput for drift."""
    opened, collector = ran.opened, ran.collector
    judging.refuse(collector.refusals)
    add_error_rows(collector, opened.expected)
    judging.fail_rows_of_failed_tests(collector)
    results, table = tuple(collector.in_order()), collector.table()
    if opened.harness is None:
        return Gathered(ran, results, table)
    watch, ids = opened.asked.watch, list(opened.frozen) or collector.order
    now = watch.take(ids)
    # What the baseline's cases have loaded belongs to the harness that it freezes.
    harness = watch.take(ids, results)
    return Gathered(ran, results, table, harness, tuple(edits(opened.harness, now)))


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
