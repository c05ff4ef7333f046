"""What besides its rows counts against a candidate: findings, audit, the claim of its notes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.cases.result import CaseResult, reuse_log_ratios
from pytest_kopt.honesty.checks import Phase, ask
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inflation import Inflation, inflation
from pytest_kopt.honesty.transfer import BOUNDED, Claim, caches_weights


class Examination:
    """One candidate, held against the incumbent that it would replace."""

    def __init__(self, campaign: Campaign, kernel: KernelVersion, claim: Claim) -> None:
        self._campaign = campaign
        self._kernel = kernel
        self._claim = claim

    def found(self, results: Sequence[CaseResult]) -> list[Finding]:
        """Return what the cases' findings, the audit and the notes' bucket say together."""
        found = [found for result in results for found in result.findings]
        found += self._audited
        # A weight cache that the incumbent has as well is not this round's gain.
        old = self._incumbent_caches_weights
        own = [item for item in found if not (old and item.check == "weight-cache")]
        return [*found, *ask(Phase.CLAIMED, claim=self._claim, found=own)]

    def gains_by_weight_cache(self, results: Sequence[CaseResult]) -> bool:
        """Say whether the notes claim W1 or a weight cache was seen that the incumbent lacks."""
        if self._claim.bucket == BOUNDED:
            return True
        seen = caches_weights(result.trace for result in results)
        return seen and not self._incumbent_caches_weights

    def inflation(self, results: Sequence[CaseResult], gain_pct: float) -> Inflation | None:
        """Return the gap between a gain over the incumbent and what fresh tensors have of it."""
        old = reuse_log_ratios(self._incumbent_results)
        return inflation(reuse_log_ratios(results), old, gain_pct)

    @cached_property
    def _audited(self) -> list[Finding]:
        incumbent = self._campaign.incumbent().sources
        return ask(Phase.AUDITED, candidate=self._kernel.sources, incumbent=incumbent)

    @cached_property
    def _incumbent_results(self) -> list[CaseResult]:
        number = self._campaign.state.incumbent_round
        assert number is not None
        return self._campaign.results(number)

    @cached_property
    def _incumbent_caches_weights(self) -> bool:
        return caches_weights(result.trace for result in self._incumbent_results)
