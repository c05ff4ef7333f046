"""Iteration memory, rebuilt from ledger and evidence; v0 is the baseline, vN round N + 1."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.profiling.kernel_table import CaseProfile
from pytest_kopt.roofline import TARGET_PCT
from pytest_kopt.schema.table import Table, read_csv

_VERSION = re.compile(r"v(\d+)")
_TIMES = ("Forward Time (ms)", "Backward Time (ms)", "Time (ms)")


def version_of(number: int) -> int:
    return number - 1


def parse_version(text: str) -> int:
    found = _VERSION.fullmatch(text if text.startswith("v") else f"v{text}")
    if not found:
        raise BadInput(f"{text!r} is no version", where="kopt memory", legal="v0, v1, …")
    return int(found[1])


def versions(state: CampaignState) -> list[int]:
    """Return the versions there are: one for every decided round."""
    return [version_of(item.number) for item in state.decided_rounds()]


def unmasked_rounds(state: CampaignState) -> list[Round]:
    return [item for item in state.decided_rounds() if version_of(item.number) not in state.masked]


def check_versions(state: CampaignState, wanted: Iterable[int], *, masked: bool) -> None:
    """Raise BadInput for a version that does not exist or is (un)masked already."""
    there = versions(state)
    for version in wanted:
        if version not in there:
            legal = [f"v{known}" for known in there] or "none yet"
            raise BadInput(f"v{version} does not exist", where="kopt memory", legal=legal)
        if (version in state.masked) == masked:
            what = f"v{version} is {'masked' if masked else 'not masked'} already"
            raise BadInput(what, where="kopt memory")


def draw_restart(state: CampaignState, seed: int) -> list[int]:
    """Return about half of the unmasked versions, by a seed: never v0, nor the best one."""
    best = state.incumbent_round
    kept = {0, version_of(best) if best else 0}
    free = [v for v in versions(state) if v not in state.masked and v not in kept]
    if not free:
        legal = "rounds beside the baseline and the best one"
        raise BadInput("there is no memory to mask", where="kopt memory restart", legal=legal)
    return sorted(random.Random(seed).sample(free, (len(free) + 1) // 2))


def table_of(campaign: Campaign, number: int) -> Table | None:
    """Return the rows of a round's last attempt, None where no row arrived."""
    path = campaign.layout.artifacts(number) / "benchmark.csv"
    return read_csv(path) if path.is_file() else None


def document(campaign: Campaign, item: Round, profiles: Sequence[CaseProfile]) -> dict[str, Any]:
    """Return the content of `memory/v<N>.json`; what nothing tells is null or empty."""
    verdict, table = item.last.verdict(), table_of(campaign, item.number)
    before = campaign.state.incumbent_as_of(item.number - 1)
    previous = table_of(campaign, before) if before else None
    notes, lines = item.notes, verdict.rooflines
    baseline, kept = verdict.decision is Decision.BASELINE, verdict.decision.keeps
    snrs = _numbers(table, "out_snr")
    hot = [
        f"{case.label}: {row.kernel} {row.mean_us:.3f} us x {row.calls}"
        for case in profiles
        if (row := case.hottest)
    ]
    bounds = sorted({f"{line.bound}_bound" for line in lines})
    searched = {"query": notes.hypothesis, "finding": notes.evidence, "actionability": notes.change}
    told: dict[str, Any] = {
        "version": f"v{version_of(item.number)}",
        "round": item.number,
        "masked": version_of(item.number) in campaign.state.masked,
        "timestamp": item.verdict.time if item.verdict else None,
        "performance": _performance(verdict, table, previous),
        "optimization": {
            "action_category": "baseline" if baseline else notes.bucket,
            "action_description": notes.tried,
            "expected_impact": notes.expected,
            "risks_and_rollback": f"{verdict.decision}: {notes.root_cause}"
            if notes.root_cause
            else None,
        },
        "profile_evidence": {
            "tool_used": ", ".join(sorted({case.tool for case in profiles})) or None,
            "evidence_summary": "; ".join(hot) or None,
            "bottleneck_type": ", ".join(bounds) or None,
            "evidence_chain": notes.hypothesis,
        },
        "correctness": {
            # The largest relative root-mean-square error: an SNR of s dB is 10^(-s/20).
            "rel_err": float(10 ** (-min(snrs) / 20)) if snrs else None,
            "status": "PASS" if all(s.check == "PASS" for s in verdict.shapes) else "FAIL",
        },
        "isa_metric_progress": [
            {
                "metric": f"{line.label} {line.way}: share of the attainable rate (%)",
                "target": TARGET_PCT,
                "current": line.achieved_pct,
                "met": (line.achieved_pct or 0) >= TARGET_PCT,
            }
            for line in lines
        ],
        "search_log": [{"source": "notes", **searched}] if notes.evidence else [],
        "pitfalls_and_fixes": _pitfalls(item, verdict),
        "references": [
            {"source_type": "knowledge", "path_or_url": source, "description": "roofline"}
            for source in sorted({text for line in lines for text in line.sources})
        ],
        "quality_gate": {
            "result": "PASS" if kept else "FAIL",
            "failure_reason": None if kept else verdict.reason,
        },
        "git_commit_hash": verdict.applied.git_commit if kept else None,
    }
    if verdict.candidates:
        told["candidates"] = [raced.model_dump(mode="json") for raced in verdict.candidates]
    return told


