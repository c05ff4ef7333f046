"""Verdicts that need no times: the hard gates in front of every comparison, and code that is equal.

The hard gates are schema, case set, correctness and finite metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.columns import gate_holds, parse_gate
from pytest_kopt.schema.metrics import Metric, has_backward, value
from pytest_kopt.schema.table import Row, Table, describe_header_drift

#: What to do after a version that is not kept.
ANOTHER = "try another hypothesis"


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


def missing_cases(candidate: Table, incumbent: Table) -> list[Row]:
    present = candidate.by_key()
    return [row for row in incumbent.rows if row.key not in present]


def after_regression(*, some_gained: bool) -> str:
    """Return what to do after a case lost more than the gate allows."""
    return f"{'keep the gain for the cases that have it, or ' * some_gained}{ANOTHER}"


def uncompared(
    policy: Policy,
    decision: Decision,
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


def incomplete(
    policy: Policy, reason: str, step: str = "run it again", shapes: Sequence[Shape] = ()
) -> Verdict:
    """Return the verdict on a session that could not judge all cases: nothing is decided."""
    return uncompared(policy, Decision.INCOMPLETE, reason, step, shapes)


def cut_off() -> Verdict:
    """Return the verdict on a round whose session ended before it was decided."""
    return Verdict(
        decision=Decision.INCOMPLETE,
        reason="the session was cut off",
        next_step="run the round again",
        compare="none",
        policy="",
    )


def overfit(policy: Policy, reason: str, step: str, shapes: Sequence[Shape] = ()) -> Verdict:
    """Return the refusal of a version whose gain does not count."""
    return uncompared(policy, Decision.REJECTED_OVERFIT, reason, step, shapes)


def wrong(policy: Policy, reason: str, step: str, shapes: Sequence[Shape] = ()) -> Verdict:
    """Return the verdict on wrong results where nobody counts repairs."""
    return uncompared(policy, Decision.REPAIR, reason, step, shapes)


def baseline(policy: Policy, reason: str, step: str, shapes: Sequence[Shape]) -> Verdict:
    return uncompared(policy, Decision.BASELINE, reason, step, shapes)


def discarded(policy: Policy, after: str) -> Verdict:
    """Return the verdict on an open round that its author gives up; `after` is what it came to."""
    step = "kopt restored the current best; go on with the next round"
    return uncompared(policy, Decision.ROLLED_BACK, f"discarded by its author{after}", step)


def unchanged(
    policy: Policy, why: str, shapes: Sequence[Shape] = (), *, asks_gain: bool = False
) -> Verdict:
    """Return the verdict of a gate on code that is equal: no regression, and no gain either."""
    if asks_gain:
        step = "the gate asks for a gain; there is none to measure"
        return uncompared(policy, Decision.INCONCLUSIVE, why, step, shapes)
    return uncompared(policy, Decision.ACCEPTED, why, shapes=shapes)


def same_code(policy: Policy, where: str, benefit: str | None, shapes: Sequence[Shape]) -> Verdict:
    """Return the verdict of a round on code that is equal: kept for a stated benefit alone."""
    if not benefit:
        return uncompared(policy, Decision.ROLLED_BACK, where, shapes=shapes)
    reason = f"{where}, kept for its extra benefit (stated, not measured): {benefit}"
    return uncompared(policy, Decision.ACCEPTED_WITH_NOTE, reason, shapes=shapes)


def rows_missing(missing: Sequence[Row], policy: Policy) -> Verdict:
    """Return the stored verdict on a run that left cases out: nothing is decided."""
    return uncompared(
        policy,
        Decision.INCOMPLETE,
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
    if repairs >= policy.max_repairs:
        decision = Decision.ROLLED_BACK
        if policy.max_repairs:
            reason += f"; repair {repairs} of {policy.max_repairs} failed as well"
        step = "kopt restored the current best; try another hypothesis in the next round"
    else:
        decision = Decision.REPAIR
        left = policy.max_repairs - repairs
        step = (
            "repair the same hypothesis and run this round again "
            f"({left} repair{'s' if left != 1 else ''} left)"
        )
    return uncompared(policy, decision, reason, step, [*map(checked_shape, table.rows)])


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
    for row in (row for row in table.rows if row.check == "PASS"):
        for gate in policy.gates:
            column, _, _ = parse_gate(gate)
            figure = row.number(column) if column in row.cells else None
            if figure is None:
                return _missing_metrics(row, f"gate column {column!r} is empty or absent", policy)
            if not gate_holds(gate, figure):
                return _missing_metrics(row, f"gate {gate!r} does not hold: {figure!r}", policy)
        old = before.get(row.key)
        if old is not None and has_backward(old) and not has_backward(row):
            return _missing_metrics(row, "its backward is empty", policy)
        for metric in metrics:
            figure = value(row, metric)
            if figure is None or not math.isfinite(figure) or figure <= 0:
                text = "empty" if figure is None else repr(figure)
                return _missing_metrics(row, f"{metric.name} is {text}", policy)
    return None


def _missing_metrics(row: Row, what: str, policy: Policy) -> Verdict:
    return uncompared(
        policy,
        Decision.ROLLED_BACK,
        f"missing metrics: row {row.label!r} is PASS but {what}",
        "find out why the case has no figure",
        [checked_shape(row, status="failed")],
    )
