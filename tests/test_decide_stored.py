from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.decide.conclusion import VersionFacts
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.stored import StoredEvidence, decide_stored, remeasurements_needed
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.table import Row, Table
from tests.builders import few_examples, gemm_row, gemm_table, metric_table, table_of

PRIMUS = policies.load("primus")
KERNEL_OPT = policies.load("kernel-opt")
OLD = gemm_table([100.0, 100.0, 100.0])
BOTH = "Forward TFLOPS, Backward TFLOPS"

RATES = st.floats(50, 200)
PAIRS = st.lists(st.tuples(RATES, RATES), min_size=1, max_size=6)


def decide(
    candidate: Table,
    incumbent: Table = OLD,
    policy: Policy = PRIMUS,
    extra_benefit: str = "",
    **evidence: Any,
) -> Verdict:
    evidence["facts"] = VersionFacts(extra_benefit)
    return decide_stored(StoredEvidence(candidate, incumbent, **evidence), policy)


def all_at(rate: float) -> Table:
    return gemm_table([rate] * 3)


def remeasured(first: float, *again: float, policy: Policy = PRIMUS) -> Verdict:
    return decide(all_at(first), policy=policy, remeasurements=tuple(map(all_at, again)))


def both_ways(forward: float, backward: float) -> Table:
    return gemm_table([forward] * 3, [backward] * 3)


def statuses(verdict: Verdict) -> list[str]:
    return [shape.status for shape in verdict.shapes]


class TestAccepting:
    def test_three_percent_on_every_case_is_accepted(self) -> None:
        verdict = decide(all_at(103.0))
        assert (verdict.decision, verdict.exit_code) == (Decision.ACCEPTED, 0)
        assert (verdict.compare, verdict.policy) == ("stored", "primus")
        assert statuses(verdict) == ["improved"] * 3

    def test_the_aggregate_is_the_change_of_the_geometric_mean(self) -> None:
        total = decide(gemm_table([110.0, 100.0, 121.0])).aggregate
        assert total is not None
        assert total.metric == "Forward TFLOPS"
        assert total.change_pct == pytest.approx(10.0)
        assert total.candidate == pytest.approx(110.0)
        assert total.incumbent == pytest.approx(100.0)

    def test_a_stored_comparison_has_no_intervals(self) -> None:
        verdict = decide(all_at(103.0))
        assert verdict.aggregate is not None
        assert verdict.aggregate.low_pct is None and verdict.aggregate.high_pct is None
        assert all(shape.low_pct is None and shape.high_pct is None for shape in verdict.shapes)

    def test_forward_and_backward_are_judged_by_their_combined_step(self) -> None:
        verdict = decide(both_ways(520.0, 258.0), both_ways(500.0, 250.0))
        assert verdict.decision is Decision.ACCEPTED
        assert verdict.aggregate is not None
        assert verdict.aggregate.metric == "Combined Step TFLOPS"
        assert verdict.aggregate.candidate == pytest.approx(6 / (2 / 520 + 4 / 258))

    def test_a_faster_forward_does_not_pay_for_a_slower_step(self) -> None:
        verdict = decide(both_ways(600.0, 235.0), both_ways(500.0, 250.0))
        assert (verdict.decision, verdict.exit_code) == (Decision.ROLLED_BACK, 8)

    def test_an_aggregate_that_fell_is_rolled_back(self) -> None:
        verdict = decide(all_at(99.0))
        assert verdict.decision is Decision.ROLLED_BACK
        assert "fell: -1.00 %" in verdict.reason

    def test_a_time_is_judged_as_the_throughput_it_means(self) -> None:
        old = metric_table("Time (ms)", [1.0, 1.0, 1.0])
        faster = decide(metric_table("Time (ms)", [0.8, 0.8, 0.8]), old)
        assert faster.decision is Decision.ACCEPTED
        assert faster.aggregate is not None
        assert faster.aggregate.change_pct == pytest.approx(25.0)
        longer_by_5 = decide(metric_table("Time (ms)", [0.8, 0.8, 1.05]), old)
        assert longer_by_5.decision is Decision.ACCEPTED_WITH_NOTE
        slower_by_5 = decide(metric_table("Time (ms)", [0.8, 0.8, 1 / 0.95]), old)
        assert slower_by_5.decision is Decision.ROLLED_BACK

    def test_a_policy_may_ask_for_a_minimum_gain(self) -> None:
        policy = PRIMUS.model_copy(update={"minimum_gain_pct": 4.0})
        assert decide(all_at(104.0), policy=policy).decision is Decision.ROLLED_BACK
        assert decide(all_at(104.1), policy=policy).decision is Decision.ACCEPTED

    def test_a_gain_of_cases_with_group_sizes_is_not_decided(self) -> None:
        """Nothing was timed with other draws of these."""
        found = decide(all_at(103.0), has_groups=True)
        assert (found.decision, found.aggregate) == (Decision.INCOMPLETE, None)
        assert "under skew" in found.reason and remeasurements_needed(found, PRIMUS) == 0
        loss = decide(all_at(90.0), has_groups=True)
        assert loss == decide(all_at(90.0))

    def test_the_device_of_each_case_is_told(self) -> None:
        devices = {row.key: f"GPU-{row.label}" for row in OLD.rows}
        verdict = decide(all_at(103.0), devices=devices)
        assert [shape.device for shape in verdict.shapes] == [
            "GPU-case256",
            "GPU-case512",
            "GPU-case768",
        ]


