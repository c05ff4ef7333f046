from __future__ import annotations

from typing import Any

import pytest

from pytest_kopt import policies
from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.stops import NO_IDLE_GPU, REGRESSIONS, Stop
from pytest_kopt.campaign.ledger import AnyEvent
from pytest_kopt.campaign.manifest import Manifest, parse_target
from pytest_kopt.campaign.state import fold
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Aggregate, Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.roofline import Efficiency
from tests.builders import NOW, decided, manifest_document

PRIMUS = policies.load("primus")
BASELINE = decided(1, Decision.BASELINE)


def best(**changes: Any) -> AnyEvent:
    return decided(1, Decision.BASELINE).model_copy(update=changes)


def figure(metric: str, candidate: float) -> AnyEvent:
    return best(aggregate=Aggregate(metric=metric, candidate=candidate))


def check(*events: AnyEvent, policy: Policy = PRIMUS, **manifest: Any) -> dict[str, Stop]:
    document = Manifest.model_validate(manifest_document(**manifest))
    return {stop.name: stop for stop in stops.check("c", fold(events), document, policy)}


def held(*events: AnyEvent, policy: Policy = PRIMUS, **manifest: Any) -> list[str]:
    return [name for name, stop in check(*events, policy=policy, **manifest).items() if stop.holds]


def regressions(count: int) -> list[AnyEvent]:
    return [
        decided(number, Decision.ROLLED_BACK, change_pct=-9.0) for number in range(2, 2 + count)
    ]


def test_every_condition_is_listed_once_and_none_holds_at_the_start() -> None:
    for events in ((), (BASELINE,)):
        found = check(*events, performance_target=">500 TFLOPS", max_iterations=1)
        assert list(found) == ["T1", "T2", "T3", "T4", REGRESSIONS, NO_IDLE_GPU]
        assert not [stop for stop in found.values() if stop.holds]


@pytest.mark.parametrize(
    ("target", "metric", "value", "holds"),
    [
        (">500 TFLOPS", "Combined Step TFLOPS", 500.1, True),
        (">500 TFLOPS", "Combined Step TFLOPS", 500.0, False),
        (">500 TFLOPS", "Forward TFLOPS", 499.0, False),
        (">3 TB/s", "Forward GB/s", 3001.0, True),
        (">3 TB/s", "Forward GB/s", 2999.0, False),
        (">3000 GB/s", "Combined Step GB/s", 3001.0, True),
        ("<12 us", "Time (ms)", 0.0119, True),
        ("<12 us", "Time (ms)", 0.0121, False),
        ("<1 ms", "us_flydsl_ps", 999.0, True),
        ("<1 ms", "us_flydsl_ps", 1001.0, False),
    ],
)
def test_t1_holds_beyond_the_target_in_its_unit(
    target: str, metric: str, value: float, holds: bool
) -> None:
    stop = check(figure(metric, value), performance_target=target)["T1"]
    assert stop.holds is holds
    assert f"target {parse_target(target)}" in stop.why
    assert str(parse_target(target)) == target


@pytest.mark.parametrize("target", ["<12 us", ">3 TB/s"])
def test_t1_is_unknown_where_the_campaign_measures_something_else(target: str) -> None:
    stop = check(figure("Forward TFLOPS", 900.0), performance_target=target)["T1"]
    assert not stop.holds
    assert stop.why.startswith("UNKNOWN") and "Forward TFLOPS" in stop.why


def test_t1_looks_at_the_last_accepted_round() -> None:
    slow, fast = figure("Forward TFLOPS", 400.0), figure("Forward TFLOPS", 600.0)
    rejected = fast.model_copy(update={"round": 2, "decision": Decision.ROLLED_BACK})
    kept = fast.model_copy(update={"round": 2, "decision": Decision.ACCEPTED})
    assert held(slow, rejected, performance_target=">500 TFLOPS") == []
    assert held(slow, kept, performance_target=">500 TFLOPS") == ["T1"]


@pytest.mark.parametrize(
    ("pct", "target", "names"),
    [
        (None, None, []),
        (None, ">60% peak efficiency", []),
        (89.9, None, []),
        (90.0, None, ["T2"]),
        (61.0, ">60% peak efficiency", ["T1"]),
        (93.0, ">60% peak efficiency", ["T1", "T2"]),
        (93.0, ">95% peak efficiency", []),
        (96.0, ">95% peak efficiency", ["T1", "T2"]),
        (93.0, ">900 TFLOPS", ["T2"]),
    ],
)
def test_t2_holds_at_90_percent_or_where_the_target_asks_for_more(
    pct: float | None, target: str | None, names: list[str]
) -> None:
    found = best(efficiency=Efficiency(pct, "UNKNOWN: hbm_bandwidth"))
    assert held(found, performance_target=target) == names
    if pct is None:
        assert "hbm_bandwidth" in check(found)["T2"].why


