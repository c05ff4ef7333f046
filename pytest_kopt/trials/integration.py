"""The gate behind a workspace: its best kernel, put upstream, meets upstream's own there (C13).

Full level, upstream's cases and test_command; only this accepts, and a failure puts upstream back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.workspace.upstream import UpstreamCampaign
from pytest_kopt.cases.collector import Collector
from pytest_kopt.decide.verdict import Applied, Decision
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.show import projections
from pytest_kopt.show.closing import Closing
from pytest_kopt.trials.final import FinalComparison
from pytest_kopt.trials.trial import Measurements

_NEXT = {
    Decision.ACCEPTED: "upstream takes it: review the branch and merge it",
    Decision.ACCEPTED_WITH_NOTE: "upstream takes it: mind the slower case, review and merge",
    Decision.INCONCLUSIVE: "no gain can be shown upstream: go on in the workspace",
    Decision.SPLIT: "one class pays for another's gain upstream: specialise and dispatch in the "
    "workspace",
    Decision.ROLLED_BACK: "upstream it is slower: look for what the workspace lacks",
}


class Integration(FinalComparison):
    """`--kopt-round final` of a workspace campaign, run in the upstream project."""

    next_steps = _NEXT
    campaign: UpstreamCampaign

    @property
    def title(self) -> str:
        best = self.campaign.state.incumbent_round
        return f"campaign {self.campaign.name}, integration of round {best} (best) upstream"

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge and record, then commit upstream or put it back."""
        closing = super().close(collector, measurements, interrupted)
        self.campaign.settle(apply=self._settings.apply)
        projections.refresh(self.campaign)
        done = self.campaign.state.integrated
        assert done is not None
        applied = Applied(git_commit=done.git_commit, restored=done.restored)
        return replace(closing, verdict=closing.verdict.model_copy(update={"applied": applied}))

    def _lineage(self) -> Campaign:
        directory = self.campaign.layout.directory
        return Campaign(self.campaign.layout, directory)

    def _harness_edits(self) -> list[Finding]:
        """Return nothing: that upstream's files are those that were extracted is known by now."""
        return []

    def _check_tree(self) -> None:
        """Nothing more: the best version is put into the tree once the campaign is held."""

    def _run_commands(self) -> str:
        # What stops the session from here on, short of a kill, puts upstream back.
        self._stack.callback(self.campaign.settle)
        self.campaign.put_in()
        return super()._run_commands()

    def _session(self, collector: Collector) -> dict[str, Any]:
        return {**super()._session(collector), "integration": True}
