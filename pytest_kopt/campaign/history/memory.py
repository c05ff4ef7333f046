"""Iteration memory, rebuilt from ledger and evidence; v0 is the baseline, vN round N + 1."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
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


def parse_version(text: str) -> int:
    version = _VERSION.fullmatch(text if text.startswith("v") else f"v{text}")
    if not version:
        raise BadInput(f"{text!r} is no version", where="kopt memory", legal="v0, v1, …")
    return int(version[1])


def versions(state: CampaignState) -> list[int]:
    """Return the versions there are: one for every decided round."""
    return [round.version for round in state.decided_rounds()]


def unmasked_rounds(state: CampaignState) -> list[Round]:
    return [round for round in state.decided_rounds() if round.version not in state.masked]


def missing(state: CampaignState, version: int) -> BadInput:
    """Return the refusal of a version that does not exist."""
    legal = [f"v{there}" for there in versions(state)] or "none yet"
    return BadInput(f"v{version} does not exist", where="kopt memory", legal=legal)


def check_versions(state: CampaignState, named: Iterable[int], *, masked: bool) -> None:
    """Raise BadInput for a version that does not exist or is (un)masked already."""
    for version in named:
        if version not in versions(state):
            raise missing(state, version)
        if (version in state.masked) == masked:
            what = f"v{version} is {'hidden' if masked else 'not hidden'} already"
            raise BadInput(what, where="kopt memory")


def draw_restart(state: CampaignState, seed: int) -> list[int]:
    """Return about half of the unmasked versions, by a seed: never v0, nor the best one."""
    best = state.incumbent_round
    protected = {0, state.rounds[best].version if best else 0}
    free = [v for v in versions(state) if v not in state.masked and v not in protected]
    if not free:
        what = "there is no summary to hide: every other round is the baseline, the best or hidden"
        raise BadInput(what, where="kopt memory restart")
    return sorted(random.Random(seed).sample(free, (len(free) + 1) // 2))


def table_of(campaign: Campaign, number: int | None) -> Table | None:
    """Return the rows of a round's last attempt, None without a round or where no row arrived."""
    path = campaign.layout.artifacts(number) / "benchmark.csv"
    return read_csv(path) if path.is_file() else None


