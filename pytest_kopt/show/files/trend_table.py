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


def _cells(round: Round, baseline: ledger.Trend, chain: Chain | None) -> dict[str, str]:
    """Return the cells of a decided round by heading.

    `chain` is the paired gain over round 1 where every link was paired: values of two sessions
    differ by several percent with no change, the product of paired gains does not. A quick round's
    figures are of the representative cases, and so are those of round 1 it is held against.
    """
    decided, notes, unit = round.verdict, round.notes, baseline.unit
    assert decided is not None
    trend, start = decided.trend or ledger.Trend(unit=unit), decided.baseline or baseline
    is_baseline = decided.decision is Decision.BASELINE
    return {
        "Round": str(round.number),
        "Status": status(decided.decision),
        "Description": (notes.title or ("Baseline" if is_baseline else "not described"))
        + mark(decided.level),
        f"Fwd Avg {unit}": frozen(trend.forward_average),
        f"Fwd Peak {unit}": frozen(trend.forward_peak),
        f"Bwd Avg {unit}": frozen(trend.backward_average),
        f"Bwd Peak {unit}": frozen(trend.backward_peak),
        f"Combined Step {unit}": frozen(trend.combined),
        "vs Baseline": "—" if is_baseline else (chained(chain) if chain else versus(trend, start)),
        "Key Finding": notes.key_finding or decided.reason,
        DECISION: str(decided.decision),
    }


def mark(level: Level) -> str:
    return " (quick)" if level == "quick" else ""


def status(decision: Decision) -> str:
    if decision is Decision.BASELINE:
        return "BASELINE"
    return "ACCEPTED" if decision.keeps else "ROLLBACK"


def versus(trend: ledger.Trend, baseline: ledger.Trend) -> str:
    """Return `step ±X%, fwd ±Y%, bwd ±Z%` against round 1; positive is better."""
    # A trend without a rate has a column of its own for its unit.
    is_rate = trend.unit.endswith(RATE_UNITS)
    better = "higher" if is_rate else direction(trend.unit, {})

    def change(new: float | None, old: float | None) -> float | None:
        if new is None or old is None or not new > 0 or not old > 0:
            return None
        return ((new / old if better == "higher" else old / new) - 1) * 100

    columns = ("combined", "forward_average", "backward_average")
    return _by_direction(change(getattr(trend, c), getattr(baseline, c)) for c in columns)


def chained(chain: Chain) -> str:
    change = chain.change
    text = _by_direction((change.step_pct, change.forward_pct, change.backward_pct))
    return f"{text}{mark(chain.level)}"


def _by_direction(changes: Iterable[float | None]) -> str:
    named = zip(("step", "fwd", "bwd"), map(frozen_change, changes), strict=True)
    return ", ".join(f"{name} {change}" for name, change in named)


def missing_text(text: str, state: CampaignState) -> str:
    """Return what has to be appended to the file's `text` so that every decided round has a row."""
    baseline = state.baseline
    if baseline is None or baseline.verdict is None or baseline.verdict.trend is None:
        return ""
    # The last row of a round stands; one that was taken back gets another.
    present = dict(re.findall(r"^\| (\d+) \| (\w+) \|", text, re.MULTILINE))
    start = baseline.verdict.trend
    rows = [
        _cells(round, start, chain_to(state, round.verdict))
        for round in state.decided_rounds()
        if round.verdict and present.get(str(round.number)) != status(round.verdict.decision)
    ]
    if text and f" {DECISION} |" not in text:
        # The file was begun before there was such a column.
        rows = [{name: cell for name, cell in row.items() if name != DECISION} for row in rows]
    lines = [f"| {' | '.join(map(one_line, row.values()))} |\n" for row in rows]
    if not text:
        rule = "|".join("-" * (len(name) + 2) for name in rows[0])
        lines.insert(0, f"# Performance trend\n\n| {' | '.join(rows[0])} |\n|{rule}|\n")
    return "".join(lines)
