"""The transfer check: the part of a gain that training has, by the author's notes.

It is a report. It refuses nothing: a gain that only the benchmark loop has does not show where
every timed call has inputs of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

REAL = ("K1", "K2", "K3", "K4")
BOUNDED = "W1"
OVERFIT = ("W2", "W3")
ACCEPT_REAL, ACCEPT_ASTERISK = "ACCEPT-as-real", "ACCEPT-with-asterisk"
REJECT, UNCLASSIFIED = "REJECT-as-overfit", "not classified"
UNSTATED, NO_CACHE_KEY = "_not stated; `kopt note` adds it_", "none declared"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claims of the round's notes; `step_ms` is the time of one training step."""

    bucket: str | None = None
    cache_key: str | None = None
    w1_quant_ms: float | None = None
    step_ms: float | None = None

    @property
    def decision(self) -> str:
        """The last line of the check."""
        if self.bucket in OVERFIT:
            return REJECT
        if self.bucket == BOUNDED:
            return ACCEPT_ASTERISK
        return ACCEPT_REAL if self.bucket in REAL else UNCLASSIFIED

    @property
    def bound_pct(self) -> float:
        """The largest gain of a weight cache: quant time / step time in percent, 0 untold."""
        if self.w1_quant_ms is None or self.step_ms is None:
            return 0.0
        return self.w1_quant_ms / self.step_ms * 100

    def credited_pct(self, gain_pct: float | None) -> float | None:
        """Return the part of a benchmark gain in percent that counts, None when untold."""
        if self.bucket in OVERFIT:
            return 0.0
        if self.bucket is None or gain_pct is None:
            return None
        return min(gain_pct, self.bound_pct) if self.bucket == BOUNDED else gain_pct