def document(campaign: Campaign, round: Round, profiles: Sequence[CaseProfile]) -> dict[str, Any]:
    """Return the content of `memory/v<N>.json`; what nothing tells is null or empty."""
    decided, verdict, notes = round.last.outcome(), round.last.verdict(), round.notes
    before = campaign.state.incumbent_as_of(round.number - 1)
    table, previous = (table_of(campaign, number) for number in (round.number, before))
    is_kept, lines = verdict.decision.keeps, verdict.rooflines
    snrs = _numbers(table, "out_snr")
    searched = {"query": notes.hypothesis, "finding": notes.evidence, "actionability": notes.change}
    hottest = [
        f"{case.label}: {row.kernel} {row.mean_us:.3f} us x {row.calls}"
        for case in profiles
        if (row := case.hottest)
    ]
    content: dict[str, Any] = {
        "version": f"v{round.version}",
        "round": round.number,
        "masked": round.version in campaign.state.masked,
        "timestamp": decided.time,
        "performance": _performance(verdict, table, previous),
        "optimization": {
            "action_category": "baseline"
            if verdict.decision is Decision.BASELINE
            else notes.bucket,
            "action_description": notes.tried,
            "expected_impact": notes.expected,
            "risks_and_rollback": f"{verdict.decision}: {notes.root_cause}"
            if notes.root_cause
            else None,
        },
        "profile_evidence": {
            "tool_used": ", ".join(sorted({case.tool for case in profiles})) or None,
            "evidence_summary": "; ".join(hottest) or None,
            "bottleneck_type": ", ".join(sorted({f"{line.bound}_bound" for line in lines})) or None,
            "evidence_chain": notes.hypothesis,
        },
        "correctness": {
            # The largest relative root-mean-square error: an SNR of s dB is 10^(-s/20).
            "rel_err": float(10 ** (-min(snrs) / 20)) if snrs else None,
            "status": "PASS" if all(case.check == "PASS" for case in verdict.shapes) else "FAIL",
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
        "pitfalls_and_fixes": list(_pitfalls(round, verdict)),
        "references": [
            {"source_type": "knowledge", "path_or_url": source, "description": "roofline"}
            for source in sorted({text for line in lines for text in line.sources})
        ],
        "quality_gate": {
            "result": "PASS" if is_kept else "FAIL",
            "failure_reason": None if is_kept else verdict.reason,
        },
        "git_commit_hash": verdict.applied.git_commit if is_kept else None,
    }
    if verdict.candidates:
        content["candidates"] = [raced.model_dump(mode="json") for raced in verdict.candidates]
    return content


def _performance(verdict: Verdict, table: Table | None, previous: Table | None) -> dict[str, Any]:
    latencies, means = _latencies(table), _means(table)
    if table is not None and previous is not None:  # a quick round has but some of the cases
        table, previous = table.only(previous.by_key()), previous.only(table.by_key())
    before, after = _means(previous), _means(table)
    shares: dict[str, list[float]] = {"TFLOPS": [], "GB/s": []}
    for line in verdict.rooflines:
        shares[line.unit] += [line.achieved_pct] if line.achieved_pct else []
    return {
        "latency_us": means["latency"],
        "latency_us_by_shape": latencies,
        "tflops": means["tflops"],
        "bandwidth_gbps": means["bandwidth"],
        "tflops_peak_utilization_pct": _mean(shares["TFLOPS"]),
        "bandwidth_peak_utilization_pct": _mean(shares["GB/s"]),
        "comparison_with_previous": {
            f"{name}_delta": None if new is None or old is None else new - old
            for (name, new), old in zip(after.items(), before.values(), strict=True)
        },
    }


def _means(table: Table | None) -> dict[str, float | None]:
    return {
        "latency": _mean([*_latencies(table).values()]),
        "tflops": _mean(_numbers(table, "Forward TFLOPS")),
        "bandwidth": _mean(_numbers(table, "Forward GB/s")),
    }


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _numbers(table: Table | None, column: str) -> list[float]:
    rows = table.passed if table and column in table.header else []
    return [number for row in rows if (number := row.number(column)) is not None]


def _latencies(table: Table | None) -> dict[str, float]:
    """Return each case's time of a step in microseconds."""
    columns = [name for name in _TIMES if table and name in table.header]
    latencies = {}
    for row in table.passed if table else ():
        times = [ms for name in columns if (ms := row.number(name)) is not None]
        if times:
            latencies[row.label] = sum(times) * 1e3
    return latencies


def _pitfalls(round: Round, verdict: Verdict) -> Iterator[dict[str, str | None]]:
    """Yield what went wrong: failed attempts, the roll-back's lesson, facts that are UNKNOWN."""

    def pitfall(kind: str, message: str, **more: str | None) -> dict[str, str | None]:
        unknown = dict.fromkeys(("root_cause", "fix_applied", "lesson"))
        return {"error_type": kind, "error_message": message, **unknown, **more}

    for attempt in round.attempts.values():
        decided = attempt.decided
        if decided and decided.decision.leaves_open:
            kind = "accuracy" if decided.decision is Decision.REPAIR else "runtime"
            yield pitfall(kind, f"attempt {attempt.number}: {decided.reason}")
    if not verdict.decision.keeps:
        yield pitfall(
            "performance",
            verdict.reason,
            root_cause=round.notes.root_cause,
            fix_applied="the incumbent was restored",
            lesson=round.notes.lesson,
        )
    for text in sorted({text for line in verdict.rooflines for text in line.unknown}):
        yield pitfall("hardware fact", text)
