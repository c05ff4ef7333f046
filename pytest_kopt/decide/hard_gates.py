"""Verdicts that need no times: the hard gates in front of every comparison, and code that is equal.

The hard gates are schema, case set, correctness and finite metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

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


def uncompared(
    decision: Decision,
    policy: Policy,
    reason: str,
    next_step: str = "",
    shapes: Sequence[Shape] = (),
    compare: Literal["none", "stored"] = "none",
) -> Verdict:
    """Return a verdict that needed no comparison, with the cases as they stand."""
    return Verdict(
        decision=decision,
        reason=reason,
        next_step=next_step,
        compare=compare,
        policy=policy.name,
        shapes=[*shapes],
    )


#: Round 1; a version whose gain does not count; wrong results where nobody counts repairs.
baseline = partial(uncompared, Decision.BASELINE)
overfit = partial(uncompared, Decision.REJECTED_OVERFIT)
wrong = partial(uncompared, Decision.REPAIR)


def incomplete(
    policy: Policy, reason: str, step: str = "run it again", shapes: Sequence[Shape] = ()
) -> Verdict:
    """Return the verdict on a session that could not judge all cases: nothing is decided."""
    return uncompared(Decision.INCOMPLETE, policy, reason, step, shapes)


def cut_off() -> Verdict:
    """Return the verdict on a round whose session ended before it was decided."""
    return Verdict(
        decision=Decision.INCOMPLETE,
        reason="the session was cut off",
        next_step="run the round again",
        compare="none",
        policy="",
    )


def discarded(policy: Policy, after: str) -> Verdict:
    """Return the verdict on an open round that its author gives up; `after` is what it came to."""
    reason = f"discarded by its author{after}"
    return uncompared(Decision.ROLLED_BACK, policy, reason, f"{RESTORED}; {GO_ON}")


def unchanged(
    policy: Policy, why: str, shapes: Sequence[Shape] = (), *, asks_gain: bool = False
) -> Verdict:
    """Return the verdict of a gate on code that is equal: no regression, and no gain either."""
    decision = Decision.INCONCLUSIVE if asks_gain else Decision.ACCEPTED
    step = "the gate asks for a gain; there is none to measure" if asks_gain else ""
    return uncompared(decision, policy, why, step, shapes)


def same_code(policy: Policy, where: str, benefit: str | None, shapes: Sequence[Shape]) -> Verdict:
    """Return the verdict of a round on code that is equal: kept for a stated benefit alone."""
    decision = Decision.ROLLED_BACK
    if benefit:
        decision = Decision.ACCEPTED_WITH_NOTE
        where += f", kept for its extra benefit (stated, not measured): {benefit}"
    return uncompared(decision, policy, where, shapes=shapes)


def missing_verdict(candidate: Table, incumbent: Table, policy: Policy) -> Verdict | None:
    """Return the stored verdict on a run that left cases out, None where it has all."""
    present = candidate.by_key()
    missing = [row for row in incumbent.rows if row.key not in present]
    if not missing:
        return None
    return uncompared(
        Decision.INCOMPLETE,
        policy,
        f"{len(missing)} case(s) have no row: {some([row.label for row in missing])}",
        "run all cases of this scope, without -k or an interruption",
        [checked_shape(row, "MISSING") for row in missing],
        "stored",
    )


def some(names: Sequence[str]) -> str:
    """Return the first names of a list, for a sentence."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def correctness_verdict(table: Table, policy: Policy, failed_repairs: int) -> Verdict | None:
    """Return the verdict on failed checks, None when every row is PASS.

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
    decision = Decision.REPAIR if left > 0 else Decision.ROLLED_BACK
    step = f"{RESTORED}; {ANOTHER} in the next round"
    if left > 0:
        step = (
            "repair the same hypothesis and run this round again "
            f"({left} repair{'s' if left != 1 else ''} left)"
        )
    elif policy.max_repairs:
        reason += f"; repair {repairs} of {policy.max_repairs} failed as well"
    return uncompared(decision, policy, reason, step, [*map(checked_shape, table.rows)])


def checked_shape(row: Row, check: str = "", status: str = "") -> Shape:
    """Return a case of which only the check is known: the row's, unless it is given."""
    check = check or row.check
    status = status or ("unchanged" if check == "PASS" else "failed")
    fields = {"label": row.label, "dims": row.typed_dims, "check": check, "status": status}
    return Shape.model_validate(fields)


def metrics_verdict(
    table: Table, metrics: Sequence[Metric], policy: Policy, incumbent: Table | None = None
) -> Verdict | None:
    """Return a roll-back when a PASS row lacks a metric, a backward or a gate column (B4)."""
    before = incumbent.by_key() if incumbent else {}
    for row in table.passed:
        if what := _missing(row, before.get(row.key), metrics, policy):
            return uncompared(
                Decision.ROLLED_BACK,
                policy,
                f"missing metrics: row {row.label!r} is PASS but {what}",
                "find out why the case has no figure",
                [checked_shape(row, status="failed")],
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