class TestTheShapeGate:
    def test_a_case_slower_by_5_percent_rolls_back_a_faster_aggregate(self) -> None:
        verdict = decide(gemm_table([110.0, 110.0, 95.0]))
        assert verdict.decision is Decision.ROLLED_BACK
        assert "'case768' regressed: -5.00 %" in verdict.reason
        assert statuses(verdict) == ["improved", "improved", "regressed"]
        assert "keep the gain" in verdict.next_step

    def test_where_nothing_gained_no_gain_is_to_be_kept(self) -> None:
        verdict = decide(gemm_table([90.0, 90.0, 95.0]))
        assert verdict.decision is Decision.ROLLED_BACK
        assert verdict.next_step == "try another hypothesis"

    @pytest.mark.parametrize("old", [100.0, 0.1, 7.3, 1234.567, 3e5])
    def test_the_gate_itself_counts_whatever_its_binary_form(self, old: float) -> None:
        incumbent = gemm_table([old] * 3)
        assert decide(gemm_table([old * 2, old * 2, old * 0.95]), incumbent).decision is (
            Decision.ROLLED_BACK
        )

    @pytest.mark.parametrize(
        ("short_of_5_pct", "decision"),
        [
            (5e-10, Decision.ROLLED_BACK),
            (1e-8, Decision.ACCEPTED_WITH_NOTE),
            (0.1, Decision.ACCEPTED_WITH_NOTE),
        ],
    )
    def test_percentages_are_compared_with_a_tolerance_of_1e_9(
        self, short_of_5_pct: float, decision: Decision
    ) -> None:
        slower = 95.0 + short_of_5_pct
        assert decide(gemm_table([120.0, 120.0, slower])).decision is decision

    def test_smaller_regressions_are_accepted_with_a_note_on_the_worst(self) -> None:
        verdict = decide(gemm_table([115.0, 98.0, 96.0]))
        assert (verdict.decision, verdict.exit_code) == (Decision.ACCEPTED_WITH_NOTE, 0)
        assert "2 case(s) slower" in verdict.reason
        assert "'case768': -4.00 %" in verdict.reason
        assert statuses(verdict) == ["improved", "unchanged", "unchanged"]

    def test_the_gate_is_the_policys(self) -> None:
        policy = PRIMUS.model_copy(update={"shape_gate_pct": 3.0})
        candidate = gemm_table([120.0, 120.0, 97.0])
        assert decide(candidate, policy=policy).decision is Decision.ROLLED_BACK
        assert decide(candidate).decision is Decision.ACCEPTED_WITH_NOTE

    def test_a_case_that_regresses_on_average_over_the_measurements_more_counts(self) -> None:
        first, again = gemm_table([104.0, 104.0, 97.5]), gemm_table([110.0, 110.0, 94.0])
        lasting = decide(first, remeasurements=(again, again, again))
        assert lasting.decision is Decision.ROLLED_BACK
        assert "'case768'" in lasting.reason
        passing = decide(first, remeasurements=(again, gemm_table([104.0] * 3), first))
        assert "regressed" not in statuses(passing)


