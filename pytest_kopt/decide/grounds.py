"""The grounds of decisions without times, in their order, for every kind of session.

They concern what precedes a comparison (case set, correctness, finite metrics), and equal code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.columns import gate_holds, parse_gate
from pytest_kopt.schema.metrics import Metric, has_backward, value
from pytest_kopt.schema.table import Row, Table, describe_header_drift

#: What was done, and what to do, after a version that is not kept; and after one that is.
RESTORED, ANOTHER = "kopt restored the current best", "try another hypothesis"
GO_ON = "go on with the next round"


class Ground(Enum):
    """A ground of a decision that needs no times, and the decision. The first one decides."""

    SPOILED = ("the session was interrupted, or its harness changed", Decision.INCOMPLETE)
    EDITED = ("the candidate edited the harness", Decision.REJECTED_OVERFIT)
    MISSING = ("a case has no row", Decision.INCOMPLETE)
    DISHONEST = ("what the candidate gains is not real", Decision.REJECTED_OVERFIT)
    WRONG = ("a case is wrong", Decision.REPAIR)
    WRONG_AGAIN = ("a case is wrong, and no repair is left", Decision.ROLLED_BACK)
    INTERPRETED = ("an interpreter ran the cases", Decision.INCOMPLETE)
    UNSOUND = ("no version can be compared with this one", Decision.INCOMPLETE)
    NO_FIGURE = ("a case has no figure", Decision.ROLLED_BACK)
    SAME = ("a round's version is the current best's code", Decision.ROLLED_BACK)
    SAME_WITH_BENEFIT = ("the same, and the notes state a benefit", Decision.ACCEPTED_WITH_NOTE)
    UNCHANGED = ("a gate's version is the base's code", Decision.ACCEPTED)
    UNCHANGED_NO_GAIN = ("the same, and the gate asks for a gain", Decision.INCONCLUSIVE)
    DISCARDED = ("the author gives an open round up", Decision.ROLLED_BACK)
    FIRST = ("the first version is right and measured", Decision.BASELINE)

    @property
    def decision(self) -> Decision:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Observation:
    """A ground in words; `evidence` is what a verdict by it rests on, by published key."""

    ground: Ground
    reason: str
    next_step: str = "run it again"
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def verdict(self, policy: str) -> Verdict:
        told = {"reason": self.reason, "next_step": self.next_step, "compare": "none"}
        return Verdict(decision=self.ground.decision, policy=policy, **{**told, **self.evidence})


def by_ground(observed: Iterable[Observation | None], policy: Policy) -> Verdict | None:
    """Return the verdict by the observation of the first ground, None without any."""
    order = [*Ground]
    first = min(filter(None, observed), key=lambda one: order.index(one.ground), default=None)
    return first.verdict(policy.name) if first else None


def check_same_schema(candidate: Table, incumbent: Table, where: str) -> None:
    """Raise BadInput, naming the drift, when the headers or the case sets do not agree."""
    if candidate.header != incumbent.header:
        raise BadInput(
            describe_header_drift(candidate.header, incumbent.header),
            where=where,
            legal=",".join(incumbent.header),
        )
    before = incumbent.by_key()
    foreign = [row for row in candidate.rows if row.key not in before]
    if foreign:
        dims = ", ".join(f"{name}={text}" for name, text in foreign[0].dims.items())
        raise BadInput(
            f"the case set changed: {foreign[0].label!r} ({dims}) is not in the baseline",
            where=where,
            fix="measure the baseline's cases; for others begin again: kopt init NEW --from OLD",
        )


def after_regression(*, some_gained: bool) -> str:
    """Return what to do after a case lost more than the gate allows."""
    return f"{'keep the gain for the cases that have it, or ' * some_gained}{ANOTHER}"


def incomplete(policy: Policy, reason: str, step: str = "run it again") -> Verdict:
    """Return the verdict on a session that could not judge all cases: nothing is decided."""
    return Observation(Ground.SPOILED, reason, step).verdict(policy.name)


def unchanged(why: str, shapes: Sequence[Shape] = (), *, asks_gain: bool = False) -> Observation:
    """Return that a gate's code is equal: no regression, and no gain either."""
    ground = Ground.UNCHANGED_NO_GAIN if asks_gain else Ground.UNCHANGED
    step = "the gate asks for a gain; there is none to measure" if asks_gain else ""
    return Observation(ground, why, step, {"shapes": shapes})


