"""Which trial a session on a campaign is: the baseline, a candidate's round, or the last one."""

from __future__ import annotations

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.choice import choose_campaign
from pytest_kopt.campaign.layout import find
from pytest_kopt.campaign.workspace.upstream import UpstreamCampaign
from pytest_kopt.options.settings import Settings
from pytest_kopt.show import projections
from pytest_kopt.trials.baseline_round import BaselineRound
from pytest_kopt.trials.campaign_round import CampaignRound
from pytest_kopt.trials.campaign_trial import carry_out
from pytest_kopt.trials.candidate_round import CandidateRound
from pytest_kopt.trials.final import FinalComparison
from pytest_kopt.trials.harness import PytestSetup
from pytest_kopt.trials.integration import Integration


def open_trial(settings: Settings, setup: PytestSetup) -> CampaignRound | FinalComparison:
    """Return the trial that `--kopt-round` asks for; BadInput where it cannot run now."""
    name = choose_campaign(settings.campaign, settings.root, settings.workspace)
    layout = find(settings.workspace, name)
    campaign = Campaign(layout, settings.root)
    if settings.round == "final" and campaign.is_upstream:
        upstream = UpstreamCampaign(layout, settings.root)
        _finish(upstream, settings)
        return Integration(settings, upstream, setup)
    _finish(campaign, settings)
    if settings.round == "final":
        return FinalComparison(settings, campaign, setup)
    assert settings.round is not None
    first = campaign.state.check_round(settings.round) == 1
    kind = BaselineRound if first else CandidateRound
    return kind(settings, campaign, setup)


def _finish(campaign: Campaign, settings: Settings) -> None:
    """Finish what was cut off, whether or not what follows is refused."""
    state = campaign.state
    if state.pending or state.restoring or projections.are_behind(campaign):
        campaign.check_ready()
        with campaign.locked():
            carry_out(campaign, settings)
