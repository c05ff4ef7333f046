"""A case's own regression limit, and the weighted time of all cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.cases.case import declare
from pytest_kopt.cases.order import hold_against_baseline
from pytest_kopt.cases.result import ExpectedCase
from pytest_kopt.decide.inference import FINAL_LOOK
from pytest_kopt.decide.known_noise import DEVICE_TIMED, Noise
from pytest_kopt.decide.look import slower_by
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.series import Series
from pytest_kopt.decide.stored import StoredEvidence, decide_stored
from pytest_kopt.decide.verdict import Aggregate, Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.metrics import WEIGHTED_TIME
from pytest_kopt.show.exports.comment import comment
from pytest_kopt.show.terminal import verdict_lines
from tests.builders import few_examples, metric_table, series_table

PRIMUS = policies.load("primus")
BY_TIME = PRIMUS.model_copy(update={"decided_by": "weighted-time"})
#: A short case gains 30 %, a long one takes 4 % longer: the whole is slower.
BETTER_MEAN: dict[str, Any] = {"slower_pct": [-23.0, 4.0], "times": [1.0, 100.0]}

changes_pct = st.floats(-15, 15)
limits_pct = st.floats(0.5, 20)
weights = st.floats(0.1, 10)


def paired(
    slower_pct: Sequence[float],
    *,
    gate: Any = "no-regression",
    limits: Sequence[float | None] = (),
    limit_us: float | None = None,
    weights: Sequence[float] = (),
    times: Sequence[float] = (),
    core: Sequence[bool] = (),
    policy: Policy = PRIMUS,
) -> Verdict:
    """Judge cases that take so many percent longer in every process, all of them measured."""
    wobble = [1e-5 * (1 if i % 2 else -1) for i in range(FINAL_LOOK)]
    cases = tuple(
        Series(
            f"c{i}",
            f"c{i}",
            {},
            tuple(slower_by(pct) + w for w in wobble),
            core=core[i] if core else True,
            incumbent_ms=times[i] if times else 1.0,
            limit_pct=limits[i] if limits else None,
            limit_us=limit_us,
            weight=weights[i] if weights else 1.0,
        )
        for i, pct in enumerate(slower_pct)
    )
    noise = Noise((), DEVICE_TIMED.times(1e-4))
    verdict = decide(series_table(cases, "step speed", noise, gate=gate), policy)
    assert verdict is not None
    return verdict


def stored(
    slower_pct: Sequence[float],
    *,
    weights: Sequence[float] = (),
    limits: Sequence[float | None] = (),
    limit_us: float | None = None,
    times: Sequence[float] = (),
    policy: Policy = PRIMUS,
) -> Verdict:
    """The same from two tables."""
    before = list(times) or [1.0] * len(slower_pct)
    after = [ms * (1 + pct / 100) for ms, pct in zip(before, slower_pct, strict=True)]
    old, new = (metric_table("Time (ms)", column) for column in (before, after))
    keys = [row.key for row in old.rows]
    evidence = StoredEvidence(
        new,
        old,
        limits={key: (pct, limit_us) for key, pct in zip(keys, limits, strict=False) if pct},
        weights=dict(zip(keys, weights, strict=False)),
    )
    return decide_stored(evidence, policy)


@few_examples
@given(st.lists(st.tuples(changes_pct, limits_pct | st.none()), min_size=1, max_size=4))
def test_a_change_passes_where_every_case_is_within_its_own_limit(
    cases: list[tuple[float, float | None]],
) -> None:
    losses, limits = zip(*cases, strict=True)
    bounds = [limit or PRIMUS.shape_gate_pct for limit in limits]
    # A larger change scatters more between processes.
    margins = [0.1 + 0.1 * abs(loss) for loss in losses]
    apart = (abs(loss - bound) for loss, bound in zip(losses, bounds, strict=True))
    assume(all(by > margin for by, margin in zip(apart, margins, strict=True)))
    verdict = paired(losses, limits=limits)
    within = all(loss < bound for loss, bound in zip(losses, bounds, strict=True))
    assert verdict.decision.keeps == within
    regressed = [shape.status == "regressed" for shape in verdict.shapes]
    assert regressed == [loss > bound for loss, bound in zip(losses, bounds, strict=True)]


@few_examples
@given(st.lists(changes_pct, min_size=1, max_size=4), st.sampled_from(["improve", "no-regression"]))
def test_the_policys_limit_declared_by_each_case_changes_no_decision(
    losses: list[float], gate: str
) -> None:
    same = [PRIMUS.shape_gate_pct] * len(losses)
    assert paired(losses, gate=gate, limits=same).decision == paired(losses, gate=gate).decision
    assert stored(losses, limits=same).decision == stored(losses).decision


@pytest.mark.parametrize("rule", [paired, stored])
def test_the_limit_that_was_passed_is_named(rule: Any) -> None:
    verdict = rule([2.0, -9.0], limits=[1.0, None])
    assert verdict.decision is Decision.ROLLED_BACK
    assert "limit of 1 %" in verdict.reason or "regression limit 1 %" in verdict.reason
    assert rule([9.0, -30.0], limits=[20.0, None]).decision is Decision.ACCEPTED_WITH_NOTE


def test_a_limit_of_its_own_guards_a_case_that_is_not_a_core_one() -> None:
    core = [True, False]
    assert paired([-9.0, 7.0], core=core).decision.keeps
    assert not paired([-9.0, 7.0], core=core, limits=[None, 6.0]).decision.keeps


@pytest.mark.parametrize("rule", [paired, stored])
@pytest.mark.parametrize(
    ("us", "slower_pct", "keeps"),
    [
        # 0.12 us of 4 us, and 30 us of 1 ms: 3 % either way.
        (4.0, 3.0, True),
        (1000.0, 3.0, False),
        (4.0, 20.0, True),
        (4.0, 30.0, False),
        # Both have to be exceeded: 1.5 us are less than 2 % here.
        (100.0, 1.5, True),
    ],
)
def test_a_limit_in_microseconds_has_to_be_exceeded_as_well(
    rule: Any, us: float, slower_pct: float, keeps: bool
) -> None:
    """Declared by the case or by the policy; the other case pays for the loss."""
    times, changes = [us / 1e3, us / 1e3], [slower_pct, -60.0]
    absolute = PRIMUS.model_copy(update={"shape_gate_pct": 2.0, "shape_gate_us": 1.0})
    for verdict in (
        rule(changes, times=times, limits=[2.0, 2.0], limit_us=1.0),
        rule(changes, times=times, policy=absolute),
    ):
        assert verdict.decision.keeps == keeps, verdict
        assert keeps or "2 % and 1 us" in verdict.reason
    assert not rule(changes, times=times, limits=[1.0, None]).decision.keeps


def test_without_a_time_the_percentage_limits() -> None:
    case = Series("c", "c", {}, (0.0,), limit_pct=2.0, limit_us=1.0)
    assert (case.limit(PRIMUS).time_pct, str(case.limit(PRIMUS))) == (2.0, "2 %")


@few_examples
@given(
    st.lists(st.tuples(changes_pct, weights, st.floats(0.01, 100)), min_size=2, max_size=5),
    st.floats(0.5, 20),
)
def test_the_weighted_time_is_the_sum_of_weights_and_times(
    cases: list[tuple[float, float, float]], factor: float
) -> None:
    losses, shares, times = (list(column) for column in zip(*cases, strict=True))
    before = sum(w * ms for _, w, ms in cases)
    after = sum(w * ms * (1 + loss / 100) for loss, w, ms in cases)
    for rule in (paired, stored):
        verdict = rule(losses, weights=shares, times=times)
        scaled = rule(losses, weights=[w * factor for w in shares], times=times)
        assert verdict.weighted_time and scaled.weighted_time
        assert verdict.weighted_time.incumbent == pytest.approx(before)
        assert verdict.weighted_time.candidate == pytest.approx(after, rel=1e-4)
        change = scaled.weighted_time.change_pct
        assert change == pytest.approx(verdict.weighted_time.change_pct)
        assert change == pytest.approx((before / after - 1) * 100, abs=1e-2)
    low, high = scaled_interval(paired(losses, weights=shares, times=times).weighted_time)
    assert low <= (before / after - 1) * 100 <= high


def scaled_interval(total: Aggregate | None) -> tuple[float, float]:
    assert total and total.low_pct is not None and total.high_pct is not None
    return total.low_pct - 1e-2, total.high_pct + 1e-2


@pytest.mark.parametrize("gate", ["improve", "no-regression"])
def test_a_whole_that_falls_while_the_mean_rises_is_noted(gate: str) -> None:
    verdict = paired(**BETTER_MEAN, gate=gate)
    assert verdict.decision is Decision.ACCEPTED_WITH_NOTE and verdict.secondary == []
    assert "but speed by Time of all cases together (ms) fell: -3." in verdict.reason
    assert stored(**BETTER_MEAN).decision is Decision.ACCEPTED_WITH_NOTE


def test_the_policy_chooses_the_figure_that_decides() -> None:
    for verdict in (
        paired(**BETTER_MEAN, gate="improve", policy=BY_TIME),
        stored(**BETTER_MEAN, policy=BY_TIME),
    ):
        assert verdict.decision is Decision.ROLLED_BACK
        assert verdict.aggregate == verdict.weighted_time
        assert verdict.aggregate and verdict.aggregate.metric == WEIGHTED_TIME.name
        (mean,) = verdict.secondary
        assert mean.change_pct and mean.change_pct > 0
        assert [total.metric for total in verdict.totals] == [WEIGHTED_TIME.name, mean.metric]
    better_whole: dict[str, Any] = {"slower_pct": [4.2, -3.0], "times": [1.0, 100.0]}
    for rule in (paired, stored):
        more: dict[str, Any] = {"gate": "improve"} if rule is paired else {}
        verdict = rule(**better_whole, **more, policy=BY_TIME)
        assert verdict.decision is Decision.ACCEPTED_WITH_NOTE
        assert " fell: " in verdict.reason
        assert not rule(**better_whole, **more).decision.keeps


def test_times_that_are_to_decide_have_to_be_there() -> None:
    rates = metric_table("Forward TFLOPS", [1.0, 2.0])
    assert decide_stored(StoredEvidence(rates, rates), PRIMUS).weighted_time is None
    with pytest.raises(BadInput, match="needs a time in every row"):
        decide_stored(StoredEvidence(rates, rates), BY_TIME)


def test_one_case_has_no_weighted_time_beside_its_own() -> None:
    assert paired([-3.0]).weighted_time is None


def test_the_whole_stands_where_the_mean_stands() -> None:
    verdict = paired(**BETTER_MEAN)
    lines = [*verdict_lines(verdict)]
    total = "Time of all cases together (ms): 101.0 -> 104.8  speed -3."
    assert any(line.startswith(total) for line in lines)
    assert "| Time of all cases together (ms) | 101.0 | 104.8 |" in comment(verdict)


@few_examples
@given(st.integers(1, 6), st.integers(1, 6))
def test_the_prior_of_equal_shares_is_that_of_the_mean(timed: int, still: int) -> None:
    """Cases that are not timed have a share, and add nothing."""
    noise, names = Noise((), DEVICE_TIMED), [str(i) for i in range(timed)]
    share = 1 / (timed + still)
    alone = noise.prior(names).variance * (timed * share) ** 2
    assert noise.prior(names, [share] * timed).variance == pytest.approx(alone)


def case(**arguments: Any) -> Any:
    return declare(
        "t.py::t", "single", math.sqrt,
        inputs=lambda: (1.0,), reference=math.exp, dims={"n": 1}, **arguments,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [{"limit_pct": x} for x in (0, -1, 101, math.nan, True, "5")]
    + [{"limit_us": x} for x in (0, -1, math.inf, math.nan, True, "5")]
    + [{"weight": x} for x in (0, -1, math.inf, math.nan, True, None, "2")]
    + [{"cache": x} for x in ("hot", None, "")]
    + [{"operating_point": x} for x in ("turbo", "", 1)],
)
def test_what_is_no_limit_no_weight_and_no_state_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(arguments))} is "):
        case(**arguments)


@pytest.mark.parametrize(
    ("then", "now", "name"),
    [
        ({}, {"limit_pct": 10}, "limit_pct"),
        ({"limit_pct": 2.0}, {}, "limit_pct"),
        ({"limit_pct": 2.0}, {"limit_pct": 1.0}, "limit_pct"),
        ({}, {"limit_us": 1.0}, "limit_us"),
        ({"limit_us": 1.0}, {"limit_us": 2.0}, "limit_us"),
        ({"weight": 3}, {}, "weight"),
        ({"cache": "warm"}, {}, "cache"),
        ({}, {"operating_point": "sustained"}, "operating_point"),
    ],
)
def test_none_of_them_changes_after_the_baseline(
    then: dict[str, Any], now: dict[str, Any], name: str
) -> None:
    frozen = ExpectedCase("t.py::t", "n=1", case().header, {"n": 1}, **then)
    hold_against_baseline(case(**then), (frozen,))
    with pytest.raises(BadInput, match=f"{name} is .* now"):
        hold_against_baseline(case(**now), (frozen,))
