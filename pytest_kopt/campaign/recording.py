"""What an attempt, a final comparison or a wait for a GPU leaves in a campaign.

Evidence is written first; the decided event is the commit point.
"""

from __future__ import annotations

from typing import Any

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.archive import Evidence
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.manifest import FrozenSchema
from pytest_kopt.campaign.notes import NO_NOTES, Notes
from pytest_kopt.campaign.state import Attempt, fold
from pytest_kopt.clock import now
from pytest_kopt.decide.policy import STOP_LIMITS, Policy
from pytest_kopt.decide.verdict import Decision, Level, Verdict
from pytest_kopt.devices.idle import NoIdleGpu
from pytest_kopt.roofline import efficiency
from pytest_kopt.schema.profile import fingerprint


def record_attempt(
    campaign: Campaign,
    round: int,
    *,
    started: str,
    level: Level,
    evidence: Evidence,
    verdict: Verdict,
    notes: Notes = NO_NOTES,
    policy: Policy | None = None,
    representative: list[str] | None = None,
    **told: Any,
) -> Attempt:
    """Write the evidence of an attempt, then its events; the decided event is the commit point.

    `level` is the one it began at; its verdict names the one that decided. `policy` is the one it
    was judged by, None for the manifest's. `told` are figures of the decided event: `trend`,
    `paired`, `paired_quick` and `baseline`.

    For the baseline the schema is frozen into the manifest too, where the proposed `representative`
    shapes are put down unless some are set.
    """
    known = campaign.state.rounds.get(round)
    number = 1 + max(known.attempts, default=0) if known else 1
    directory = campaign.layout.attempt(round, number)
    common: dict[str, Any] = {"round": round, "attempt": number}
    verdict = verdict.model_copy(update={"campaign": campaign.name, **common})
    kept = campaign.archive.keep(directory, evidence, verdict)
    if verdict.decision is Decision.BASELINE and evidence.table:
        _freeze(campaign, evidence.table.header, representative)
    policy = policy or campaign.policy()
    before = [
        *_manifest_changes(campaign),
        *_policy_changes(campaign, policy),
        ledger.Opened(time=started, level=level, **common),
        ledger.Measured(time=now(), evidence=kept.evidence, **common),
    ]
    decided = ledger.Decided(
        time=now(),
        decision=verdict.decision,
        level=verdict.level,
        reason=verdict.reason,
        next_step=verdict.next_step,
        aggregate=verdict.aggregate,
        flags=verdict.flags,
        kernel_time=verdict.kernel_time,
        efficiency=efficiency(verdict.rooflines) if verdict.rooflines else None,
        performance_log=policy.performance_log,
        notes=notes,
        kernel=evidence.kernel.hashes,
        verdict_sha256=kept.verdict_sha256,
        **told,
        **common,
    )
    campaign.append(*before, _with_stops(campaign, decided, policy))
    return campaign.state.rounds[round].attempts[number]


def record_final(
    campaign: Campaign, evidence: Evidence, verdict: Verdict, report: ledger.FinalReport
) -> Verdict:
    """Write the evidence of a comparison of best and baseline, then its event."""
    directory = campaign.layout.final(1 + len(campaign.state.finals))
    verdict = verdict.model_copy(update={"campaign": campaign.name})
    kept = campaign.archive.keep(directory, evidence, verdict)
    campaign.append(
        ledger.Final(
            time=now(),
            best=campaign.state.incumbent_round or 1,
            decision=verdict.decision,
            reason=verdict.reason,
            aggregate=verdict.aggregate,
            evidence={**kept.evidence, kept.verdict_path: kept.verdict_sha256},
            report=report,
        )
    )
    return verdict


def record_no_idle_gpu(
    campaign: Campaign, found: NoIdleGpu, *, final: bool, policy: Policy
) -> None:
    """Record that the next round, or the final comparison, found no idle GPU."""
    campaign.append(
        ledger.NoIdleGpu(
            time=now(),
            round=None if final else campaign.state.next_round,
            minutes=found.minutes,
            in_the_way=list(found.in_the_way),
            performance_log=policy.performance_log,
        )
    )


def _manifest_changes(campaign: Campaign) -> list[ledger.Event]:
    """Return the event of keys that changed since they were last recorded, if any did."""
    known = campaign.recorded_manifest()
    now_ = campaign.manifest.model_dump(mode="json", by_alias=True)
    values = {key: now_.get(key) for key in known if now_.get(key) != known[key]}
    return [ledger.ManifestChanged(time=now(), values=values)] if values else []


def _policy_changes(campaign: Campaign, policy: Policy) -> list[ledger.Event]:
    """Return the event of stop limits that are not those last recorded, if any."""
    known = campaign.recorded_policy()
    values = {
        key: getattr(policy, key)
        for key in STOP_LIMITS
        if key in known and known[key] != getattr(policy, key)
    }
    return [ledger.PolicyChanged(time=now(), values=values)] if values else []


def _with_stops(campaign: Campaign, decided: ledger.Decided, policy: Policy) -> ledger.Decided:
    """Return the event with the conditions that hold once it is recorded."""
    state = fold([*ledger.read(campaign.layout.ledger), decided])
    found = stops.check(campaign.name, state, campaign.manifest, policy)
    return decided.model_copy(update={"stops": stops.holding(found)})


def _freeze(campaign: Campaign, header: tuple[str, ...], representative: list[str] | None) -> None:
    frozen = FrozenSchema(header=",".join(header), sha256=fingerprint(header))
    shapes = campaign.manifest.representative_shapes or representative
    update = {"csv_schema": frozen, "representative_shapes": shapes}
    campaign.manifest = campaign.manifest.model_copy(update=update)
    manifests.save(campaign.layout.manifest, campaign.manifest)