class TestSmallGains:
    def test_below_2_percent_three_measurements_more_are_asked_for(self) -> None:
        verdict = remeasured(101.9)
        assert (verdict.decision, verdict.exit_code) == (Decision.INCOMPLETE, 11)
        assert "0 of 3" in verdict.reason
        assert remeasurements_needed(verdict, PRIMUS) == 3

    def test_2_percent_itself_is_accepted_at_once(self) -> None:
        verdict = remeasured(102.0)
        assert verdict.decision is Decision.ACCEPTED
        assert remeasurements_needed(verdict, PRIMUS) == 0

    def test_too_few_measurements_more_decide_nothing(self) -> None:
        verdict = remeasured(101.9, 101.9, 101.4)
        assert verdict.decision is Decision.INCOMPLETE
        assert remeasurements_needed(verdict, PRIMUS) == 1

    def test_a_steady_gain_is_confirmed(self) -> None:
        verdict = remeasured(101.9, 101.9, 101.4, 101.8)
        assert verdict.decision is Decision.ACCEPTED
        assert verdict.remeasured_pct == pytest.approx([1.9, 1.4, 1.8])

    @pytest.mark.parametrize(
        ("again", "decision"),
        [
            ((101.0, 101.0, 101.0), Decision.INCONCLUSIVE),
            ((101.00001, 101.00001, 101.00001), Decision.ACCEPTED),
            ((99.0, 99.0, 99.0), Decision.INCONCLUSIVE),
        ],
    )
    def test_their_mean_has_to_lie_above_1_percent(
        self, again: tuple[float, ...], decision: Decision
    ) -> None:
        assert remeasured(101.9, *again).decision is decision

    @pytest.mark.parametrize(
        ("spread", "decision"), [(0.75, Decision.INCONCLUSIVE), (0.74, Decision.ACCEPTED)]
    )
    def test_their_sample_standard_deviation_has_to_lie_below_half_their_mean(
        self, spread: float, decision: Decision
    ) -> None:
        verdict = remeasured(101.9, 101.5 - spread, 101.5, 101.5 + spread)
        assert verdict.decision is decision

    def test_the_first_measurement_is_not_one_of_them(self) -> None:
        assert remeasured(101.99, 100.9, 100.9, 100.9).decision is Decision.INCONCLUSIVE
        assert remeasured(100.01, 101.5, 101.5, 101.5).decision is Decision.ACCEPTED

    def test_a_gain_that_is_not_confirmed_is_inconclusive(self) -> None:
        verdict = remeasured(101.5, 100.2, 101.9, 103.6)
        assert (verdict.decision, verdict.exit_code) == (Decision.INCONCLUSIVE, 9)
        assert "not confirmed" in verdict.reason

    def test_more_measurements_than_asked_for_all_count(self) -> None:
        assert remeasured(101.9, 101.9, 101.9, 101.9, 97.0).decision is Decision.INCONCLUSIVE

    def test_a_confirmed_gain_with_a_slower_case_is_accepted_with_a_note(self) -> None:
        again = gemm_table([103.0, 103.0, 99.0])
        verdict = decide(again, remeasurements=(again,) * 3)
        assert verdict.decision is Decision.ACCEPTED_WITH_NOTE


class TestEqualSpeed:
    @pytest.mark.parametrize("rate", [100.0, 100.0 + 5e-10, 100.0 - 5e-10])
    def test_it_is_rolled_back_unless_a_benefit_is_stated(self, rate: float) -> None:
        assert decide(all_at(rate)).decision is Decision.ROLLED_BACK
        verdict = decide(all_at(rate), extra_benefit="half the registers")
        assert (verdict.decision, verdict.exit_code) == (Decision.ACCEPTED_WITH_NOTE, 0)
        assert "half the registers" in verdict.reason

    @pytest.mark.parametrize("benefit", ["", "  \n"])
    def test_a_blank_benefit_is_none(self, benefit: str) -> None:
        assert decide(OLD, extra_benefit=benefit).decision is Decision.ROLLED_BACK

    def test_a_benefit_excuses_neither_a_slower_aggregate_nor_a_regressed_case(self) -> None:
        benefit = "simpler"
        assert decide(all_at(99.9), extra_benefit=benefit).decision is Decision.ROLLED_BACK
        traded = gemm_table([100 / 0.95, 100.0, 95.0])
        assert decide(traded, extra_benefit=benefit).decision is Decision.ROLLED_BACK


