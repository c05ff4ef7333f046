"""A gain has to be there with uneven groups as well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_kopt import policies
from pytest_kopt.decide.inference import FINAL_LOOK
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.series import SeriesTable
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.schema.table import Classes
from tests.builders import paired_evidence, with_skew

PRIMUS = policies.load("primus")


def evidence(*changes: float, **more: Any) -> SeriesTable:
    return paired_evidence(*changes, metric="Forward TFLOPS", **more)


def judged(declared: SeriesTable, *uneven: float, **more: Any) -> Verdict | None:
    table = with_skew(declared, evidence(*uneven, **more)) if uneven else declared
    return decide(table, PRIMUS)


@pytest.mark.parametrize(
    ("declared", "uneven", "decision"),
    [
        (30.0, (8.0, 9.0), "ACCEPTED_WITH_NOTE"),
        (10.0, (8.0, 9.0), "ACCEPTED"),
        (10.0, (), "ACCEPTED"),
        (10.0, (0.0, 0.0), "INCONCLUSIVE"),
        (10.0, (-2.0, -3.0), "ROLLED_BACK"),
        (10.0, (20.0, -9.0), "ROLLED_BACK"),
        (10.0, (20.0, -2.0), "ACCEPTED_WITH_NOTE"),
        (-10.0, (20.0, 20.0), "ROLLED_BACK"),
        (0.0, (20.0, 20.0), "INCONCLUSIVE"),
        (0.0, (-9.0, -9.0), "INCONCLUSIVE"),
    ],
)
def test_what_skew_does_not_have_is_not_accepted(
    declared: float, uneven: tuple[float, ...], decision: str
) -> None:
    verdict = judged(evidence(declared, declared), *uneven)
    assert verdict is not None and verdict.decision == decision, verdict
    if uneven and declared > 0:
        (under,) = verdict.secondary
        assert under.metric == "Forward TFLOPS under skew"
        assert verdict.aggregate and verdict.aggregate.metric == "Forward TFLOPS"
    if decision != "ACCEPTED":
        assert ("with other group sizes" in verdict.reason) == (declared > 0)


def test_a_target_class_without_group_sizes_is_judged_as_declared() -> None:
    """All that has group sizes still has to hold."""
    classes: dict[str, Any] = {"classes": Classes(("M",), "M=0")}
    declared = evidence(9.0, 9.0, **classes)
    for uneven, decision in ((8.0, "ACCEPTED"), (-3.0, "ROLLED_BACK")):
        of_the_other = replace(declared, series=evidence(0.0, uneven).series[1:])
        verdict = decide(with_skew(declared, of_the_other), PRIMUS)
        assert verdict is not None and verdict.decision == decision, verdict
        assert verdict.target_class == "M=0"


def test_what_is_not_clear_under_skew_takes_more_processes() -> None:
    assert judged(evidence(10.0), 6.0, spread=3.0) is None
    last = judged(evidence(10.0, look=FINAL_LOOK), 3.0, spread=6.0, look=FINAL_LOOK)
    assert last is not None and last.decision == "INCONCLUSIVE"
    assert judged(evidence(10.0, spread=9.0), 10.0) is None


def test_a_pull_request_may_not_be_slower_under_skew() -> None:
    gate: dict[str, Any] = {"gate": "no-regression"}
    for uneven, code in ((0.0, 0), (-2.0, 0), (-9.0, 8)):
        verdict = judged(evidence(0.0, **gate), uneven, **gate)
        assert verdict is not None and verdict.exit_code == code


def test_classes_that_split_under_skew_alone_are_no_split() -> None:
    classes: dict[str, Any] = {"classes": Classes(("M",))}
    verdict = judged(evidence(9.0, 9.0, **classes), 20.0, -4.0, **classes)
    assert verdict is not None and verdict.decision == "ROLLED_BACK"
