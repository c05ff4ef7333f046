"""The common part of the baseline and a candidate's round: their opening, and their record."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.attempt import Evidence
from pytest_kopt.campaign.history import stops, trend
from pytest_kopt.campaign.recording import record_attempt
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.case_rooflines import rooflines
from pytest_kopt.cases.details import with_details
from pytest_kopt.clock import now
from pytest_kopt.decide.verdict import Level
from pytest_kopt.devices.machine import this_machine
from pytest_kopt.schema.table import Row
from pytest_kopt.show import standing
from pytest_kopt.show.rooflines import write_profiles
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import carry_out
from pytest_kopt.trials.stages import Asked, Judged, OpenTrial


def open_round(asked: Asked) -> OpenTrial:
    """Return the round without its cases; BadInput where the campaign is not ready for it."""
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
    return OpenTrial(asked, title, number, notes=of_round.notes.plus(asked.notes))


def check_target_class(opened: OpenTrial, rows: Sequence[Row]) -> None:
    classes = opened.classes
    classes.target_among(classes.group({row.key: row.dims for row in rows}))


def profiled(judged: Judged) -> Judged:
    """Profile a decided round where asked to, unless nothing ran."""
    ran, is_open = judged.gathered.ran, judged.verdict.decision.leaves_open
    ids = ran.collector.passed()
    if not ran.opened.asked.settings.profile or ran.is_same or is_open or not ids:
        return judged
    return judged.profiled(ran.measurements.profile(ids, vendor=True))


def record_round(
    judged: Judged, begun_at: Level, facts: Mapping[str, Any], **figures: Any
) -> Closing:
    """Record the attempt, carry its verdict out, and return what the terminal shows.

    `facts` are what the session's evidence holds of this kind of round.
    """
    gathered, opened, begun = judged.gathered, judged.gathered.opened, judged.gathered.ran.begun
    asked, campaign = opened.asked, opened.campaign
    if not campaign.candidate().same_content(begun.kernel):
        changed = "the kernel files changed while they were measured"
        judged = judged.of(judging.incomplete(asked.policy, changed))
    lines = rooflines(gathered.results, asked.settings.workspace)
    judged = judged.flagged(*(line.over_declared for line in lines if line.over_declared)).saying(
        rooflines=lines, level=opened.level, thresholds=asked.policy.model_dump(mode="json")
    )
    judged = judged.saying(candidates=judged.candidates)
    judged = judged.of(with_details(judged.verdict, gathered.results, opened.number))
    assert gathered.harness is not None
    attempt = record_attempt(
        campaign,
        opened.number,
        started=asked.started,
        level=begun_at,
        evidence=evidence(judged, harness=asdict(gathered.harness), **facts),
        verdict=judged.verdict,
        trend=trend.figures(gathered.table) if gathered.table else None,
        notes=asked.notes,
        policy=asked.policy,
        **figures,
    )
    if judged.profiles:
        write_profiles(campaign.layout, opened.number, attempt.number, judged.profiles)
    carry_out(campaign, apply=asked.settings.apply)
    final = campaign.state.rounds[opened.number].last.verdict()
    assert final.attempt == attempt.number
    outlook = tuple(standing.closing_lines(campaign, asked.policy))
    return Closing(final, judged.detail or begun.blocked, judged.profiles, outlook)


def evidence(judged: Judged, **facts: Any) -> Evidence:
    """Return what was measured as it is kept; `facts` go into the session's, behind the others."""
    gathered, ran, paired = judged.gathered, judged.gathered.ran, judged.paired
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
        **facts,
    }
    return Evidence(
        kernel=ran.begun.kernel,
        results=gathered.results,
        table=gathered.table,
        session=session,
        pairs_csv=paired.pairs_csv if paired else "",
        benchmark_log=ran.begun.benchmark,
        candidates=[(raced.kernel, raced.table) for raced in ran.opened.raced],
    )
