"""The document of `kopt status --json`, by its published schema, and the advice for a round."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from pytest_kopt.bundled import bundled
from pytest_kopt.campaign import tips
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.stops import Regression, Review, Stop
from pytest_kopt.campaign.history.trend import route_of, untried
from pytest_kopt.campaign.ledger import Final
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.case_rooflines import rooflines
from pytest_kopt.cases.result import device_model_of
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.grounds import Ground, Observation
from pytest_kopt.decide.inference import HighEnd, LowEnd
from pytest_kopt.decide.verdict import Decision, Level, NextAction, RaceCandidate
from pytest_kopt.figures import CHANGE, ends
from pytest_kopt.knowledge.facts import product_facts
from pytest_kopt.models import Document
from pytest_kopt.roofline import Band, band, efficiency

ADVICE_VERSION = 1
_LESSONS = 5
#: What an agent or a person types next. README and SKILL.md name the same.
COMMANDS = {
    "kopt status": "where the campaign stands, and what is next",
    "pytest --kopt-round next": "measure and judge one change",
    "--kopt-candidates": "of several versions, have the best judged in one round",
    "kopt note": "add notes to a finished round or to the next one",
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


#: What the status of a round takes from its verdict.
_OF_VERDICT = ("level", "decision", "reason", "next_step", "flags")
#: What a round without a verdict came to.
_CUT_OFF = Observation(Ground.SPOILED, "the session was cut off", "run the round again")


class RoundStatus(Document):
    """One round that was run."""

    round: int = Field(description="number of the round")
    attempts: int = Field(description="number of its attempts")
    open: bool = Field(description="whether another attempt may follow")
    level: Level = Field(description="scope: representative cases (quick) or all (full)")
    decision: Decision = Field(description="decision about the last attempt")
    reason: str = Field(description="the reason for the decision, as text")
    next_step: str = Field(description="the next step, as text")
    change_pct: float | None = Field(
        description="aggregate's change in percent over the current best of that time; "
        "positive is better. This figure decides, not the times of two rounds"
    )
    low_pct: LowEnd
    high_pct: HighEnd
    flags: list[str] = Field(description="remarks that decide nothing")
    notes: dict[str, Any] = Field(description="the keys of its notes that are given")

    @classmethod
    def of(cls, round: Round) -> RoundStatus:
        outcome = round.verdict or _CUT_OFF.verdict("")
        figures: dict[str, Any] = dict(zip(CHANGE, ends(outcome.aggregate), strict=True))
        return cls(
            round=round.number,
            attempts=len(round.attempts),
            open=round.is_open,
            **{name: getattr(outcome, name) for name in _OF_VERDICT},
            **figures,
            notes=round.notes.given(),
        )


class RoundCounters(Document):
    """How many rounds after the baseline ended how."""

    accepted: int = Field(description="number of accepted rounds")
    rolled_back: int = Field(description="number of rounds that kept nothing")
    by_decision: dict[Decision, int] = Field(description="the baseline among them")
    rollbacks_in_a_row: int = Field(description="number of the last rounds that kept nothing")
    regressions_in_a_row: int = Field(description="measured ones; max_regressions end a campaign")
    max_regressions: int = Field(description="the policy's limit of regressions in a row")


class QuickLevel(Document):
    """The cases of quick rounds."""

    shapes: list[str] = Field(description="labels of the cases")
    frozen_since_round: int | None = Field(
        description="first round with figures of these cases, which fixed them; null: none yet"
    )


class Status(Document):
    """`kopt status --json`; `schema_version` grows when a field changes its meaning or goes."""

    schema_version: Literal[1] = Field(default=1, description="version of this format")
    campaign: str = Field(description="name of the campaign")
    op: str = Field(description="target_op of the manifest")
    backend: str = Field(description="target_backend of the manifest")
    gpu: str = Field(description="target_gpu of the manifest")
    kernel: list[str] = Field(description="paths of the kernel files, below root")
    branch: str = Field(description="git branch of the campaign")
    root: str = Field(description="the project root in which rounds run")
    directory: str = Field(description="the campaign's own")
    allowed: list[str] = Field(description="the commands that would not be refused")
    running: dict[str, Any] | None = Field(
        description="running.json of the session that works on the campaign, or of one that a "
        "kernel ended which did not import"
    )
    next_action: NextAction = Field(description="the next step, for programs")
    next: str = Field(description="the next step, as text")
    obstacle: str | None = Field(description="what a person has to fix before a round can run")
    nothing_to_measure: str | None = Field(description="why: the kernel is the current best's code")
    edited: list[str] = Field(description="kernel files that are not the current best's")
    measured_elsewhere: str = Field(description="the other machine that measured the current best")
    ended: Literal["stopped", "abandoned"] | None = Field(
        description="how a person ended the campaign; null: it goes on"
    )
    incumbent_round: int | None = Field(description="the round of the current best")
    next_round: int | None = Field(description="null where a condition ends the campaign")
    open: bool = Field(description="whether the last round goes on")
    unapplied: int | None = Field(description="a round that is decided but not carried out")
    final: Final | None = Field(description="the last comparison of the best with the baseline")
    chain_breaks: list[str] = Field(
        description="accepted rounds whose metric fell by more than the noise, as text"
    )
    counters: RoundCounters = Field(description="number of rounds by outcome")
    recent_regressions: list[Regression] = Field(
        description="the last measured regressions in a row, oldest first"
    )
    stagnation: Review | None = Field(description="the review that is due; null: none")
    termination_check: list[Stop] = Field(description="conditions that end the campaign")
    quick: QuickLevel = Field(description="cases of quick rounds")
    candidates: list[RaceCandidate] = Field(description="of the last round, if it was a race")
    cases: list[Shape] = Field(description="of the last round")
    masked: list[str] = Field(description="versions of the iteration memory that are not shown")
    rounds: list[RoundStatus] = Field(description="every round that is not hidden")
    same_code: str = Field(description="of the last round: how many cases have nothing to compare")


def advice(campaign: Campaign) -> dict[str, Any]:
    """Return the advice as JSON-able data; masked rounds are not looked at."""
    manifest = campaign.manifest
    (pages, gaps), folder = route_of(manifest), bundled("knowledge")
    rounds = [round for round in campaign.state.unmasked_rounds() if round.number > 1]
    best = campaign.state.incumbent
    results = best.results() if best else []
    # Under the ceilings that are known by now.
    measured = rooflines(results, campaign.layout.workspace) if best else []
    device = device_model_of(results)
    about, facts = product_facts(manifest.target_gpu, manifest.target_model, device)
    reached = efficiency(measured)
    share = band(reached.pct) if reached.pct is not None else None
    tips_file = tips.path_of(campaign.root, manifest)
    return {
        "schema_version": ADVICE_VERSION,
        "campaign": campaign.name,
        "op": manifest.target_op,
        "gpu": manifest.target_gpu,
        "backend": manifest.target_backend,
        "gaps": gaps,
        "project_skill": manifest.project_skill,
        "tips": [
            {"number": entry.number, "title": entry.title, "takeaway": entry.takeaway}
            for entry in tips.entries(tips_file)
        ],
        "tips_file": str(tips_file.relative_to(campaign.root)) if tips_file.exists() else None,
        "reading": [{"path": str(folder / page), "page": page} for page in pages],
        "facts": [f"{about}{':' if facts else ''}", *(fact.citation() for fact in facts)],
        "rooflines": [line.model_dump() for line in measured],
        "efficiency_pct": reached.pct,
        "efficiency": reached.why,
        "band": share,
        "band_advice": _BANDS[share] if share else None,
        "lessons": [_lesson(round) for round in rounds[-_LESSONS:]],
        "stagnation": _stagnation(rounds, pages),
        "commands": COMMANDS,
    }


def _lesson(round: Round) -> str:
    decided, notes = round.last.outcome(), round.notes
    learned = notes.lesson or notes.key_finding or notes.root_cause or decided.reason
    tried = notes.change or notes.hypothesis or notes.summary or "not described"
    return f"round {round.number} {decided.decision}: {tried} -> {learned.splitlines()[0]}"


def _stagnation(rounds: list[Round], pages: list[str]) -> dict[str, Any] | None:
    """Return the review that two roll-backs in a row ask for: a change of direction, no stop."""
    review = stops.review(rounds)
    if review is None:
        return None
    return {
        **review.model_dump(),
        "disproved": [_lesson(round) for round in rounds[-review.rollbacks_in_a_row :]],
        "untried": [*map(asdict, untried(pages, rounds, stops.NEW_DIRECTIONS + 2))],
    }