class TestSeveralPrimaryMetrics:
    OLD = both_ways(500.0, 250.0)

    def test_all_improving_is_accepted_and_each_has_its_aggregate(self) -> None:
        verdict = decide(both_ways(515.0, 260.0), self.OLD, primary=BOTH)
        assert verdict.decision is Decision.ACCEPTED
        assert verdict.aggregate is not None
        assert [verdict.aggregate.metric, *(item.metric for item in verdict.secondary)] == [
            "Backward TFLOPS",
            "Forward TFLOPS",
        ]

    def test_one_improving_is_enough_when_the_other_is_equal(self) -> None:
        assert decide(both_ways(515.0, 250.0), self.OLD, primary=BOTH).decision is Decision.ACCEPTED

    @pytest.mark.parametrize(
        ("forward", "backward", "fallen"),
        [(600.0, 249.9, "Backward TFLOPS"), (499.9, 300.0, "Forward TFLOPS")],
    )
    def test_none_may_regress(self, forward: float, backward: float, fallen: str) -> None:
        verdict = decide(both_ways(forward, backward), self.OLD, primary=BOTH)
        assert verdict.decision is Decision.ROLLED_BACK
        assert verdict.reason.startswith(fallen)

    def test_none_improving_is_rolled_back(self) -> None:
        assert decide(self.OLD, self.OLD, primary=BOTH).decision is Decision.ROLLED_BACK

    def test_the_shape_gate_holds_for_each(self) -> None:
        new = gemm_table([520.0] * 3, [300.0, 300.0, 237.5])
        verdict = decide(new, self.OLD, primary=BOTH)
        assert verdict.decision is Decision.ROLLED_BACK
        assert "'case768' regressed: -5.00 %" in verdict.reason

    def test_a_small_gain_of_the_best_is_measured_again(self) -> None:
        new = both_ways(505.0, 250.0)
        assert decide(new, self.OLD, primary=BOTH).decision is Decision.INCOMPLETE


class TestMissingMetrics:
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
    def test_a_passing_row_without_a_usable_metric_is_rolled_back(self, bad: float) -> None:
        verdict = decide(gemm_table([120.0, bad, 120.0]), extra_benefit="none")
        assert (verdict.decision, verdict.exit_code) == (Decision.ROLLED_BACK, 8)
        assert "missing metrics" in verdict.reason and "'case512'" in verdict.reason

    @pytest.mark.parametrize("text", ["", "-"])
    def test_an_empty_cell_is_a_missing_metric(self, text: str) -> None:
        row = gemm_row(256, 100.0)
        emptied = Row({**row.cells, "Forward TFLOPS": text}, row.dims)
        verdict = decide(table_of([emptied]), table_of([row]))
        assert verdict.decision is Decision.ROLLED_BACK
        assert "missing metrics" in verdict.reason

    def test_a_row_that_lost_its_backward_is_missing_a_metric(self) -> None:
        verdict = decide(gemm_table([400.0] * 3), both_ways(500.0, 250.0))
        assert verdict.decision is Decision.ROLLED_BACK
        assert "missing metrics" in verdict.reason

    def test_a_measurement_more_without_a_usable_metric_rejects_as_well(self) -> None:
        verdict = remeasured(101.9, 101.9, math.nan, 101.8)
        assert verdict.decision is Decision.ROLLED_BACK

    @pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
    def test_against_an_incumbent_without_a_usable_metric_nothing_is_accepted(
        self, bad: float
    ) -> None:
        verdict = decide(all_at(120.0), gemm_table([100.0, bad, 100.0]), extra_benefit="none")
        assert not verdict.decision.keeps

    @pytest.mark.parametrize(
        ("header", "value", "decision"),
        [
            ("err", 0.0, Decision.ACCEPTED),
            ("err", 1e-9, Decision.ROLLED_BACK),
            ("err", math.nan, Decision.ROLLED_BACK),
            ("err", None, Decision.ROLLED_BACK),
            ("other", 0.0, Decision.ROLLED_BACK),
        ],
    )
    def test_a_gate_column_that_fails_or_is_missing_never_passes(
        self, header: str, value: float | None, decision: Decision
    ) -> None:
        policy = PRIMUS.model_copy(update={"gates": ("err == 0",)})
        old, new = (metric_table("Forward TFLOPS", [rate], extra=header) for rate in (100.0, 105.0))
        shown = "" if value is None else repr(value)
        filled = Row({**new.rows[0].cells, header: shown}, new.rows[0].dims)
        gated_old = Row({**old.rows[0].cells, header: "0.0"}, old.rows[0].dims)
        verdict = decide(
            Table(new.header, (filled,)), Table(old.header, (gated_old,)), policy=policy
        )
        assert verdict.decision is decision


