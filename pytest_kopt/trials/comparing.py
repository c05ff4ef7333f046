"""The candidate compared with another version of its kernel: paired, or by stored figures."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.history.trend import chain_of_best
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.campaign.running import COMPARING
from pytest_kopt.cases.order import CANDIDATE
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.decide.conclusion import VersionFacts
from pytest_kopt.decide.grounds import (
    Observation,
    by_ground,
    checked_shape,
    incomplete,
    no_figure,
)
from pytest_kopt.decide.inference import percent
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.stored import StoredEvidence, decide_stored, remeasurements_needed
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.devices.machine import elsewhere
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.credit import examine
from pytest_kopt.paired.judge import Caught, Refused
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.pairing import Criteria, PairedResult, compare
from pytest_kopt.paired.runner import Died
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.schema.metrics import parse_primary
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import CampaignTrial

#: By so much, as a log-ratio, the current best may be slower than when it was accepted. A campaign
#: adds up small errors of its rounds, and a machine differs from day to day.
_SLOWER = math.log(1.1)
_REPLICATES = 2


def compare_paired(
    trial: CampaignTrial, opponent: KernelVersion, *, is_final: bool = False
) -> tuple[PairedResult | None, Observation | None, str]:
    """Compare with another version in fresh processes; BadInput where they cannot be together.

    Returns the result, an observation that comes before it, and the stack of a case that ended its
    processes. A candidate that does has failed that case, as by a mistake near its inputs. The
    final comparison measures both operating points, whatever it decides.
    """
    results, table, policy = trial.results, trial.rows, trial.policy_of_cases
    campaign = trial.campaign
    metrics = parse_primary(campaign.manifest.primary_metric, table, policy.directions)
    if unusable := no_figure(table, metrics, policy):
        return None, unusable, ""
    try:
        versions = trial.versions(opponent)
        criteria = Criteria(
            metrics,
            policy,
            NoiseHistory.here(trial.settings.workspace, results, campaign),
            rows=table.by_key(),
            core=trial.core,
            classes=trial.classes,
            facts=_facts(trial),
            is_final=is_final,
            # All cases decide on what a quick round would keep.
            examines=trial.level == "full",
            doubt_of_best=partial(_doubt_of_best, trial, results),
        )
        phase = f"{COMPARING} the winner" if trial.raced else COMPARING
        with trial.measurements.compare(results, versions, phase=phase) as comparison:
            paired = compare(comparison, results, criteria)
    except Caught as caught:
        return None, judging.dishonest(results, caught.findings), ""
    except Died as death:
        trial.fail(death.case, "ERROR", str(death))
        return None, None, judging.head(str(death))
    except NotComparable as error:
        raise BadInput(
            f"kopt cannot run the current best and the candidate side by side: {error}",
            where="--kopt-compare",
            fix=error.fix or "repair the kernel, or --kopt-compare stored",
        ) from None
    cheats = judging.rejecting(paired.refusing)
    for finding in paired.refusing if not cheats else ():
        trial.fail(finding.where, "FAIL", str(finding))
    return paired, judging.dishonest(results, cheats), ""


def decided(
    observed: Iterable[Observation | None], paired: PairedResult | None, policy: Policy
) -> Verdict:
    """Return the verdict by the first ground, or else by the times."""
    if verdict := by_ground(observed, policy):
        return verdict
    assert paired is not None, "a comparison ends in an observation or in times"
    return paired.verdict


def _doubt_of_best(
    trial: CampaignTrial, results: Sequence[CaseResult], best_ms: Mapping[str, float], gain: float
) -> str:
    """Say what the candidate lacks next to the baseline, "" where it has its `gain`, a log-ratio.

    A candidate gains nothing by a current best that it works with: by one that forges what it
    judges, or slows down. So no code of that version is in the processes that are asked here. The
    candidate takes no longer next to the baseline than next to the current best.

    Gains chain: it gains over the baseline what the rounds' gains and its own come to. That alone
    counts where the current best takes longer than in the comparison that accepted it.
    """
    campaign = trial.campaign
    if campaign.state.incumbent_round == 1:
        return ""
    chain = None if elsewhere(campaign.best.session()) else chain_of_best(campaign.state)
    claimed = gain if chain is None else math.log1p(chain.step_pct / 100) + gain
    is_slower = chain is not None and _is_slower(campaign.best, results, best_ms)
    phase = f"{COMPARING} the candidate with the baseline"
    versions = trial.versions(campaign.baseline())
    # Cases that needed no clock are in the mean, as no gain.
    gain_when_timed = gain * len(results) / max(1, len(best_ms))
    try:
        with trial.measurements.compare(results, versions, 1 + _REPLICATES, phase) as comparison:
            # It finds out whether one process can hold both.
            first = [*comparison.replicas(1)]
            # A version may be kept for another benefit than its speed.
            limit_pct = trial.policy_of_cases.shape_gate_pct
            loss_pct = limit_pct if percent(claimed) < limit_pct else None
            doubt, excess = _doubt_there(comparison, first, results, claimed, loss_pct)
            if doubt:
                return f"next to the baseline: {doubt}"
            if not is_slower and _longer(first[0], best_ms, gain_when_timed) <= _SLOWER:
                return ""
            if comparison.why_apart:
                replicates = [*first, *comparison.replicas(_REPLICATES - 1)]
            else:
                replicates = [comparison.in_company(claimed) for _ in range(_REPLICATES)]
            for case in (case for each in replicates for case in each.values()):
                case.excess = excess
    except (Caught, NotComparable, Refused) as error:
        if isinstance(error, Caught) and error.accuses:
            raise
        return f"the candidate could not be compared with the baseline: {error}"
    shown = max(statistics.fmean(map(_gain_over_alone, each.values())) for each in replicates)
    if chain is not None and claimed - shown <= _SLOWER:
        return ""
    if is_slower:
        return (
            "next to the baseline the current best is slower than when it was accepted: the "
            f"candidate is {changed(percent(shown))} faster than the baseline, not "
            f"{changed(percent(claimed))}"
        )
    longer = min(_longer(each, best_ms, gain_when_timed) for each in replicates)
    beside = "next to the baseline than next to the current best"
    message = f"the candidate takes {percent(longer):.0f} % longer {beside}"
    return message if longer > _SLOWER else ""


def _doubt_there(
    comparison: Comparison,
    replicas: list[dict[str, CaseQuads]],
    results: Sequence[CaseResult],
    gain: float,
    loss_pct: float | None,
) -> tuple[str, float]:
    """Say what the `gain` lacks by other measurements next to a version, "" where it is there.

    With `loss_pct` no gain is claimed, but that no more than so much is lost.

    The gain of `replicas` is less by what they take off, which comes second. The current best has a
    part in such measurements: it could be slow in blocks of one call, or have a process judge as it
    likes.
    """
    if all(case.same for case in replicas[0].values()):
        return "", 0.0
    if comparison.why_apart:
        # There the first has no blocks of one call.
        replicas += comparison.replicas(1)
    credit = examine(comparison, replicas, results, percent(gain), loss_pct)
    comparison.judge_postponed()
    for case in (case for replica in replicas for case in replica.values()):
        case.excess = credit.excess
    wrong = (why for tried in comparison.tried if (why := tried.what.get(CANDIDATE)))
    return credit.doubt or comparison.untried or next(wrong, ""), credit.excess


def _is_slower(best: Attempt, results: Sequence[CaseResult], best_ms: Mapping[str, float]) -> bool:
    """Say whether the current best is slower than when it was accepted, or nobody knows."""
    accepted_ms = _ms_by_label(best.text("pairs.csv") or "")
    slower = [
        math.log(best_ms[result.nodeid] / accepted_ms[result.label])
        for result in results
        if result.nodeid in best_ms and result.label in accepted_ms
    ]
    return not slower or statistics.fmean(slower) > _SLOWER


def _longer(replicate: Mapping[str, CaseQuads], best_ms: Mapping[str, float], gain: float) -> float:
    """Return how much longer the candidate takes there than next to the current best.

    It is a log-ratio. The candidate gains `gain` over the milliseconds of that one.
    """
    longer = [
        math.log(ms / best_ms[name]) - case.ratio("step")
        for name, case in replicate.items()
        if name in best_ms and (ms := case.incumbent_ms("step"))
    ]
    return statistics.fmean(longer) + gain if longer else 0.0


def _gain_over_alone(case: CaseQuads) -> float:
    """Return the gain over the other version where no candidate can slow it, as a log-ratio."""
    return case.ratio("step") + (case.ratio("step", "alone") if case.at("alone") else 0.0)


def _ms_by_label(pairs_csv: str) -> dict[str, float]:
    """Return the median time of a call of a version, in its comparison with the one before."""
    times = dict[str, list[float]]()
    for row in csv.DictReader(io.StringIO(pairs_csv)):
        if row["comparison"] == CANDIDATE:
            times.setdefault(row["label"], []).append(float(row["candidate_ms"]))
    return {label: statistics.median(each) for label, each in times.items()}


def _facts(trial: CampaignTrial) -> VersionFacts:
    """Return what the notes and the ledger say of the version.

    Files that are the incumbent's have been decided on since they failed.
    """
    kernel = trial.kernel.hashes
    before = (verdict for _, _, verdict in trial.campaign.state.decided())
    repairs = (verdict for verdict in before if verdict.decision is Decision.REPAIR)
    failed = next((verdict for verdict in repairs if verdict.kernel == kernel), None)
    failed_before = ""
    if failed is not None and trial.same_as is None:
        where = f"the same files failed in round {failed.round}, attempt {failed.attempt}"
        failed_before = f"{where} ({failed.reason})"
    return VersionFacts(
        trial.round_notes.extra_benefit or "",
        failed_before=failed_before,
        root_cause=trial.round_notes.root_cause or "",
    )


def compare_stored(trial: CampaignTrial) -> Verdict:
    """Compare with the incumbent's stored figures; a gain is measured again as the policy says."""
    campaign, results, table = trial.campaign, trial.results, trial.rows
    policy, core = trial.policy_of_cases, trial.core
    _same_engines(trial, results)
    # An incumbent that was measured quick has rows of those cases alone.
    incumbent = campaign.best.table().only(table.by_key())
    incumbents = incumbent.by_key()
    evidence = StoredEvidence(
        candidate=table.only(incumbents),
        incumbent=incumbent,
        primary=campaign.manifest.primary_metric,
        failed_repairs=trial.failed_repairs,
        facts=_facts(trial),
        core=None if core is None else frozenset(trial.frozen[name].key for name in core),
        classes=trial.classes,
        devices={result.key: result.evidence.device or "" for result in results},
        limits={
            result.key: limits
            for result in results
            if (limits := (result.evidence.limit_pct, result.evidence.limit_us)) != (None, None)
        },
        weights={result.key: result.weight for result in results},
        has_groups=any(result.evidence.groups for result in results),
    )
    verdict = decide_stored(evidence, policy)
    for _ in range(remeasurements_needed(verdict, policy)):
        again = Collector(order=list(trial.collector.order))
        again.results = {result.nodeid: result for result in trial.measurements.measure_again()}
        repeat = again.table()
        if repeat is None or len(repeat.rows) != len(table.rows):
            return incomplete(policy, "a re-measurement lost cases")
        repeats = (*evidence.remeasurements, repeat.only(incumbents))
        evidence = replace(evidence, remeasurements=repeats)
        verdict = decide_stored(evidence, policy)
    engines = sorted({result.evidence.engine or "-" for result in results})
    flags = [*verdict.flags, *judging.device_flags(results, trial.frozen)]
    if where := elsewhere(campaign.best.session()):
        flags.append(
            f"the incumbent was measured on {where}: stored figures of two machines differ without "
            "any change; --kopt-compare paired measures both versions here"
        )
    alone = [row for row in table.rows if row.key not in incumbents]
    if alone:
        flags.append(
            f"{len(alone)} case(s) were checked but not compared: round "
            f"{campaign.state.incumbent_round} was measured without them"
        )
    shapes = [*verdict.shapes, *map(checked_shape, alone)]
    return verdict.saying(engine=", ".join(engines), flags=flags, shapes=shapes)


def _same_engines(trial: CampaignTrial, results: Sequence[CaseResult]) -> None:
    for result in results:
        frozen = trial.frozen[result.nodeid].engine
        engine = result.evidence.engine or frozen
        if engine != frozen:
            raise BadInput(
                f"timed by {engine}, but the baseline by {frozen}: stored times of two engines "
                "are not compared",
                where=f"case {result.nodeid}",
                fix="--kopt-compare paired, which times both versions alike",
            )
