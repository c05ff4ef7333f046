"""How much of a benchmark gain fresh tensors have: buckets, and the transfer check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import computed_field

from pytest_kopt.decide.inference import is_mostly_lost
from pytest_kopt.honesty.finding import Finding

#: A headline this far above the gain that is credited is the benchmark loop's, in points.
ALLOWED_GAP_PCT = 1.0
REAL = ("K1", "K2", "K3", "K4")
BOUNDED = "W1"
OVERFIT = ("W2", "W3")
ACCEPT_REAL, ACCEPT_ASTERISK = "ACCEPT-as-real", "ACCEPT-with-asterisk"
REJECT, UNCLASSIFIED = "REJECT-as-overfit", "not classified"
ACTIVATION, GRAD_OUT, WEIGHT = "activation", "grad_out", "weight"
UNSTATED, NO_CACHE_KEY = "_not stated; `kopt note` adds it_", "none declared"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claims of the round's notes; `step_ms` is the time of one training step."""

    bucket: str | None = None
    cache_key: str | None = None
    w1_quant_ms: float | None = None
    step_ms: float | None = None

    @property
    def bound_pct(self) -> float:
        """The largest gain of a weight cache: quant time / step time in percent, 0 untold."""
        if self.w1_quant_ms is None or self.step_ms is None:
            return 0.0
        return self.w1_quant_ms / self.step_ms * 100


@dataclass(frozen=True, slots=True)
class Trace:
    """The last four steps of the training loop, and for which kinds something is cached.

    A step maps a kind to its hits and the calls that could have hit.
    """

    cached: tuple[str, ...]
    steps: tuple[dict[str, tuple[int, int]], ...]

    def rate(self, kind: str) -> float:
        """Return a kind's hits per lookup over these steps."""
        pairs = [step[kind] for step in self.steps if kind in step]
        lookups = sum(pair[1] for pair in pairs)
        return sum(pair[0] for pair in pairs) / lookups if lookups else 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rates(self) -> dict[str, float]:
        """The rates of what is cached."""
        return {kind: self.rate(kind) for kind in self.cached}


@dataclass(frozen=True, slots=True)
class TransferEvidence:
    """The findings and measurements of the transfer check.

    `findings` are those among the verdict's flags, `traces` the training traces by case label
    (None: no cache was suspected there), `change_pct` the verdict's gain. `distributions` are the
    values of the cases' `distribution` dim, `drawn` those that group sizes were drawn from in every
    case, `skew_pct` the gain there. `new_weight_cache` says that a weight cache was seen that the
    incumbent lacks. `saved_ms` is what one call of each case saves over the incumbent.
    """

    overfit: bool
    change_pct: float | None
    findings: tuple[str, ...] = ()
    traces: Mapping[str, Trace | None] | None = None
    distributions: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    skew_pct: float | None = None
    new_weight_cache: bool = False
    saved_ms: float | None = None


def bucket_findings(claim: Claim, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Check the declared bucket against what audit and simulation found.

    A bucket that is never real is taken at its word and rejects. A weight cache under another name
    is a note: its gain is credited as W1, bounded. A suspicion of W2 or W3 by the audit alone says
    nothing here.
    """
    findings = [finding for finding in findings if finding.rejects or finding.bucket == BOUNDED]
    buckets = {finding.bucket for finding in findings if finding.bucket}
    worst = max(buckets & {BOUNDED, *OVERFIT}, default="")
    declared = claim.bucket
    if declared in OVERFIT:
        yield Finding(
            "declared-bucket",
            f"the notes declare the bucket {declared}, whose gain no training step has",
            advice="find a gain of another kind: kopt keeps K1 to K4, and W1 up to its bound",
            bucket=declared,
        )
    elif worst and declared is not None and declared != worst:
        yield Finding(
            "bucket-mismatch",
            f"the notes declare the bucket {declared}, but kopt found {worst}",
            advice=f"correct the notes: kopt note, bucket: {worst}",
            bucket=worst,
            rejects=worst in OVERFIT,
        )


def decision(claim: Claim, evidence: TransferEvidence) -> str:
    """Return the transfer check's last line."""
    if evidence.overfit or claim.bucket in OVERFIT:
        return REJECT
    if claim.bucket == BOUNDED or evidence.new_weight_cache:
        return ACCEPT_ASTERISK
    return ACCEPT_REAL if claim.bucket in REAL else UNCLASSIFIED


def credited_pct(claim: Claim, evidence: TransferEvidence) -> float | None:
    """Return the benchmark gain in percent that fresh tensors have, None when untold."""
    verdict = decision(claim, evidence)
    if verdict == REJECT:
        return 0.0
    if verdict == UNCLASSIFIED or evidence.change_pct is None:
        return None
    fresh = evidence.change_pct
    if evidence.skew_pct is not None and is_mostly_lost(fresh, evidence.skew_pct):
        fresh = evidence.skew_pct
    return min(fresh, claim.bound_pct) if verdict == ACCEPT_ASTERISK else fresh


def step_saving_pct(claim: Claim, evidence: TransferEvidence) -> float | None:
    """Return the share of a training step that is saved, None where the notes give no step.

    A step is taken to call each case once. The saving of a weight cache is bounded by quant time.
    """
    if claim.step_ms is None or evidence.saved_ms is None:
        return None
    saved_pct, verdict = evidence.saved_ms / claim.step_ms * 100, decision(claim, evidence)
    if verdict == ACCEPT_ASTERISK:
        return min(saved_pct, claim.bound_pct)
    fresh_pct = credited_pct(claim, evidence)
    if verdict == ACCEPT_REAL and fresh_pct is not None and evidence.change_pct:
        return saved_pct * fresh_pct / evidence.change_pct
    return None


def caches_weights(traces: Iterable[Trace | None]) -> bool:
    """Say whether the simulation saw a weight cache in any of these cases."""
    return any(trace and WEIGHT in trace.cached for trace in traces)