def test_the_way_on_from_t2_lies_above_what_is_reached() -> None:
    reached = best(efficiency=Efficiency(97.3, ""))
    stop = check(reached)["T2"]
    assert stop.holds
    target = stop.go_on.split("'")[1]
    assert held(reached, performance_target=target) == []


@pytest.mark.parametrize(
    ("done", "limit", "holds"), [(1, 2, False), (2, 2, True), (119, 119, True)]
)
def test_t3_counts_the_rounds_after_the_baseline(done: int, limit: int, holds: bool) -> None:
    rounds = [decided(number, Decision.INCONCLUSIVE) for number in range(2, 2 + done)]
    assert check(BASELINE, *rounds, max_iterations=limit)["T3"].holds is holds


def test_an_open_round_may_be_finished_at_the_limit() -> None:
    events = (BASELINE, decided(2, Decision.REPAIR))
    assert held(*events, max_iterations=1) == []
    assert held(*events, decided(2, Decision.ACCEPTED, attempt=2), max_iterations=1) == ["T3"]


@pytest.mark.parametrize("how", ["stopped", "abandoned"])
def test_t4_is_the_users(how: str) -> None:
    ended = ledger.Ended.model_validate({"time": NOW, "how": how})
    assert fold([BASELINE, ended]).ended == how
    assert held(BASELINE, ended) == ["T4"]


@pytest.mark.parametrize(("limit", "names"), [(5, []), (4, [REGRESSIONS])])
def test_regressions_in_a_row_up_to_the_policys_limit(limit: int, names: list[str]) -> None:
    policy = PRIMUS.model_copy(update={"max_regressions": limit})
    assert held(BASELINE, *regressions(4), policy=policy) == names


def test_five_regressions_in_a_row_are_the_presets_limit() -> None:
    for name in policies.names():
        assert policies.load(name).max_regressions == 5


def test_a_further_round_is_refused_with_every_reason_and_the_ways_on() -> None:
    found = check(BASELINE, *regressions(5), max_iterations=5)
    with pytest.raises(BadInput) as refusal:
        stops.refuse_another_round(list(found.values()))
    text = str(refusal.value)
    assert "no further round: T3 max_iterations reached (5 of 5 rounds after the baseline)" in text
    assert "regressions in a row (5 of 5, measured)" in text
    assert "raise max_iterations" in text and "max_regressions" in text


def test_without_a_stop_nothing_is_refused() -> None:
    stops.refuse_another_round(list(check(BASELINE).values()))


def test_every_condition_that_can_hold_says_how_to_go_on() -> None:
    ended = ledger.Ended.model_validate({"time": NOW, "how": "stopped"})
    all_at_once = best(
        aggregate=Aggregate(metric="Forward TFLOPS", candidate=600.0),
        efficiency=Efficiency(95.0, ""),
    )
    found = check(
        all_at_once,
        *regressions(5),
        ended,
        performance_target=">500 TFLOPS",
        max_iterations=5,
    )
    holding = [stop for stop in found.values() if stop.holds]
    assert [stop.name for stop in holding] == ["T1", "T2", "T3", "T4", REGRESSIONS]
    assert all(stop.go_on for stop in holding)


def test_no_idle_gpu_is_told_until_something_is_measured() -> None:
    event = ledger.NoIdleGpu(
        time=NOW, round=2, minutes=60.0, in_the_way=["GPU-1 (NVIDIA H200): process 7 (python3)"]
    )
    stop = check(BASELINE, event)[NO_IDLE_GPU]
    assert not stop.holds and fold([BASELINE, event]).next_round == 2
    assert stop.why == (
        f"none within 60 minutes at {NOW}, for round 2; in the way: GPU-1 (NVIDIA H200): process 7 "
        "(python3); run it again"
    )
    opened = ledger.Opened(time=NOW, round=2, attempt=1)
    assert "exit code 10" in check(BASELINE, event, opened)[NO_IDLE_GPU].why


def test_the_check_as_text_marks_what_holds() -> None:
    text = stops.lines({"T3": "5 of 5"})
    assert "- T1 performance_target: no" in text
    assert "- T3 max_iterations reached: ✅ (5 of 5)" in text
    assert any(line.startswith("- no idle GPU: no (such a session ends with exit") for line in text)
    assert text[-1] == "-> Satisfied condition(s): T3"
    assert stops.lines({})[-1] == "-> Satisfied condition(s): none"
