"""Chooses a session's trial of a campaign: baseline, candidate round, race or final."""

from __future__ import annotations

from pytest_kopt import policies
from pytest_kopt.campaign import notes, running
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git.worktrees import choose_campaign
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.workspace import UpstreamCampaign
from pytest_kopt.clock import now
from pytest_kopt.errors import BadInput
from pytest_kopt.options.settings import Settings
from pytest_kopt.show.files import projections
from pytest_kopt.trials.campaign_trial import CampaignTrial, carry_out
from pytest_kopt.trials.final import FinalComparison, Integration
from pytest_kopt.trials.harness import HarnessWatch, PytestSetup
from pytest_kopt.trials.rounds.baseline import Baseline
from pytest_kopt.trials.rounds.candidate import CandidateRound
from pytest_kopt.trials.rounds.race import Race
from pytest_kopt.trials.stages import Asked


def open_trial(settings: Settings, setup: PytestSetup) -> CampaignTrial:
    """Return the trial that `--kopt-round` asks for; BadInput where it cannot run now."""
    layout = choose_campaign(settings.campaign, settings.root, settings.workspace)
    with running.refusals_left(layout.running):
        campaign = Campaign(layout, settings.root)
        upstream = settings.round == "final" and campaign.is_upstream
        if upstream:
            campaign = UpstreamCampaign(layout, settings.root)
        _finish(campaign, settings)
        kind = _kind(campaign, settings, upstream)
        return kind(_asked(campaign, settings, setup))


def _kind(campaign: Campaign, settings: Settings, upstream: bool) -> type[CampaignTrial]:
    first = settings.round != "final" and campaign.state.check_round(settings.round or 1) == 1
    if settings.candidates and (first or settings.round == "final"):
        raise BadInput(
            "a race needs a baseline",
            where="--kopt-candidates",
            fix="pytest --kopt-round 1, then the race with --kopt-round next",
        )
    if settings.round == "final":
        return Integration if upstream else FinalComparison
    if first:
        return Baseline
    return Race if settings.candidates else CandidateRound


def _asked(campaign: Campaign, settings: Settings, setup: PytestSetup) -> Asked:
    """Read what the options name; BadInput for notes or a policy that cannot be used."""
    is_final, asked = settings.round == "final", settings.policy
    notes_given = Notes() if is_final or not settings.notes else notes.load(settings.notes)
    policy = policies.load(asked) if asked else campaign.policy()
    campaign.check_policy(policy, "--kopt-policy" if asked else "policy (manifest.yaml)")
    return Asked(settings, campaign, policy, notes_given, HarnessWatch(campaign, setup), now())


def _finish(campaign: Campaign, settings: Settings) -> None:
    """Finish what was cut off, whether or not what follows is refused."""
    state = campaign.state
    if state.pending or state.restoring or projections.are_behind(campaign):
        campaign.check_ready()
        with campaign.locked():
            carry_out(campaign, apply=settings.apply)