class TestFailedChecks:
    @pytest.mark.parametrize("check", ["FAIL", "ERROR"])
    def test_the_first_failure_leaves_the_round_open_for_repair(self, check: str) -> None:
        verdict = decide(gemm_table([120.0] * 3, checks=["PASS", check, "PASS"]))
        assert (verdict.decision, verdict.exit_code) == (Decision.REPAIR, 1)
        assert f"1 of 3 case(s) are {check}: case512" in verdict.reason
        assert statuses(verdict) == ["unchanged", "failed", "unchanged"]

    @pytest.mark.parametrize(
        ("failed_repairs", "decision", "left"),
        [
            (-1, Decision.REPAIR, "3 repairs left"),
            (0, Decision.REPAIR, "2 repairs left"),
            (1, Decision.REPAIR, "1 repair left"),
            (2, Decision.ROLLED_BACK, "next round"),
            (3, Decision.ROLLED_BACK, "next round"),
        ],
    )
    def test_the_third_failed_repair_rolls_back(
        self, failed_repairs: int, decision: Decision, left: str
    ) -> None:
        failing = gemm_table([120.0], checks=["FAIL"])
        verdict = decide(failing, gemm_table([100.0]), failed_repairs=failed_repairs)
        assert verdict.decision is decision
        assert left in verdict.next_step

    def test_a_policy_without_repairs_rolls_back_at_once_and_speaks_of_none(self) -> None:
        policy = PRIMUS.model_copy(update={"max_repairs": 0})
        failing = gemm_table([120.0], checks=["FAIL"])
        verdict = decide(failing, gemm_table([100.0]), policy=policy)
        assert verdict.decision is Decision.ROLLED_BACK
        assert "repair" not in verdict.reason

    def test_a_failure_comes_before_every_other_reason(self) -> None:
        new = gemm_table([math.nan, 50.0, 120.0], checks=["FAIL", "PASS", "PASS"])
        assert decide(new).decision is Decision.REPAIR

    def test_a_failure_in_a_measurement_more_counts(self) -> None:
        again = (all_at(101.9), all_at(101.9), gemm_table([101.9] * 3, checks=["FAIL"] * 3))
        assert decide(all_at(101.9), remeasurements=again).decision is Decision.REPAIR

    def test_an_incumbent_that_does_not_pass_is_refused(self) -> None:
        incumbent = gemm_table([100.0, 0.0, math.nan], checks=["PASS", "FAIL", "ERROR"])
        with pytest.raises(BadInput, match="case512"):
            decide(all_at(120.0), incumbent, extra_benefit="none")


