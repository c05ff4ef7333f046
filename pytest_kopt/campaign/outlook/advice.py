"""Advice before the next round: what to read, what bounds the cases, what was learned."""

from __future__ import annotations

from typing import Any

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.memory import unmasked_rounds
from pytest_kopt.campaign.history.trend import route_of, untried
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.case_rooflines import rooflines
from pytest_kopt.cases.result import device_model_of
from pytest_kopt.knowledge.facts import product_facts
from pytest_kopt.knowledge.routing import Route
from pytest_kopt.roofline import Band, band, efficiency

ADVICE_VERSION = 1

_LESSONS = 5
#: What an agent or a person types next. README and SKILL.md name the same.
COMMANDS = {
    "kopt status": "where the campaign stands, and what is next",
    "pytest --kopt-round next": "measure and judge one change",
    "--kopt-candidates": "of several versions, have the best judged in one round",
    "kopt note": "what is only known after a round",
    "kopt report": "one file for people",
    "kopt bisect": "which commit made it slow",
    "kopt mcp": "these commands as tools of an agent",
}


_BANDS: dict[Band, str] = {
    "below 50 %": "structure: algorithm, passes over the data, instruction family, tile",
    "50 to 80 %": "pipeline, layout, work distribution",
    "80 to 100 %": "interleaving, epilogue, dispatch, tails; small gains, each proven",
    "above 100 %": "check FLOPs, bytes and ceilings first (a cache?); then robustness, other "
    "shapes, the backward, or stop",
}


def advice(campaign: Campaign) -> dict[str, Any]:
    """Return the advice as JSON-able data; masked rounds are not looked at."""
    manifest = campaign.manifest
    route = route_of(manifest)
    rounds = [round for round in unmasked_rounds(campaign.state) if round.number > 1]
    best = campaign.state.incumbent
    results = best.results() if best else []
    # Under the ceilings that are known by now.
    measured = rooflines(results, campaign.layout.workspace) if best else []
    device = device_model_of(results)
    about, facts = product_facts(manifest.target_gpu, manifest.target_model, device)
    reached = efficiency(measured)
    share = band(reached.pct) if reached.pct is not None else None
    tips_file = tips.path_of(campaign.home, manifest)
    return {
        "schema_version": ADVICE_VERSION,
        "campaign": campaign.name,
        "op": manifest.target_op,
        "gpu": manifest.target_gpu,
        "backend": manifest.target_backend,
        "area": {"op": route.op, "gpu": route.architecture, "backend": route.backend},
        "gaps": list(route.gaps),
        "project_skill": manifest.project_skill,
        "tips": [
            {"number": entry.number, "title": entry.title, **tips.fields(entry.text)}
            for entry in tips.entries(tips_file)
        ],
        "tips_file": str(tips_file.relative_to(campaign.home)) if tips_file.exists() else None,
        "reading": [
            {"path": str(route.root / page.path), "page": page.path, "why": page.why}
            for page in route.readings
        ],
        "facts": [f"{about}{':' if facts else ''}", *(fact.citation() for fact in facts)],
        "rooflines": [line.model_dump() for line in measured],
        "efficiency_pct": reached.pct,
        "efficiency": reached.why,
        "band": share,
        "band_advice": _BANDS[share] if share else None,
        "lessons": [_lesson(round) for round in rounds[-_LESSONS:]],
        "stagnation": _stagnation(rounds, route),
        "commands": COMMANDS,
    }


def _lesson(round: Round) -> str:
    decided, notes = round.last.outcome(), round.notes
    learned = notes.lesson or notes.key_finding or notes.root_cause or decided.reason
    tried = notes.change or notes.hypothesis or notes.summary or "not described"
    return f"round {round.number} {decided.decision}: {tried} -> {learned.splitlines()[0]}"


def _stagnation(rounds: list[Round], route: Route) -> dict[str, Any] | None:
    """Return the review that two roll-backs in a row ask for: a change of direction, no stop."""
    review = stops.review(rounds)
    if review is None:
        return None
    left = untried(route, rounds, stops.NEW_DIRECTIONS + 2)
    names = ("id", "title", "symptom", "change", "verify")
    return {
        **review.model_dump(),
        "disproved": [_lesson(round) for round in rounds[-review.rollbacks_in_a_row :]],
        "untried": [
            {**{name: getattr(direction, name) for name in names}, "page": direction.path}
            for direction in left
        ],
    }
