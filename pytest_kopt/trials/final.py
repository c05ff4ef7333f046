"""The end of a campaign, from top to bottom: its best version meets the original baseline.

Every accepted round carries a small error, and they add up along the chain; a paired comparison of
both ends does not have it. Nothing is committed or restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.trend import chain_of_best, compose
from pytest_kopt.campaign.outlook.status import AFTER_FINAL
from pytest_kopt.campaign.recording import record_final
from pytest_kopt.cases.details import in_a_line, with_details
from pytest_kopt.decide.grounds import Ground, Observation, by_ground
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.paired.pairing import PairedResult
from pytest_kopt.show.files import projections
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import end_to_end, judging
from pytest_kopt.trials.campaign_trial import (
    CampaignTrial,
    evidence,
    frozen_cases,
    saying_why_blocked,
)
from pytest_kopt.trials.comparing import compare_paired, decided

_refused = partial(BadInput, where="--kopt-round final")


class FinalComparison(CampaignTrial):
    """The end of a campaign in its own tree."""

    def open(self) -> None:
        campaign = self.campaign
        levels.always_full(self.settings.level, "the final comparison")
        if campaign.state.ended == "abandoned":
            raise _refused("the campaign was abandoned")
        best = campaign.state.incumbent_round
        if best is None or best == 1:
            what = "no round was accepted: there is nothing to compare with the baseline"
            raise _refused(what)
        campaign.check_ready()
        self.frozen = frozen_cases(campaign)
        _check_tree(campaign)
        self.harness = self.watch.check(self.frozen)
        _check_diff(campaign)
        self.title = f"campaign {campaign.name}, round {best} (best) against the baseline"
        self.number = best

    def conclude(self) -> Closing:
        self.gather()
        results, campaign = self.results, self.campaign
        verdict, paired, detail = _judge(self)
        verdict = saying_why_blocked(self, _end_to_end(self, verdict, paired))
        verdict = verdict.saying(thresholds=self.policy.model_dump(mode="json"))
        report = compose(campaign)
        verdict = with_details(verdict, results)
        verdict = record_final(campaign, evidence(self, paired), verdict, report)
        projections.refresh(campaign)
        outlook = tuple(projections.outlook(report))
        return Closing(verdict, detail or self.blocked, outlook=outlook)


def _judge(trial: CampaignTrial) -> tuple[Verdict, PairedResult | None, str]:
    """Judge the best version: by its rows and findings, then side by side with the baseline."""
    campaign = trial.campaign
    if verdict := by_ground(_observed(trial), trial.policy_of_cases):
        return verdict, None, ""
    paired, observation, detail = compare_paired(trial, campaign.baseline(), is_final=True)
    verdict = decided([observation, *_observed(trial)], paired, trial.policy_of_cases)
    if verdict.decision is Decision.REPAIR:
        return verdict, paired, detail
    flags, chain = list(verdict.flags), chain_of_best(campaign.state)
    if chain:
        flags.append(f"the rounds' gains multiply to {changed(chain.step_pct)}")
    # A final round tries no inputs near the cases, where a version may support less.
    flags += (
        f"round {kept.number} is {noted.decision}: {in_a_line(noted.reason)}"
        for kept in campaign.state.kept_rounds()
        if (noted := kept.verdict) and noted.decision is Decision.ACCEPTED_WITH_NOTE
    )
    next_step = AFTER_FINAL.get(verdict.decision, verdict.next_step)
    return verdict.saying(next_step=next_step, flags=flags), paired, detail


def _observed(trial: CampaignTrial) -> Iterator[Observation | None]:
    results = trial.results
    yield from trial.observed(trial.frozen, "put it back and run it again")
    step = "an accepted round cheats. Fix: find it with kopt bisect"
    yield judging.dishonest(results, judging.rejecting(judging.findings_of(results)), step)
    if failed := [result.label for result in results if result.check != "PASS"]:
        reason = f"the accepted version fails {len(failed)} case(s): {', '.join(failed[:3])}"
        shapes = {"shapes": judging.shapes(results)}
        yield Observation(Ground.WRONG, reason, "correct it in a new round", shapes)
    yield judging.interpreted(results)


def _end_to_end(trial: CampaignTrial, verdict: Verdict, paired: PairedResult | None) -> Verdict:
    """Run the manifest's e2e_command with both versions, where they were compared."""
    campaign, manifest = trial.campaign, trial.campaign.manifest
    if manifest.e2e_command is None or paired is None:
        return verdict
    command, versions = trial.command(manifest.e2e_command), (campaign.baseline(), trial.kernel)
    try:
        return verdict.saying(e2e=end_to_end.measure(command, trial.trees, *versions))
    except NotComparable as why:
        note = f"e2e_command gave no figure: {in_a_line(str(why))}"
        return judging.flagged(verdict, [note])


def _check_tree(campaign: Campaign) -> None:
    if not campaign.candidate().same_content(campaign.incumbent()):
        raise _refused(
            f"the kernel files are not those of round {campaign.state.incumbent_round}, the "
            "last accepted",
            fix=f"kopt restore {campaign.name} {campaign.state.incumbent_round}, or measure the "
            "edit as a round",
        )


def _check_diff(campaign: Campaign) -> None:
    repository, baseline = campaign.repository, campaign.state.baseline
    start = baseline.last.applied.git_commit if baseline and baseline.last.applied else None
    manifest = campaign.manifest
    own_branch = manifest.git_commit and manifest.git_branch != "none"
    if repository is None or start is None or not own_branch:
        return
    ours = (*campaign.candidate().files, *campaign.baseline().files, projections.PERFORMANCE)
    own = {repository.relative(campaign.root, path) for path in ours}
    strange = [path for path in repository.committed_since(start) if path not in own]
    if strange:
        raise _refused(
            f"the branch changes {strange[0]} since the baseline, which is no kernel file",
            fix="move the other changes to a branch of their own",
        )