def same_code(where: str, benefit: str | None, shapes: Sequence[Shape]) -> Observation:
    """Return that a round's code is equal, which is kept for a stated benefit alone."""
    if not benefit:
        return Observation(Ground.SAME, where, "", {"shapes": shapes})
    where += f", kept for its extra benefit (stated, not measured): {benefit}"
    return Observation(Ground.SAME_WITH_BENEFIT, where, "", {"shapes": shapes})


def missing_rows(candidate: Table, incumbent: Table) -> Observation | None:
    """Return that a stored run left cases out, None where it has all."""
    present = candidate.by_key()
    missing = [row for row in incumbent.rows if row.key not in present]
    if not missing:
        return None
    return Observation(
        Ground.MISSING,
        f"{len(missing)} case(s) have no row: {some([row.label for row in missing])}",
        "run all cases of this scope, without -k or an interruption",
        {"shapes": [checked_shape(row, "MISSING") for row in missing], "compare": "stored"},
    )


def some(names: Sequence[str]) -> str:
    """Return the first names of a list, for a sentence."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def wrong_rows(table: Table, policy: Policy, failed_repairs: int) -> Observation | None:
    """Return that checks failed, None when every row is PASS.

    `failed_repairs` counts the repairs of this round that failed before this attempt: -1 for the
    first attempt, so that the failure with `max_repairs` failed repairs in all rolls back.
    """
    failed = [row for row in table.rows if row.check != "PASS"]
    if not failed:
        return None
    kinds = "/".join(sorted({row.check for row in failed}))
    labels = some([row.label for row in failed])
    reason = f"{len(failed)} of {len(table.rows)} case(s) are {kinds}: {labels}"
    repairs = failed_repairs + 1
    left = policy.max_repairs - repairs
    ground = Ground.WRONG if left > 0 else Ground.WRONG_AGAIN
    step = f"{RESTORED}; {ANOTHER} in the next round"
    if left > 0:
        step = (
            "repair the same hypothesis and run this round again "
            f"({left} repair{'s' if left != 1 else ''} left)"
        )
    elif policy.max_repairs:
        reason += f"; repair {repairs} of {policy.max_repairs} failed as well"
    return Observation(ground, reason, step, {"shapes": [*map(checked_shape, table.rows)]})


def checked_shape(row: Row, check: str = "", status: str = "", **more: Any) -> Shape:
    """Return a case of which only the check is known (the row's, unless given), and `more`."""
    check = check or row.check
    status = status or ("unchanged" if check == "PASS" else "failed")
    fields = {"label": row.label, "dims": row.typed_dims, "check": check, "status": status}
    return Shape.model_validate(fields | more)


def no_figure(
    table: Table, metrics: Sequence[Metric], policy: Policy, incumbent: Table | None = None
) -> Observation | None:
    """Return that a PASS row lacks a metric, a backward or a gate column (B4); None: none does."""
    before = incumbent.by_key() if incumbent else {}
    for row in table.passed:
        if what := _missing(row, before.get(row.key), metrics, policy):
            return Observation(
                Ground.NO_FIGURE,
                f"missing metrics: row {row.label!r} is PASS but {what}",
                "find out why the case has no figure",
                {"shapes": [checked_shape(row, status="failed")]},
            )
    return None


def _missing(row: Row, old: Row | None, metrics: Sequence[Metric], policy: Policy) -> str:
    """Return what a row lacks, "" for nothing; `old` is the incumbent's."""
    for gate in policy.gates:
        column, _, _ = parse_gate(gate)
        figure = row.number(column) if column in row.cells else None
        if figure is None:
            return f"gate column {column!r} is empty or absent"
        if not gate_holds(gate, figure):
            return f"gate {gate!r} does not hold: {figure!r}"
    if old is not None and has_backward(old) and not has_backward(row):
        return "its backward is empty"
    for metric in metrics:
        figure = value(row, metric)
        if figure is None or not math.isfinite(figure) or figure <= 0:
            return f"{metric.name} is {'empty' if figure is None else repr(figure)}"
    return ""
