"""Chooses a session's trial of a campaign: baseline, candidate round, race or final."""

from __future__ import annotations

from pytest_kopt import policies
from pytest_kopt.campaign import notes, running
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git.worktrees import choose_campaign
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.errors import BadInput
from pytest_kopt.options.settings import Settings
from pytest_kopt.show.files import projections
from pytest_kopt.trials.campaign_trial import CampaignTrial, carry_out
from pytest_kopt.trials.final import FinalComparison
from pytest_kopt.trials.harness import HarnessWatch, PytestSetup
from pytest_kopt.trials.rounds.baseline import Baseline
from pytest_kopt.trials.rounds.candidate import CandidateRound
from pytest_kopt.trials.rounds.race import Race


def open_trial(settings: Settings, setup: PytestSetup) -> CampaignTrial:
    """Return the trial that `--kopt-round` asks for; BadInput where it cannot run now."""
    layout = choose_campaign(settings.campaign, settings.root, settings.workspace)
    with running.refusals_left(layout.running):
        campaign, is_final = Campaign(layout, settings.root), settings.round == "final"
        state = campaign.state
        # What was cut off is finished, whether or not what follows is refused.
        if state.pending or state.restoring or projections.are_behind(campaign):
            campaign.check_ready()
            with campaign.locked():
                carry_out(campaign, apply=settings.apply)
        kind = _kind_of_trial(settings, campaign)
        of_session = Notes() if is_final or not settings.notes else notes.load(settings.notes)
        policy = policies.load(settings.policy) if settings.policy else campaign.policy()
        where = "--kopt-policy" if settings.policy else "policy (manifest.yaml)"
        campaign.check_policy(policy, where)
        watch = HarnessWatch(campaign, setup)
        return kind(settings, campaign, policy, of_session, watch)


def _kind_of_trial(settings: Settings, campaign: Campaign) -> type[CampaignTrial]:
    is_final = settings.round == "final"
    is_first = not is_final and campaign.state.check_round(settings.round or 1) == 1
    if settings.candidates and (is_first or is_final):
        raise BadInput(
            "a race needs a baseline",
            where="--kopt-candidates",
            fix="pytest --kopt-round 1, then the race with --kopt-round next",
        )
    if is_final:
        return FinalComparison
    if is_first:
        return Baseline
    return Race if settings.candidates else CandidateRound
