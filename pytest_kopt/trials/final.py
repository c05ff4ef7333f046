"""The end of a campaign: its best version meets the original baseline, paired (D9).

Every accepted round carries a small error, and they add up along the chain; this one does not. A
round that turned out to serve the benchmark alone is taken back first.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.chain import chain_of_best
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.details import with_details
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.gates import checked_shape
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.options.settings import Settings
from pytest_kopt.show import final_report, performance_log, projections
from pytest_kopt.show.closing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import EDITED_HARNESS, CampaignTrial
from pytest_kopt.trials.harness import HarnessWatch, PytestSetup
from pytest_kopt.trials.trial import Measurements
from pytest_kopt.trials.withdrawal import Overfit, overfit, withdraw

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
    """`--kopt-round final`: judges and records; commits or restores nothing but a withdrawal."""

    def __init__(self, settings: Settings, campaign: Campaign, setup: PytestSetup) -> None:
        self._withdrawn: list[int] = []
        self._overfit: Overfit | None = None
        self._watch = HarnessWatch(campaign, setup)
        super().__init__(settings, campaign)

    @property
    def preface(self) -> Sequence[str]:
        if self._overfit is None:
            return ()
        return [
            f"round {self._overfit.round} is REJECT-as-overfit: {self._overfit.why}",
            f"it is taken back, with all that stands on it: {_named(self._withdrawn)}",
        ]

    runs_benchmark = True
    next_steps: Mapping[Decision, str] = _NEXT

    @property
    def title(self) -> str:
        best = self.campaign.state.incumbent_round
        return f"campaign {self.campaign.name}, round {best} (best) against the baseline"

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge and record."""
        self._complete_rows(collector)
        table = collector.table()
        wanted = list(self.expected)
        verdict = judging.cut_off(collector, wanted, interrupted, self.policy)
        if verdict is None:
            verdict = self._judge(collector, measurements)
            table = collector.table()
        verdict = self._said_why_blocked(verdict).model_copy(
            update={"thresholds": self.policy.model_dump(mode="json")}
        )
        verdict = with_details(verdict, collector.in_order())
        report = final_report.compose(self.campaign)
        verdict = self.campaign.record_final(self._evidence(collector, table), verdict, report)
        projections.refresh(self.campaign)
        outlook = final_report.outlook(report)
        return Closing(verdict, self._detail, outlook=tuple(outlook))

    def _judge(self, collector: Collector, measurements: Measurements) -> Verdict:
        results = collector.in_order()
        policy = judging.with_directions(self.policy, results)
        edited = self._harness_edits()
        if edited:
            return judging.overfit(
                results, edited, policy, "put it back and run it again", EDITED_HARNESS
            )
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
                shapes=[checked_shape(result.row()) for result in results],
            )
        if judging.is_interpreted(results):
            return judging.incomplete(policy, *judging.INTERPRETED)
        if self.campaign.state.incumbent_round == 1:
            return self._nothing_left(results, policy)
        verdict = self._compare_or_fail(collector, policy, measurements, self.campaign.baseline())
        if verdict is None:
            return self._judge(collector, measurements)
        chain = chain_of_best(self.campaign.state)
        where = " over the representative cases" if chain and chain.level == "quick" else ""
        flags = (
            [f"the rounds' gains multiply to {changed(chain.change.step_pct)}{where}"]
            if chain
            else []
        )
        if self._overfit:
            flags.append(f"withdrawn: {_named(self._withdrawn)} ({self._overfit.why})")
        return verdict.model_copy(
            update={
                "next_step": self.next_steps.get(verdict.decision, verdict.next_step),
                "flags": [*verdict.flags, *flags],
            }
        )

    def _nothing_left(self, results: Sequence[CaseResult], policy: Policy) -> Verdict:
        return Verdict(
            decision=Decision.ROLLED_BACK,
            reason=f"nothing that was accepted is left: {_named(self._withdrawn)} withdrawn",
            next_step=_NEXT[Decision.ROLLED_BACK],
            compare="none",
            policy=policy.name,
            shapes=[checked_shape(result.row()) for result in results],
        )

    def _prepare(self) -> None:
        """Take back what the lineage should not have, and carry that out."""
        lineage = self._lineage()
        self._overfit = overfit(lineage)
        if self._overfit is None:
            return
        if not self._settings.apply:
            raise BadInput(
                f"round {self._overfit.round} has to be taken back first: {self._overfit.why}",
                where="--kopt-no-apply",
                legal="a final round that may restore the kernel files",
            )
        self._withdrawn = withdraw(lineage, self._overfit)
        lineage.settle(beside=projections.performance)
        projections.refresh(lineage)
        self.campaign.read_again()
        self._validate()

    def _lineage(self) -> Campaign:
        """Return the campaign with the tree that its rounds ran in."""
        return self.campaign

    def _harness_edits(self) -> list[Finding]:
        return self._watch.edits(self._watch.take(self.frozen))

    def _validate(self) -> None:
        campaign = self.campaign
        levels.always_full(self._settings.level, "the final comparison")
        if campaign.state.ended == "abandoned":
            raise BadInput("the campaign was abandoned", where="--kopt-round final")
        best = campaign.state.incumbent_round
        if best is None or (best == 1 and not self._withdrawn):
            raise BadInput(
                "no round was accepted: there is nothing to hold against the baseline",
                where="--kopt-round final",
                legal="a campaign with an accepted round",
            )
        campaign.check_ready()
        self._freeze_cases()
        self._check_tree()

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
        self._watch.check(self.frozen)
        self._check_diff()

    def _check_diff(self) -> None:
        """Raise BadInput where the campaign's commits hold more than kernel files (D0)."""
        campaign = self.campaign
        repository, baseline = campaign.repository, campaign.state.baseline
        start = baseline.last.applied.git_commit if baseline and baseline.last.applied else None
        manifest = campaign.manifest
        own_branch = manifest.git_commit and manifest.git_branch != "none"
        if repository is None or start is None or not own_branch:
            return
        own = {repository.relative(campaign.root, path) for path in campaign.candidate().files}
        own |= {repository.relative(campaign.root, path) for path in campaign.baseline().files}
        own.add(repository.relative(campaign.root, performance_log.NAME))
        strange = [path for path in repository.changed_between(start, "HEAD") if path not in own]
        if strange:
            raise BadInput(
                f"the branch changes {strange[0]} since the baseline, which is no kernel file",
                where="--kopt-round final",
                legal="kernel files only: move the other changes to a branch of their own",
            )


def _named(numbers: Sequence[int]) -> str:
    return "rounds " + ", ".join(map(str, numbers)) if len(numbers) > 1 else f"round {numbers[0]}"
