"""The end of a campaign, from top to bottom: its best version meets the original baseline.

Every accepted round carries a small error, and they add up along the chain; a paired comparison of
both ends does not have it. Nothing is committed or restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.trend import chain_of_best, compose
from pytest_kopt.campaign.outlook.status import AFTER_FINAL
from pytest_kopt.campaign.recording import record_final
from pytest_kopt.cases.details import in_a_line, with_details
from pytest_kopt.decide.grounds import Ground, Observation, by_ground
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.show.files import projections
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import end_to_end, judging
from pytest_kopt.trials.campaign_trial import CampaignTrial, evidence
from pytest_kopt.trials.comparing import compare_paired
from pytest_kopt.trials.stages import (
    Asked,
    Gathered,
    Judged,
    OpenTrial,
    Ran,
    frozen_cases,
    gather,
)

_refused = partial(BadInput, where="--kopt-round final")


class FinalComparison(CampaignTrial):
    """The end of a campaign in its own tree."""

    def open(self) -> OpenTrial:
        opened = open_best(self.asked)
        _check_tree(self.campaign)
        harness = self.asked.watch.check(opened.frozen)
        _check_diff(self.campaign)
        title = f"campaign {self.campaign.name}, round {opened.number} (best) against the baseline"
        return replace(opened, title=title, harness=harness)

    def conclude(self, ran: Ran) -> Closing:
        gathered, opened = gather(ran), ran.opened
        judged = _end_to_end(_judge(gathered)).saying_why_blocked()
        judged = judged.saying(thresholds=opened.asked.policy.model_dump(mode="json"))
        judged = judged.of(with_details(judged.verdict, gathered.results))
        campaign = self.campaign
        report = compose(campaign)
        verdict = record_final(campaign, evidence(judged), judged.verdict, report)
        projections.refresh(campaign)
        outlook = tuple(projections.outlook(report))
        return Closing(verdict, judged.detail or ran.begun.blocked, outlook=outlook)


def open_best(asked: Asked) -> OpenTrial:
    """Return the trial of the best version against the baseline."""
    campaign = asked.campaign
    levels.always_full(asked.settings.level, "the final comparison")
    if campaign.state.ended == "abandoned":
        raise _refused("the campaign was abandoned")
    best = campaign.state.incumbent_round
    if best is None or best == 1:
        what = "no round was accepted: there is nothing to compare with the baseline"
        raise _refused(what)
    campaign.check_ready()
    frozen = frozen_cases(campaign)
    skipped = tuple(campaign.skipped_at_baseline())
    return OpenTrial(asked, "", best, frozen, skipped)


def _judge(gathered: Gathered) -> Judged:
    """Judge the best version: by its rows and findings, then side by side with the baseline."""
    opened = gathered.opened
    if verdict := by_ground(_observed(gathered), gathered.policy):
        return Judged(gathered, verdict)
    compared = compare_paired(gathered, opened.campaign.baseline(), is_final=True)
    judged = compared.decided(_observed(compared.gathered))
    if judged.verdict.decision is Decision.REPAIR:
        return judged
    verdict, flags = judged.verdict, list(judged.verdict.flags)
    chain = chain_of_best(opened.campaign.state)
    if chain:
        flags.append(f"the rounds' gains multiply to {changed(chain.step_pct)}")
    # A final round tries no inputs near the cases, where a version may support less.
    flags += (
        f"round {kept.number} is {noted.decision}: {in_a_line(noted.reason)}"
        for kept in opened.campaign.state.kept_rounds()
        if (noted := kept.verdict) and noted.decision is Decision.ACCEPTED_WITH_NOTE
    )
    next_step = AFTER_FINAL.get(verdict.decision, verdict.next_step)
    return judged.saying(next_step=next_step, flags=flags)


def _observed(gathered: Gathered) -> Iterator[Observation | None]:
    results = gathered.results
    yield from gathered.observed(gathered.opened.frozen, "put it back and run it again")
    step = "an accepted round cheats. Fix: find it with kopt bisect"
    yield judging.dishonest(results, judging.rejecting(judging.findings_of(results)), step)
    if failed := [result.label for result in results if result.check != "PASS"]:
        reason = f"the accepted version fails {len(failed)} case(s): {', '.join(failed[:3])}"
        shapes = {"shapes": judging.shapes(results)}
        yield Observation(Ground.WRONG, reason, "correct it in a new round", shapes)
    yield judging.interpreted(results)


def _end_to_end(judged: Judged) -> Judged:
    """Run the manifest's e2e_command with both versions, where they were compared."""
    begun, asked = judged.gathered.ran.begun, judged.gathered.opened.asked
    campaign, manifest = asked.campaign, asked.campaign.manifest
    if manifest.e2e_command is None or judged.paired is None:
        return judged
    command, versions = asked.command(manifest.e2e_command), (campaign.baseline(), begun.kernel)
    try:
        return judged.saying(e2e=end_to_end.measure(command, begun.trees, *versions))
    except NotComparable as why:
        return judged.flagged(f"e2e_command gave no figure: {in_a_line(str(why))}")


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