class TestTheCaseSet:
    def test_a_missing_case_decides_nothing(self) -> None:
        verdict = decide(gemm_table([120.0, 120.0]))
        assert (verdict.decision, verdict.exit_code) == (Decision.INCOMPLETE, 11)
        assert "case768" in verdict.reason
        assert [(shape.label, shape.check) for shape in verdict.shapes] == [("case768", "MISSING")]
        assert remeasurements_needed(verdict, PRIMUS) == 0

    @pytest.mark.parametrize(("lost", "ending"), [(3, "case1024"), (4, "case1024, …")])
    def test_three_of_the_missing_cases_are_named(self, lost: int, ending: str) -> None:
        verdict = decide(gemm_table([120.0]), gemm_table([100.0] * (lost + 1)))
        assert verdict.reason == f"{lost} case(s) have no row: case512, case768, {ending}"

    def test_a_missing_case_comes_before_a_failed_one(self) -> None:
        new = gemm_table([120.0, 120.0], checks=["FAIL", "PASS"])
        assert decide(new).decision is Decision.INCOMPLETE

    def test_a_measurement_more_that_lost_a_case_decides_nothing(self) -> None:
        again = (all_at(101.9), all_at(101.9), gemm_table([101.9, 101.9]))
        assert decide(all_at(101.9), remeasurements=again).decision is Decision.INCOMPLETE

    def test_an_extra_case_is_a_changed_case_set(self) -> None:
        with pytest.raises(BadInput, match=r"'case1024' \(B=1, M=1024, N=1024, K=1024\)"):
            decide(gemm_table([120.0] * 4))

    def test_changed_dims_are_a_changed_case_set(self) -> None:
        moved = table_of([*OLD.rows[:2], gemm_row(999, 120.0, label="case768")])
        with pytest.raises(BadInput, match=r"'case768'.*M=999"):
            decide(moved)

    def test_a_changed_label_is_not(self) -> None:
        renamed = table_of([gemm_row(256 * (i + 1), 103.0, label=f"new{i}") for i in range(3)])
        assert decide(renamed).decision is Decision.ACCEPTED


class TestHeaderDrift:
    OLD = metric_table("Forward TFLOPS", [100.0], extra="out_snr,note")

    @pytest.mark.parametrize(
        ("extra", "drift"),
        [
            ("out_snr,remark", "'note' is gone and 'remark' is new"),
            ("note,out_snr", "column 5 is 'note', not 'out_snr'"),
            ("out_snr", "'note' is gone"),
            ("out_snr,note,more", "'more' is new"),
        ],
        ids=["renamed", "reordered", "missing", "extra"],
    )
    def test_each_kind_is_an_error_that_names_it(self, extra: str, drift: str) -> None:
        drifted = metric_table("Forward TFLOPS", [120.0], extra=extra)
        with pytest.raises(BadInput, match=drift):
            decide(drifted, self.OLD)

    def test_it_is_one_in_a_measurement_more_too(self) -> None:
        drifted = metric_table("Forward TFLOPS", [120.0], extra="out_snr")
        with pytest.raises(BadInput, match="drifted"):
            decide(self.OLD, self.OLD, remeasurements=(drifted,))


class TestKernelOpt:
    def test_1_percent_is_no_noise(self) -> None:
        assert remeasured(101.0, policy=KERNEL_OPT).decision is Decision.ACCEPTED

    def test_less_has_to_come_twice_in_the_same_direction(self) -> None:
        once = remeasured(100.5, policy=KERNEL_OPT)
        assert once.decision is Decision.INCOMPLETE
        assert remeasurements_needed(once, KERNEL_OPT) == 1
        assert remeasured(100.5, 100.1, policy=KERNEL_OPT).decision is Decision.ACCEPTED

    @pytest.mark.parametrize("second", [100.0, 99.9])
    def test_otherwise_it_is_noise(self, second: float) -> None:
        verdict = remeasured(100.5, second, policy=KERNEL_OPT)
        assert verdict.decision is Decision.INCONCLUSIVE


def tables(pairs: Sequence[tuple[float, float]]) -> tuple[Table, Table]:
    return gemm_table([old for old, _ in pairs]), gemm_table([new for _, new in pairs])


