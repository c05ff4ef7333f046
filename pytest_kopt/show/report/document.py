"""The content of a report as plain data: everything is read here, nothing is drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.trend import over_baseline
from pytest_kopt.campaign.outlook.status import status
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed, interval
from pytest_kopt.show.columns import CANDIDATES, CASES, CLASSES, TOTALS, Column, rows
from pytest_kopt.show.files.optimize_log import outlook
from pytest_kopt.show.words import kernel_rows

#: What a report shows of a verdict as it stands there.
_OF_VERDICT = {
    *("level", "decision", "reason", "next_step", "compare", "engine", "policy", "flags"),
    *("aggregate", "shapes", "rooflines"),
}
_DEVICE: Column = ("Device", lambda case: case.device or "")
_OF_ATTEMPT = {"attempt", "time", "decision", "reason"}
_KERNELS = ("Kernel", "First in", "What", "Incumbent", "Candidate")


def document(campaign: Campaign) -> dict[str, Any]:
    """Return a campaign's report as JSON-able data; BadInput without a round or its evidence."""
    rounds = list(_rounds(campaign))
    if not rounds:
        legal = f"pytest --kopt-campaign {campaign.name} --kopt-round 1"
        raise BadInput("no round is decided yet", where=f"campaign {campaign.name}", legal=legal)
    last, final = campaign.state.rounds[rounds[-1]["number"]], campaign.state.last_final
    report = final.report if final else None
    return {
        "campaign": campaign.name,
        "status": status(campaign).model_dump(mode="json"),
        "manifest": campaign.manifest.model_dump(mode="json", by_alias=True, exclude_none=True),
        "metric": next((round["metric"] for round in rounds if round["metric"]), ""),
        "rounds": rounds,
        # The kept gains multiplied.
        "gain": next((r["over_baseline"] for r in reversed(rounds) if r["keeps"]), 0.0),
        "quick_gains": any(round["keeps"] and round["level"] == "quick" for round in rounds),
        "rooflines": next((r["rooflines"] for r in reversed(rounds) if r["rooflines"]), []),
        "final": final.model_dump(mode="json") if final and report else None,
        "outlook": outlook(report) if report else [],
        "environment": environment(campaign, last),
    }


def environment(campaign: Campaign, round: Round) -> list[tuple[str, str]]:
    """Return where and with what a round was measured."""
    path = campaign.layout.attempt(round.number, round.last.number) / "evidence.json"
    try:
        evidence = json.loads(path.read_text())
    except FileNotFoundError:
        return [("evidence", "not kept with this campaign")]
    except (OSError, ValueError) as error:
        return [("evidence", f"cannot be read: {error}")]
    session = dict(evidence["session"])
    texts: dict[str, set[str]] = {}
    for text in evidence["results"]:
        case = CaseResult.from_json(text).evidence
        for key in ("device", "device_model", "engine", "torch", "threads"):
            if (value := getattr(case, key)) is not None:
                texts.setdefault(key, set()).add(str(value))
    names = ("started", "ended", "host", "python", "pytest_kopt")
    rows = [(name, str(session[name])) for name in names if name in session]
    rows += [(name, ", ".join(sorted(values))) for name, values in texts.items()]
    return rows + [(f"env {name}", value) for name, value in campaign.manifest.env.items()]


def _rounds(campaign: Campaign) -> Iterator[dict[str, Any]]:
    judged = [round for _, round in sorted(campaign.state.rounds.items()) if round.verdict]
    attempts = [(round, round.last.verdict()) for round in judged]
    gains = over_baseline(verdict for _, verdict in attempts)
    for (round, verdict), gain in zip(attempts, gains, strict=True):
        over = (gain.change_pct, gain.low_pct, gain.high_pct)
        names = ("over_baseline", "over_baseline_low", "over_baseline_high")
        yield {**_round(round, verdict), **dict(zip(names, over, strict=True))}


def _round(round: Round, verdict: Verdict) -> dict[str, Any]:
    notes, total, applied = round.notes, verdict.aggregate, verdict.applied
    tables = (
        rows([mean for mean in (total, *verdict.secondary) if mean], *TOTALS),
        rows(verdict.classes, *CLASSES),
        rows(verdict.shapes, *CASES, _DEVICE),
        rows(verdict.candidates, *CANDIDATES),
        [dict(zip(_KERNELS, row, strict=True)) for row in kernel_rows(verdict)],
        [{"Notes": name, "": str(value)} for name, value in notes.given().items()],
    )
    return {
        **verdict.model_dump(mode="json", include=_OF_VERDICT),
        "number": round.number,
        "time": round.last.started,
        "keeps": verdict.decision.keeps,
        "metric": total.metric if total else "",
        "change": changed(total.change_pct) if total else "—",
        "interval": interval(total.change_pct, total.low_pct, total.high_pct) if total else "",
        "tables": [[[*table[0]], *([*row.values()] for row in table)] for table in tables if table],
        "summary": notes.title or "",
        "commit": (applied.git_commit or "")[:12] if verdict.decision.keeps else "",
        "restored": applied.restored,
        "attempts": [
            attempt.decided.model_dump(mode="json", include=_OF_ATTEMPT)
            for attempt in round.attempts.values()
            if attempt.decided
        ],
    }
