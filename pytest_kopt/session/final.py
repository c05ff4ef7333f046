"""The end of a campaign: its best version meets the original baseline, paired (D9).

Every accepted round carries a small error, and they add up along the chain; this one does not.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.chain import chain_of_best
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.gates import checked_shape
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.table import Table
from pytest_kopt.session import judging
from pytest_kopt.session.campaign_trial import CampaignTrial
from pytest_kopt.session.collector import Collector
from pytest_kopt.session.trial import Closing, Laboratory
from pytest_kopt.show import projections

_NEXT = {
    Decision.ACCEPTED: "the gain stands; it is what the campaign is worth",
    Decision.ACCEPTED_WITH_NOTE: "the gain stands; mind the slower case",
    Decision.INCONCLUSIVE: "the chain's gains do not add up to one that can be shown",
    Decision.SPLIT: "one class paid for another's gain: look for the round that did it; nothing "
    "was rolled back",
    Decision.ROLLED_BACK: "the chain does not hold: look for the round that lost it; nothing was "
    "rolled back",
}


class FinalComparison(CampaignTrial):
    """`--kopt-round final`: judges and records; carries nothing out."""

    next_steps: Mapping[Decision, str] = _NEXT

    @property
    def title(self) -> str:
        best = self.campaign.state.incumbent_round
        return f"campaign {self.campaign.name}, round {best} (best) against the baseline"

    def close(self, collector: Collector, lab: Laboratory, interrupted: str = "") -> Closing:
        """Judge and record; nothing is committed or restored."""
        self._complete_rows(collector)
        table = collector.table()
        wanted = list(self.expected)
        verdict = judging.cut_off(collector, wanted, interrupted, self.policy)
        if verdict is None:
            assert table is not None
            verdict = self._judge(collector.in_order(), table, lab)
        verdict = self._said_why_blocked(verdict)
        verdict = self.campaign.record_final(self._evidence(collector, table), verdict)
        projections.refresh(self.campaign, [])
        return Closing(verdict, table, self._blocked)

    def _judge(self, results: Sequence[CaseResult], table: Table, lab: Laboratory) -> Verdict:
        policy = judging.with_directions(self.policy, results)
        found = judging.rejecting(results)
        if found:
            return judging.overfit(results, found, policy, "an accepted round cheats; find it")
        failed = [result.label for result in results if result.check != "PASS"]
        if failed:
            return Verdict(
                decision=Decision.REPAIR,
                reason=f"the accepted version fails {len(failed)} case(s): {', '.join(failed[:3])}",
                next_step="mend it in a round of its own",
                compare="none",
                policy=policy.name,
                shapes=[checked_shape(row) for row in table.rows],
            )
        if judging.is_interpreted(results):
            return judging.incomplete(policy, *judging.INTERPRETED)
        verdict = self._compare(results, table, policy, lab, self.campaign.baseline())
        chain = chain_of_best(self.campaign.state)
        where = " over the representative cases" if chain and chain.level == "quick" else ""
        flags = (
            [f"the rounds' gains multiply to {chain.change.step_pct:+.3f} %{where}"]
            if chain
            else []
        )
        return verdict.model_copy(
            update={
                "next_step": self.next_steps.get(verdict.decision, verdict.next_step),
                "flags": [*verdict.flags, *flags],
            }
        )

    def _validate(self) -> None:
        campaign = self.campaign
        levels.always_full(self._settings.level, "the final comparison")
        if campaign.state.ended == "abandoned":
            raise BadInput("the campaign was abandoned", where="--kopt-round final")
        best = campaign.state.incumbent_round
        if best is None or best == 1:
            raise BadInput(
                "no round was accepted: there is nothing to hold against the baseline",
                where="--kopt-round final",
                legal="a campaign with an accepted round",
            )
        campaign.check_ready()
        self._check_tree()
        self._freeze_cases()

    def _check_tree(self) -> None:
        """Raise BadInput when the tree does not hold the best version."""
        campaign = self.campaign
        if campaign.manifest.upstream is not None:
            raise BadInput(
                "the final comparison of a workspace campaign is its integration upstream",
                where="--kopt-round final",
                legal=f"cd {shlex.quote(str(campaign.home))} && pytest --kopt-campaign "
                f"{campaign.name} --kopt-round final",
            )
        if not campaign.candidate().same_content(campaign.incumbent()):
            raise BadInput(
                f"the kernel files are not those of round {campaign.state.incumbent_round}, the "
                "last accepted",
                where="--kopt-round final",
                legal="the accepted version in the tree, or measure the edit as a round first",
            )