class TestWhatAlwaysHolds:
    @given(PAIRS, st.randoms(use_true_random=False))
    @few_examples
    def test_the_order_of_rows_does_not_matter(
        self, pairs: list[tuple[float, float]], random: Any
    ) -> None:
        old, new = tables(pairs)
        shuffled_old = table_of(random.sample(old.rows, len(old.rows)))
        shuffled_new = table_of(random.sample(new.rows, len(new.rows)))
        verdict, shuffled = decide(new, old), decide(shuffled_new, shuffled_old)
        assert shuffled.decision is verdict.decision
        assert shuffled.aggregate == verdict.aggregate
        by_label = {shape.label: shape for shape in verdict.shapes}
        assert {shape.label: shape for shape in shuffled.shapes} == by_label

    @given(PAIRS, st.floats(1e-3, 1e3))
    @few_examples
    def test_scaling_both_sides_does_not_matter(
        self, pairs: list[tuple[float, float]], scale: float
    ) -> None:
        old, new = tables(pairs)
        scaled_old, scaled_new = tables([(a * scale, b * scale) for a, b in pairs])
        verdict, scaled = decide(new, old), decide(scaled_new, scaled_old)
        assert scaled.decision is verdict.decision
        assert statuses(scaled) == statuses(verdict)
        assert scaled.aggregate is not None and verdict.aggregate is not None
        assert scaled.aggregate.change_pct == pytest.approx(verdict.aggregate.change_pct, abs=1e-9)

    @given(
        PAIRS,
        st.data(),
        st.sampled_from(["FAIL", "ERROR"]),
        st.integers(-1, 5),
        st.sampled_from([PRIMUS, KERNEL_OPT]),
    )
    @few_examples
    def test_a_table_with_a_failed_row_is_never_accepted(
        self,
        pairs: list[tuple[float, float]],
        data: st.DataObject,
        check: str,
        failed_repairs: int,
        policy: Policy,
    ) -> None:
        old, _ = tables(pairs)
        checks = ["PASS"] * len(pairs)
        checks[data.draw(st.integers(0, len(pairs) - 1))] = check
        new = gemm_table([rate for _, rate in pairs], checks=checks)
        verdict = decide(new, old, policy, failed_repairs=failed_repairs, extra_benefit="any")
        assert verdict.decision in (Decision.REPAIR, Decision.ROLLED_BACK)

    @given(PAIRS, st.data(), st.floats(5, 99), st.sampled_from([PRIMUS, KERNEL_OPT]))
    @few_examples
    def test_a_case_at_or_beyond_the_gate_is_never_accepted(
        self,
        pairs: list[tuple[float, float]],
        data: st.DataObject,
        loss_pct: float,
        policy: Policy,
    ) -> None:
        victim = data.draw(st.integers(0, len(pairs) - 1))
        old_rate, _ = pairs[victim]
        pairs[victim] = (old_rate, old_rate * (1 - loss_pct / 100))
        old, new = tables(pairs)
        verdict = decide(new, old, policy, remeasurements=(new,) * 3, extra_benefit="any")
        assert verdict.decision is Decision.ROLLED_BACK
        assert statuses(verdict)[victim] == "regressed"

    @given(PAIRS)
    @few_examples
    def test_a_slower_aggregate_is_never_accepted(self, pairs: list[tuple[float, float]]) -> None:
        old, new = tables(pairs)
        verdict = decide(new, old, remeasurements=(new,) * 3, extra_benefit="any")
        assert verdict.aggregate is not None and verdict.aggregate.change_pct is not None
        if verdict.aggregate.change_pct < -1e-6:
            assert verdict.decision is Decision.ROLLED_BACK

    @given(st.lists(st.tuples(RATES, st.floats(1.021, 3)), min_size=1, max_size=6))
    @few_examples
    def test_what_is_faster_everywhere_beyond_noise_is_accepted(
        self, gains: list[tuple[float, float]]
    ) -> None:
        old, new = tables([(rate, rate * gain) for rate, gain in gains])
        assert decide(new, old).decision is Decision.ACCEPTED

    @given(PAIRS)
    @few_examples
    def test_a_case_is_regressed_only_beyond_the_gate(
        self, pairs: list[tuple[float, float]]
    ) -> None:
        old, new = tables(pairs)
        for shape in decide(new, old).shapes:
            assert shape.change_pct is not None
            assert (shape.status == "regressed") == (shape.change_pct <= -5 + 1e-9)

    @given(PAIRS)
    @few_examples
    def test_the_same_evidence_gives_the_same_verdict(
        self, pairs: list[tuple[float, float]]
    ) -> None:
        old, new = tables(pairs)
        assert decide(new, old) == decide(new, old)