def _performance(verdict: Verdict, table: Table | None, previous: Table | None) -> dict[str, Any]:
    now, new, old = _figures(table), table, previous
    if new is not None and old is not None:  # a quick round has but some of the cases
        new, old = new.only(old.by_key()), old.only(new.by_key())
    both = [(name, figure, _figures(old)[name]) for name, figure in _figures(new).items()]
    shares: dict[str, list[float]] = {"TFLOPS": [], "GB/s": []}
    for line in verdict.rooflines:
        shares[line.unit] += [line.achieved_pct] if line.achieved_pct else []
    return {
        "latency_us": now["latency"],
        "latency_us_by_shape": _latencies(table),
        "tflops": now["tflops"],
        "bandwidth_gbps": now["bandwidth"],
        "tflops_peak_utilization_pct": _mean(shares["TFLOPS"]),
        "bandwidth_peak_utilization_pct": _mean(shares["GB/s"]),
        "comparison_with_previous": {
            f"{name}_delta": None if after is None or before is None else after - before
            for name, after, before in both
        },
    }


def _figures(table: Table | None) -> dict[str, float | None]:
    return {
        "latency": _mean([*_latencies(table).values()]),
        "tflops": _mean(_numbers(table, "Forward TFLOPS")),
        "bandwidth": _mean(_numbers(table, "Forward GB/s")),
    }


def _mean(found: Sequence[float]) -> float | None:
    return sum(found) / len(found) if found else None


def _numbers(table: Table | None, column: str) -> list[float]:
    if table is None or column not in table.header:
        return []
    return [value for row in table.passed if (value := row.number(column)) is not None]


def _latencies(table: Table | None) -> dict[str, float]:
    """Return each case's time of a step in microseconds."""
    found = {}
    columns = [name for name in _TIMES if table and name in table.header]
    for row in table.passed if table else ():
        times = [value for name in columns if (value := row.number(name)) is not None]
        if times:
            found[row.label] = sum(times) * 1e3
    return found


def _pitfalls(item: Round, verdict: Verdict) -> list[dict[str, str | None]]:
    """Return what went wrong: failed attempts, the roll-back's lesson, facts that are UNKNOWN."""
    notes = item.notes
    found: list[tuple[str | None, ...]] = []
    for attempt in item.attempts.values():
        decided = attempt.decided
        if decided and decided.decision.leaves_open:
            kind = "accuracy" if decided.decision is Decision.REPAIR else "runtime"
            found.append((kind, f"attempt {attempt.number}: {decided.reason}"))
    if not verdict.decision.keeps:
        fixed = "the incumbent was restored"
        found.append(("performance", verdict.reason, notes.root_cause, fixed, notes.lesson))
    unknown = sorted({text for line in verdict.rooflines for text in line.unknown})
    keys = ("error_type", "error_message", "root_cause", "fix_applied", "lesson")
    found += [("hardware fact", text) for text in unknown]
    return [dict(zip_longest(keys, told)) for told in found]
