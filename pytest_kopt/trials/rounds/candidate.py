"""Every round after the baseline, from top to bottom: a candidate meets the incumbent.

The round is opened, which refuses what is not worth measuring. pytest runs the cases: all are
checked, those of the level are timed. The rows are gathered and judged, by all cases where a quick
round would keep the candidate. The verdict gets its flags, and is recorded and carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_kopt.campaign import levels, prerequisites
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.cases.details import in_a_line
from pytest_kopt.cases.result import Collector, names
from pytest_kopt.decide.grounds import (
    Ground,
    Observation,
    by_ground,
    same_code,
    wrong_rows,
)
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.errors import BadInput, KernelError
from pytest_kopt.figures import changed
from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding, names_of
from pytest_kopt.paired.pairing import PairedResult
from pytest_kopt.sameness.sources import differing
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import (
    CampaignTrial,
    frozen_cases,
    open_round,
    record_round,
)
from pytest_kopt.trials.comparing import compare_paired, compare_stored, decided

_PUT_BACK = "kopt restored the current best; restore the harness too"


def open_against_incumbent(trial: CampaignTrial) -> None:
    """Open the round as it can be run now, whatever its candidate is; else raise BadInput."""
    campaign, watch = trial.campaign, trial.watch
    open_round(trial)
    trial.frozen = frozen = frozen_cases(campaign)
    shapes = campaign.manifest.representative_shapes
    recorded = campaign.recorded_manifest().get(levels.KEY)
    levels.check_unchanged(shapes, recorded, campaign.state.first_quick_round)
    trial.representative = levels.representative(campaign.manifest, names(frozen.values()))
    trial.level = levels.choose(trial.settings.level, len(frozen), shapes)
    timed = [name for name in frozen if name not in trial.untimed]
    if trial.level == "quick":
        trial.title += f", quick: {len(timed)} of {len(frozen)} cases are timed"
    # What the round will be compared with is read before anything is measured.
    campaign.incumbent()
    keys = {frozen[name].key for name in timed}
    dims = {row.key: row.dims for row in campaign.best.table().rows if row.key in keys}
    trial.classes.target_among(trial.classes.group(dims))
    trial.harness = watch.check(frozen)
    watch.check_dependencies(trial.harness)


def audited(campaign: Campaign, kernel: KernelVersion) -> list[Finding]:
    return audit(kernel.sources, campaign.incumbent().sources)


def judge_candidate(trial: CampaignTrial) -> tuple[Verdict, PairedResult | None, str]:
    """Gather and judge, and record or change nothing.

    Returns the verdict, what it rests on, and the stack of a case that ended its process.

    It is rule 10 of docs/honesty.md.
    """
    in_source = audited(trial.campaign, trial.kernel)
    if trial.is_same:
        verdict, paired, detail = _judge_same(trial), None, ""
    else:
        trial.gather()
        verdict, paired, detail = _judge(trial, in_source)
    total = verdict.aggregate
    if trial.level == "quick" and verdict.decision.keeps and not trial.is_same:
        # A candidate knows the representative cases, and could lose in all others.
        assert total is not None and total.change_pct is not None
        trial.measurements.time_also(trial.untimed)
        trial.level = "full"
        trial.gather()
        verdict, paired, detail = _judge(trial, in_source)
        flag = (
            f"quick, {total.metric} changed by {changed(total.change_pct)}: what is kept is "
            f"decided by all {len(trial.frozen)} cases"
        )
        verdict = verdict.saying(flags=[flag, *verdict.flags])
    findings = [*judging.findings_of(trial.results), *in_source]
    notable = [finding for finding in findings if not finding.rejects or finding.repairs]
    nearby = paired.nearby if paired else ()
    return judging.flagged(verdict, [*notable, *nearby]), paired, detail


def _judge_same(trial: CampaignTrial) -> Verdict:
    """Judge the incumbent's code, of which its rows stand and nothing has run."""
    campaign = trial.campaign
    trial.collector.results = {result.nodeid: result for result in campaign.best.results()}
    trial.gather()
    where, shapes = f"the same code as round {trial.same_as}", judging.same_shapes(trial.results)
    observed = [*trial.observed(trial.collector.results, _PUT_BACK)]
    if differing(campaign.incumbent().sources, trial.kernel.sources):
        observed.append(Observation(Ground.UNSOUND, "the kernel files changed meanwhile"))
    policy = trial.policy
    same = same_code(where, trial.round_notes.extra_benefit, shapes)
    return by_ground(observed, policy) or same.verdict(policy.name)


