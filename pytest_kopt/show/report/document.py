"""What a report shows, as plain data: everything is read here, nothing is drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.chain import over_baseline
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.verdict import Aggregate, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed, figure, interval
from pytest_kopt.show.files import final_report
from pytest_kopt.show.status import status
from pytest_kopt.show.words import CANDIDATES, candidate_rows, kernel_rows


def document(campaign: Campaign) -> dict[str, Any]:
    """Return a campaign's report as JSON-able data; texts stand as the terminal writes them.

    Raises BadInput before the first decided round and for evidence that is not the ledger's.
    """
    rounds = list(_rounds(campaign))
    if not rounds:
        raise BadInput(
            "no round is decided yet",
            where=f"campaign {campaign.name}",
            legal=f"pytest --kopt-campaign {campaign.name} --kopt-round 1",
        )
    last = campaign.state.rounds[rounds[-1]["number"]]
    return {
        "campaign": campaign.name,
        "status": status(campaign),
        "manifest": campaign.manifest.model_dump(mode="json", by_alias=True, exclude_none=True),
        "metric": next((item["metric"] for item in rounds if item["metric"]), ""),
        "rounds": rounds,
        "gain": best_gain(rounds),
        "quick_gains": any(item["keeps"] and item["level"] == "quick" for item in rounds),
        "rooflines": next(
            (item["rooflines"] for item in reversed(rounds) if item["rooflines"]), []
        ),
        "final": _final(campaign),
        "environment": environment(campaign, last),
    }


def _final(campaign: Campaign) -> dict[str, Any] | None:
    """Return the last final report, None before the first."""
    final = campaign.state.finals[-1] if campaign.state.finals else None
    if final is None or final.report is None:
        return None
    report = final.report
    return {
        "time": final.time,
        "best": final.best,
        "outlook": final_report.outlook(report),
        "audit": [
            {
                "round": item.round,
                "bucket": item.bucket or "—",
                "benchmark": changed(item.benchmark_pct),
                "real": changed(item.credited_pct),
                "decision": item.decision,
            }
            for item in report.audit
        ],
    }


def best_gain(rounds: list[dict[str, Any]]) -> float:
    """Return the incumbent's gain over the baseline in percent: the kept gains multiplied."""
    return float(next((r["over_baseline"] for r in reversed(rounds) if r["keeps"]), 0.0))


def environment(campaign: Campaign, item: Round) -> list[tuple[str, str]]:
    """Return where and with what a round was measured."""
    path = campaign.layout.attempt(item.number, item.last.number) / "evidence.json"
    try:
        evidence = json.loads(path.read_text())
    except FileNotFoundError:
        return [("evidence", "not kept with this campaign")]
    except (OSError, ValueError) as error:
        return [("evidence", f"cannot be read: {error}")]
    session = dict(evidence["session"])
    found: dict[str, set[str]] = {}
    for text in evidence["results"]:
        own = CaseResult.from_json(text).evidence
        told = {
            "device": own.device,
            "device_model": own.device_model,
            "engine": own.engine,
            "torch": own.torch,
            "threads": own.threads,
        }
        for key, value in told.items():
            if value is not None:
                found.setdefault(key, set()).add(str(value))
    names = ("started", "ended", "host", "python", "pytest_kopt")
    rows = [(name, str(session[name])) for name in names if name in session]
    rows += [(name, ", ".join(sorted(values))) for name, values in found.items()]
    return rows + [(f"env {name}", value) for name, value in campaign.manifest.env.items()]


def _rounds(campaign: Campaign) -> Iterator[dict[str, Any]]:
    rounds = [campaign.state.rounds[number] for number in sorted(campaign.state.rounds)]
    found = [(item, verdict) for item in rounds if (verdict := campaign.verdict(item))]
    gains = over_baseline(verdict for _, verdict in found)
    for (item, verdict), gain in zip(found, gains, strict=True):
        yield {
            **_round(item, verdict),
            "over_baseline": gain.change_pct,
            "over_baseline_low": gain.low_pct,
            "over_baseline_high": gain.high_pct,
        }


def _round(item: Round, verdict: Verdict) -> dict[str, Any]:
    attempt = item.last
    total = verdict.aggregate
    return {
        "number": item.number,
        "time": attempt.started,
        "level": verdict.level,
        "decision": str(verdict.decision),
        "keeps": verdict.decision.keeps,
        "reason": verdict.reason,
        "next": verdict.next_step,
        "compare": verdict.compare,
        "engine": verdict.engine or "-",
        "policy": verdict.policy,
        "metric": total.metric if total else "",
        "change_pct": total.change_pct if total else None,
        "low_pct": total.low_pct if total else None,
        "high_pct": total.high_pct if total else None,
        "change": changed(total.change_pct) if total else "—",
        "interval": interval(total.low_pct, total.high_pct) if total else "",
        "aggregates": [_aggregate(each) for each in (total, *verdict.secondary) if each],
        "shapes": [
            {
                "label": shape.label,
                "dims": ", ".join(f"{name}={value}" for name, value in shape.dims.items()),
                "check": shape.check,
                "change_pct": shape.change_pct,
                "low_pct": shape.low_pct,
                "high_pct": shape.high_pct,
                "change": changed(shape.change_pct),
                "interval": interval(shape.low_pct, shape.high_pct),
                "status": shape.status,
                "device": shape.device or "",
            }
            for shape in verdict.shapes
        ],
        "classes": [
            {
                "name": found.name,
                "cases": str(found.cases),
                "incumbent": figure(found.incumbent),
                "candidate": figure(found.candidate),
                "change": changed(found.change_pct),
                "interval": interval(found.low_pct, found.high_pct),
                "status": found.status,
            }
            for found in verdict.classes
        ],
        "flags": verdict.flags,
        "kernels": kernel_rows(verdict),
        "candidates": [CANDIDATES, *candidate_rows(verdict)] if verdict.candidates else [],
        "notes": [[name, str(value)] for name, value in item.notes.given().items()],
        "summary": item.notes.summary or item.notes.change or item.notes.hypothesis or "",
        "commit": (verdict.applied.git_commit or "")[:12] if verdict.decision.keeps else "",
        "restored": verdict.applied.restored,
        "attempts": [
            {
                "number": each.number,
                "time": each.decided.time,
                "decision": str(each.decided.decision),
                "reason": each.decided.reason,
            }
            for each in item.attempts.values()
            if each.decided
        ],
        "rooflines": [found.model_dump(mode="json") for found in verdict.rooflines],
    }


def _aggregate(total: Aggregate) -> dict[str, str]:
    return {
        "metric": total.metric,
        "incumbent": figure(total.incumbent),
        "candidate": figure(total.candidate),
        "change": changed(total.change_pct),
        "interval": interval(total.low_pct, total.high_pct),
    }
