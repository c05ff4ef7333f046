"""The record that a session leaves: evidence first; with the decided event it counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_kopt.campaign import ledger, levels
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.attempt import Attempt, Evidence
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.kernel import sha256
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import FrozenSchema
from pytest_kopt.campaign.notes import NO_NOTES, Notes
from pytest_kopt.campaign.state import fold
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.clock import now
from pytest_kopt.decide.policy import STOP_LIMITS, Policy
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.roofline import efficiency
from pytest_kopt.schema.columns import fingerprint
from pytest_kopt.schema.table import Table, format_csv, write_atomically

#: What the decided event says as the verdict does.
_IN_SHORT = ["decision", "level", "reason", "next_step", "aggregate", "flags", "kernel_time"]


def record_attempt(
    campaign: Campaign,
    round: int,
    *,
    started: str,
    evidence: Evidence,
    verdict: Verdict,
    notes: Notes = NO_NOTES,
    policy: Policy | None = None,
    **figures: Any,
) -> Attempt:
    """Write the evidence of an attempt, then its events; with the decided event it counts.

    `policy` is the one it was judged by, None for the manifest's. `figures` are those of the
    decided event: `trend`, `paired` and `baseline`.

    A baseline freezes the schema into the manifest, and proposes representative shapes there unless
    some are set.
    """
    earlier = campaign.state.rounds.get(round)
    number = 1 + max(earlier.attempts, default=0) if earlier else 1
    directory = campaign.layout.attempt(round, number)
    common: dict[str, Any] = {"round": round, "attempt": number}
    verdict = verdict.saying(campaign=campaign.name, **common)
    hashes = _write(campaign.layout, directory, evidence, verdict)
    _, verdict_sha256 = hashes.popitem()
    if verdict.decision is Decision.BASELINE and evidence.table:
        _freeze(campaign, evidence.table, evidence.results)
    policy = policy or campaign.policy()
    before = [
        *_changes(campaign, policy),
        ledger.Opened(time=started, **common),
        ledger.Measured(time=now(), evidence=hashes, **common),
    ]
    decided = ledger.Decided(
        time=now(),
        **{name: getattr(verdict, name) for name in _IN_SHORT},
        efficiency=efficiency(verdict.rooflines) if verdict.rooflines else None,
        notes=notes,
        kernel=evidence.kernel.hashes,
        verdict_sha256=verdict_sha256,
        **figures,
        **common,
    )
    state = fold([*ledger.read(campaign.layout.ledger), decided])
    conditions = stops.holding(stops.check(campaign.name, state, campaign.manifest, policy))
    campaign.append(*before, decided.model_copy(update={"stops": conditions}))
    return campaign.state.rounds[round].attempts[number]


def record_final(
    campaign: Campaign, evidence: Evidence, verdict: Verdict, report: ledger.FinalReport
) -> Verdict:
    """Write the evidence of a comparison of best and baseline, then its event."""
    directory = campaign.layout.final(1 + len(campaign.state.finals))
    verdict = verdict.saying(campaign=campaign.name)
    hashes = _write(campaign.layout, directory, evidence, verdict)
    best = campaign.state.incumbent_round or 1
    copied = {name: getattr(verdict, name) for name in ("decision", "reason", "aggregate", "e2e")}
    final = ledger.Final(time=now(), best=best, **copied, evidence=hashes, report=report)
    campaign.append(final)
    return verdict


def record_no_idle_gpu(campaign: Campaign, refusal: AllGpusBusy, *, final: bool) -> None:
    """Record that the next round, or the final comparison, found no idle GPU."""
    campaign.append(
        ledger.NoIdleGpu(
            time=now(),
            round=None if final else campaign.state.next_round,
            minutes=refusal.minutes,
            in_the_way=list(refusal.in_the_way),
        )
    )


def _write(layout: Layout, directory: Path, evidence: Evidence, verdict: Verdict) -> dict[str, str]:
    """Write evidence and verdict; return SHA-256 by path below the campaign, the verdict's last."""
    if directory.exists():  # what a killed session left under this name: evidence is never lost
        earlier = len(list(directory.parent.glob(f"{directory.name}.cut-off-*")))
        directory.rename(directory.with_name(f"{directory.name}.cut-off-{earlier + 1}"))
    evidence.kernel.write(directory / "kernel_snapshot")
    results = [result.to_json() for result in evidence.results]
    document = {"session": evidence.session, "results": results}
    texts = {
        "evidence.json": json.dumps(document, indent=1) + "\n",
        "benchmark.csv": _csv(evidence.table),
        "pairs.csv": evidence.pairs_csv,
        "benchmark_command.log": evidence.benchmark_log,
    }
    for number, (kernel, table) in enumerate(evidence.candidates, start=1):
        kernel.write(directory / "candidates" / str(number) / "kernel_snapshot")
        texts[f"candidates/{number}/benchmark.csv"] = _csv(table)
    texts["verdict.json"] = verdict.model_dump_json(indent=1) + "\n"
    texts = {name: text for name, text in texts.items() if text}
    for name, text in texts.items():
        write_atomically(directory / name, text)
    place = directory.relative_to(layout.directory).as_posix()
    return {f"{place}/{name}": sha256(text.encode()) for name, text in texts.items()}


def _csv(table: Table | None) -> str:
    return format_csv(table.header, table.rows) if table else ""


def _changes(campaign: Campaign, policy: Policy) -> Iterator[ledger.Event]:
    """Yield what of the manifest and of the stop limits is not as it was last recorded."""
    manifest = campaign.manifest.model_dump(mode="json", by_alias=True)
    recorded = campaign.recorded_policy()
    limits = {key: recorded[key] for key in STOP_LIMITS if key in recorded}
    compared: list[tuple[ledger.KeysOf, dict[str, Any], dict[str, Any]]] = [
        ("manifest_changed", campaign.recorded_manifest(), manifest),
        ("policy_changed", limits, policy.model_dump()),
    ]
    for event, recorded_values, document in compared:
        values = {
            key: document.get(key)
            for key in recorded_values
            if document.get(key) != recorded_values[key]
        }
        if values:
            yield ledger.KeysChanged(time=now(), event=event, values=values)


def _freeze(campaign: Campaign, table: Table, results: Sequence[CaseResult]) -> None:
    frozen = FrozenSchema(header=",".join(table.header), sha256=fingerprint(table.header))
    shapes = campaign.manifest.representative_shapes or levels.proposal(table, results)
    update = {"csv_schema": frozen, "representative_shapes": shapes}
    campaign.manifest = campaign.manifest.model_copy(update=update)
    manifests.save(campaign.layout.manifest, campaign.manifest)
