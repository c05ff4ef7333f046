"""What was known of the scatter between processes, and what a verdict makes of it."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.decide.inference import LOOKS, Estimate, log_ratio, scatter_of
from pytest_kopt.decide.known_noise import (
    DEVICE_TIMED,
    EARLIER,
    ENOUGH,
    MOST,
    Noise,
    Prior,
    variance_of,
)
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.series import Series, SeriesTable, excess_of, prior_of
from pytest_kopt.decide.verdict import Decision, Verdict
from tests.builders import few_examples, series_table

PRIMUS = policies.load("primus")
RATIOS = st.floats(-0.1, 0.1).map(lambda value: round(value, 6))
SERIES = st.lists(RATIOS, min_size=2, max_size=8)
VARIANCES = st.floats(1e-8, 1e-2)


class TestAnEstimate:
    @few_examples
    @given(SERIES)
    def test_without_a_prior_it_is_students(self, values: list[float]) -> None:
        found = Estimate.of(values)
        assert found.freedom == len(values) - 1
        error = statistics.stdev(values) / math.sqrt(len(values))
        assert found.error == pytest.approx(error, rel=1e-6, abs=1e-12)

    @few_examples
    @given(SERIES, SERIES, VARIANCES, st.floats(1, 20))
    def test_its_variance_lies_between_todays_and_the_priors(
        self, values: list[float], control: list[float], variance: float, freedom: float
    ) -> None:
        today, own = variance_of(values, control)
        found = Estimate.of(values, control, Prior(variance, freedom, ""))
        assert found.freedom == own + freedom
        known = variance + scatter_of(statistics.fmean(values)) ** 2
        low, high = sorted([today, known])
        assert low * 0.999 <= found.error**2 * len(values) <= high * 1.001

    @few_examples
    @given(SERIES, SERIES, VARIANCES, RATIOS)
    def test_of_a_gain_only_a_share_is_scatter_and_of_a_biased_control_nothing(
        self, values: list[float], control: list[float], variance: float, gain: float
    ) -> None:
        prior, few = Prior(variance, 8, ""), [v - statistics.fmean(values) for v in values]
        plain = Estimate.of(few, control, prior)
        moved = Estimate.of([v + gain for v in few], [c - gain for c in control], prior)
        more = 8 * scatter_of(gain) ** 2 / moved.freedom / len(few)
        assert moved.error**2 == pytest.approx(plain.error**2 + more, rel=1e-6, abs=1e-12)
        assert moved.mean == pytest.approx(plain.mean + gain, abs=1e-9)


def scattered(new: Sequence[float], copy: Sequence[float], variance: float) -> Series:
    """Return a case of which earlier processes had this variance."""
    return Series("a", "a", {}, (*new,), (*copy,), noise=Noise((), Prior(variance, 8, "")))


class TestExcess:
    @few_examples
    @given(st.lists(st.tuples(SERIES, SERIES, VARIANCES), max_size=4), st.floats(1, 10))
    def test_it_is_at_least_one_and_grows_with_the_scatter(
        self, cases: list[tuple[list[float], list[float], float]], factor: float
    ) -> None:
        def given_factor(by: float) -> float:
            return excess_of(
                [
                    scattered([by * v for v in main], [by * v for v in control], variance)
                    for main, control, variance in cases
                    if any(main) or any(control)
                ]
            )

        assert 1 <= given_factor(1.0) <= given_factor(factor) * 1.000001

    def test_a_prior_that_is_too_small_is_put_right_by_all_cases(self) -> None:
        dice = Random(1)
        cases = [[dice.gauss(0, 3e-3) for _ in range(8)] for _ in range(20)]
        assert 7 < excess_of([scattered(case, case, 1e-6) for case in cases]) < 11

    def test_a_candidate_that_scatters_alone_counts_and_so_do_both_together(self) -> None:
        assert excess_of([scattered([0.0, 0.02], [0.0, 0.0], 1e-4)]) == pytest.approx(2)
        assert excess_of([scattered([0.0, 0.0], [0.0, 0.04], 1e-4)]) == pytest.approx(4)


class TestEarlierSessions:
    @few_examples
    @given(st.lists(SERIES, min_size=1, max_size=5), RATIOS)
    def test_a_gain_does_not_change_it_and_it_counts_for_so_much(
        self, series: list[list[float]], gain: float
    ) -> None:
        freedom = sum(len(one) - 1 for one in series)
        there = (
            tuple({"a": one} for one in series),
            tuple({"a": [v + gain for v in one]} for one in series),
        )
        found, moved = (Noise(sessions, DEVICE_TIMED).prior(["a"]) for sessions in there)
        assume(variance_of(*series)[0] > 1e-10)
        if freedom < ENOUGH:
            assert found == moved == DEVICE_TIMED
        else:
            assert (found.source, found.freedom) == (EARLIER, min(freedom, MOST))
            assert found.variance == pytest.approx(moved.variance, rel=1e-3, abs=1e-12)

    def test_it_is_of_the_mean_of_the_cases_that_are_asked_for(self) -> None:
        up = [0.0, 0.01] * 4
        noise = Noise(({"a": up, "b": [-v for v in up]}, {"a": up}), DEVICE_TIMED)
        assert "default" in noise.prior(["a", "b"]).source, "together they do not scatter"
        alone = noise.prior(["a"])
        assert alone.source == EARLIER and alone.variance == pytest.approx(variance_of(up)[0])
        assert "default" in noise.prior(["a", "c"]).source

    def test_sessions_add_up_until_enough_is_known(self) -> None:
        short = [0.0, 0.02, 0.0, 0.02]
        noise = Noise(({"a": short}, {"a": short, "b": short}), DEVICE_TIMED)
        assert [noise.prior([case]).freedom for case in "ab"] == [6, DEVICE_TIMED.freedom]

    def test_a_default_is_less_for_more_cases_and_never_vanishes(self) -> None:
        noise = Noise((), Prior(1.0, 8, ""))
        found = [noise.prior(list(range(1, n + 1))).variance for n in (1, 2, 5, 1000)]  # type: ignore[arg-type]
        assert found[0] == 1.0 and found == sorted(found, reverse=True) and found[-1] > 0.1


def evidence_of(
    look: int, *changes: float, noise: Noise | None, spread: float = 0.05
) -> SeriesTable:
    """Cases that changed by so many percent in every process, give or take `spread`."""
    wobble = [log_ratio(spread) * (1 if i % 2 else -1) for i in range(look)]
    cases = tuple(
        Series(
            *(f"case{i}", f"case{i}", {}),
            tuple(log_ratio(change) + w for w in wobble) if change else (0.0,) * look,
            tuple(-w for w in wobble) if change else (0.0,) * look,
        )
        for i, change in enumerate(changes)
    )
    return series_table(cases, "step", noise=noise)


KNOWN = Noise((), DEVICE_TIMED)


class TestAVerdict:
    def test_two_processes_are_enough_where_the_noise_is_known(self) -> None:
        for change, decision in ((2.0, Decision.ACCEPTED), (-2.0, Decision.ROLLED_BACK)):
            changes = [change] * 5
            verdict = decide(evidence_of(2, *changes, noise=KNOWN), PRIMUS)
            assert verdict is not None and verdict.decision is decision
        unknown = evidence_of(2, 0.5, 0.5, 0.5, noise=None, spread=0.3)
        assert decide(unknown, PRIMUS) is None

    def test_it_says_what_was_known(self) -> None:
        verdict = decide(evidence_of(2, 2.0, noise=KNOWN), PRIMUS)
        assert verdict is not None and verdict.noise is not None
        assert verdict.noise.sd_pct == pytest.approx(0.2, abs=0.01)
        assert (verdict.noise.freedom, verdict.noise.excess) == (8, 1)
        assert "default" in verdict.noise.source
        assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
        plain = decide(evidence_of(8, 2.0, noise=None), PRIMUS)
        assert plain is not None and plain.noise is None

    def test_a_case_that_is_not_timed_adds_no_noise(self) -> None:
        timed = evidence_of(4, 1.0, noise=KNOWN)
        more = evidence_of(4, 1.0, 0.0, 0.0, noise=KNOWN)
        one, third = prior_of(timed.series), prior_of(more.series)
        assert one is not None and third is not None
        assert third.variance == pytest.approx(one.variance / 9)
        assert prior_of(more.series[1:]) is None
        assert excess_of(more.series) == excess_of(timed.series)


class TestSimulated:
    """Live cells of the plan of `benchmarks/paired_power.py`, small: normal noise, one seed."""

    @staticmethod
    def play(
        change: float, *, cases: int = 5, known: float = 1.0, verdicts: int = 400
    ) -> tuple[Counter[str], float]:
        """Return decisions and mean processes; the prior's sd is `known` times the truth."""
        dice, sd = Random(24), 0.002
        decisions: Counter[str] = Counter()
        looks = 0
        noise = Noise((), Prior((known * sd) ** 2, 8, "simulated"))
        for _ in range(verdicts):
            main, placebo = (
                [[dice.gauss(0, sd) for _ in range(8)] for _ in range(cases)] for _ in range(2)
            )
            for look in LOOKS:
                found = tuple(
                    Series(
                        *(str(i), str(i), {}),
                        tuple(v + log_ratio(change) for v in main[i][:look]),
                        tuple(placebo[i][:look]),
                    )
                    for i in range(cases)
                )
                verdict = decide(series_table(found, "step", noise=noise), PRIMUS)
                if verdict is not None:
                    decisions[str(verdict.decision)] += 1
                    looks += look
                    break
        return decisions, looks / verdicts

    def test_identical_code_is_not_accepted_and_half_a_percent_is(self) -> None:
        same, processes = self.play(0.0)
        assert same["ACCEPTED"] <= 4 and processes < 4
        faster, processes = self.play(0.5)
        assert faster["ACCEPTED"] + faster["ACCEPTED_WITH_NOTE"] >= 396 and processes < 3.5

    @pytest.mark.parametrize("cases", [1, 16])
    def test_a_prior_that_is_three_times_too_small_accepts_no_noise(self, cases: int) -> None:
        same, _ = self.play(0.0, cases=cases, known=1 / 3, verdicts=300)
        assert same["ACCEPTED"] <= 4
