"""performance_trend.md: one row a decided round, appended, never rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.history.trend import Chain, chain_to
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.decide.verdict import Decision, Level
from pytest_kopt.figures import frozen, frozen_change
from pytest_kopt.schema.metrics import RATE_UNITS, direction
from pytest_kopt.show.words import one_line

#: Heading of the column beside the frozen ones, of which Status knows one word for all roll-backs.
DECISION = "Decision"


def header(unit: str) -> str:
    figures = (*("Fwd Avg", "Fwd Peak", "Bwd Avg", "Bwd Peak"), "Combined Step")
    columns = (
        *("Round", "Status", "Description", *(f"{name} {unit}" for name in figures)),
        *("vs Baseline", "Key Finding", DECISION),
    )
    rule = "|".join("-" * (len(column) + 2) for column in columns)
    return f"| {' | '.join(columns)} |\n|{rule}|\n"


def row(
    item: Round, baseline: ledger.Trend, chain: Chain | None, *, tells_decision: bool = True
) -> str:
    """Return the trend row of a decided round.

    `chain` is the paired gain over round 1 where every link was paired: values of two sessions
    differ by several percent with no change, the product of paired gains does not. A quick round's
    figures are of the representative cases, and so are those of round 1 it is held against. A file
    that was begun before there was a column for the decision has none.
    """
    decided = item.verdict
    assert decided is not None
    found, start = decided.trend or ledger.Trend(unit=baseline.unit), decided.baseline or baseline
    notes = item.notes
    is_baseline = decided.decision is Decision.BASELINE
    described = notes.summary or notes.change or notes.hypothesis
    cells = [
        str(item.number),
        status(decided.decision),
        (described or ("Baseline" if is_baseline else "not described")) + mark(decided.level),
        *map(frozen, (found.forward_average, found.forward_peak)),
        *map(frozen, (found.backward_average, found.backward_peak, found.combined)),
        "—" if is_baseline else (chained(chain) if chain else versus(found, start)),
        notes.key_finding or decided.reason,
        *([str(decided.decision)] if tells_decision else []),
    ]
    return f"| {' | '.join(one_line(cell) for cell in cells)} |\n"


def mark(level: Level) -> str:
    return " (quick)" if level == "quick" else ""


def status(decision: Decision) -> str:
    if decision is Decision.BASELINE:
        return "BASELINE"
    return "ACCEPTED" if decision.keeps else "ROLLBACK"


def versus(found: ledger.Trend, baseline: ledger.Trend) -> str:
    """Return `step ±X%, fwd ±Y%, bwd ±Z%` against round 1; positive is better."""
    # A trend without a rate has a column of its own for its unit.
    is_rate = found.unit.endswith(RATE_UNITS)
    better = "higher" if is_rate else direction(found.unit, {})

    def change(new: float | None, old: float | None) -> float | None:
        if new is None or old is None or not new > 0 or not old > 0:
            return None
        return ((new / old if better == "higher" else old / new) - 1) * 100

    columns = ("combined", "forward_average", "backward_average")
    return _by_direction(change(getattr(found, c), getattr(baseline, c)) for c in columns)


def chained(chain: Chain) -> str:
    change = chain.change
    told = _by_direction((change.step_pct, change.forward_pct, change.backward_pct))
    return f"{told}{mark(chain.level)}"


def _by_direction(changes: Iterable[float | None]) -> str:
    told = zip(("step", "fwd", "bwd"), map(frozen_change, changes), strict=True)
    return ", ".join(f"{name} {change}" for name, change in told)


def missing_text(text: str, state: CampaignState) -> str:
    """Return what has to be appended to the file's `text` so that every decided round has a row."""
    baseline = state.baseline
    if baseline is None or baseline.verdict is None or baseline.verdict.trend is None:
        return ""
    # The last row of a round stands; one that was taken back gets another.
    present = dict(re.findall(r"^\| (\d+) \| (\w+) \|", text, re.MULTILINE))
    start = baseline.verdict.trend
    tells_decision = not text or f" {DECISION} |" in text
    rows = [
        row(item, start, chain_to(state, item.verdict), tells_decision=tells_decision)
        for item in state.decided_rounds()
        if item.verdict and present.get(str(item.number)) != status(item.verdict.decision)
    ]
    title = "" if text else f"# Performance trend\n\n{header(start.unit)}"
    return title + "".join(rows)