def _judge(
    trial: CampaignTrial, in_source: Sequence[Finding]
) -> tuple[Verdict, PairedResult | None, str]:
    """Check all cases, compare those of the level, and decide by the first ground or by times."""
    results = trial.results
    cheats = judging.rejecting([*judging.findings_of(results), *in_source])
    observed = [
        *trial.observed(trial.frozen, _PUT_BACK),
        judging.dishonest(results, cheats),
        _wrong(trial) if results else None,
    ]
    trial.leave_out_untimed()
    observed.append(judging.interpreted(trial.results))
    if verdict := by_ground(observed, trial.policy_of_cases):
        return verdict, None, ""
    trial.watch.check_dependencies(trial.harness_to_record)
    if trial.settings.compare == "stored":
        return compare_stored(trial), None, ""
    paired, observation, detail = compare_paired(trial, trial.campaign.incumbent())
    observed = [observation, _wrong(trial, paired.refusing if paired else ())]
    if paired and paired.has_same_machine_code and not trial.round_notes.extra_benefit:
        observed.append(_same_machine_code(trial))
    return decided(observed, paired, trial.policy_of_cases), paired, detail


def _wrong(trial: CampaignTrial, near_inputs: Sequence[Finding] = ()) -> Observation | None:
    """Return that cases are wrong, some by what the comparison found near their inputs."""
    wrong = wrong_rows(trial.rows, trial.policy_of_cases, trial.failed_repairs)
    if wrong is None or not near_inputs:
        return wrong
    evidence = {**wrong.evidence, **judging.flags_of(near_inputs)}
    return replace(wrong, reason=f"{wrong.reason}; {names_of(near_inputs)}", evidence=evidence)


def _same_machine_code(trial: CampaignTrial) -> Observation:
    """Return that a race's best is the incumbent's machine code; BadInput for a lone candidate."""
    campaign = trial.campaign
    why = (
        f"the same machine code as round {campaign.state.incumbent_round}: the GPU does the same "
        "work in every case"
    )
    if trial.raced:
        return same_code(why, None, judging.same_shapes(trial.results, "machine"))
    raise BadInput(
        why,
        where=", ".join(campaign.manifest.kernel_source),
        fix="change the launched code, or give notes with extra_benefit; --kopt-measure-same times "
        "it nevertheless",
    )


class CandidateRound(CampaignTrial):
    """The round of the version that lies in the tree; `CampaignTrial` calls its methods."""

    runs_benchmark = False

    def open(self) -> None:
        open_against_incumbent(self)
        prerequisites.check_parses(self.campaign)
        benefit = self.round_notes.extra_benefit
        self.same_as = prerequisites.check_differs(self.campaign, benefit)
        if self.same_as is not None:
            decided = self.campaign.state.rounds[self.same_as].verdict
            assert decided is not None
            self.level = decided.level

    def collected(self, ids: Sequence[str], collector: Collector) -> None:
        """Raise KernelError when a file of the round's cases does not import any more."""
        for nodeid in self.frozen:
            error = judging.under(nodeid, collector.collect_errors)
            if error:
                why = "the kernel does not import; nothing was measured"
                raise KernelError(f"{in_a_line(error)}; {why}")

    def conclude(self) -> Closing:
        return record_round(self, *judge_candidate(self))
