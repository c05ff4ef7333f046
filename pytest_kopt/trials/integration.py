"""The final round of a workspace: its best kernel is compared with upstream's own, upstream.

A final comparison with upstream's cases and test_command; only this accepts, and a failure puts
upstream back.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.workspace.upstream import UpstreamCampaign
from pytest_kopt.decide.verdict import Applied, Decision
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials.campaign_trial import Question, carry_out
from pytest_kopt.trials.final import (
    close_final,
    open_best,
    original,
    take_back,
    what_was_taken_back,
)
from pytest_kopt.trials.stages import Asked, Opened, Ran
from pytest_kopt.trials.withdrawal import Withdrawn

_NEXT = {
    Decision.ACCEPTED: "upstream takes it: review the branch and merge it",
    Decision.ACCEPTED_WITH_NOTE: "upstream takes it: mind the slower case, review and merge",
    Decision.INCONCLUSIVE: "no gain can be shown upstream: go on in the workspace",
    Decision.SPLIT: "one class pays for another's gain upstream: specialise and dispatch in the "
    "workspace",
    Decision.ROLLED_BACK: "upstream it is slower: look for what the workspace lacks",
}


def open_integration(asked: Asked, withdrawn: Withdrawn | None = None) -> Opened:
    """Return the integration as it can be run now; BadInput where it cannot.

    That upstream's files are those that were extracted is known by now: no harness is watched.
    """
    opened, name = open_best(asked, withdrawn), asked.campaign.name
    title = f"campaign {name}, integration of round {opened.number} (best) upstream"
    return replace(opened, title=title)


def _put_in(opened: Opened, held: ExitStack) -> Opened:
    """Take back what the workspace should not have kept, and put the best version upstream."""
    campaign = opened.campaign
    assert isinstance(campaign, UpstreamCampaign)
    workspace = Campaign(campaign.layout, campaign.layout.directory)
    withdrawn = take_back(opened.asked, workspace)
    if withdrawn:
        opened = open_integration(opened.asked, withdrawn)
    # What stops the session from here on, short of a kill, puts upstream back.
    held.callback(campaign.settle)
    campaign.put_in()
    return opened


def close_integration(ran: Ran) -> Closing:
    """Judge and record as a final comparison, then commit upstream or put it back."""
    closing = close_final(ran, _NEXT, integration=True)
    campaign = ran.opened.campaign
    carry_out(campaign, ran.opened.asked.settings)
    done = campaign.state.integrated
    assert done is not None
    applied = Applied(git_commit=done.git_commit, restored=done.restored)
    return replace(closing, verdict=closing.verdict.model_copy(update={"applied": applied}))


INTEGRATION = Question(
    open_integration, close_integration, _put_in, what_was_taken_back, opponent=original
)
