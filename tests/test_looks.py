"""A gain or a loss has to show against both copies of the current best, at every interim look."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.decide.claims import SeriesClaim, Statement, shown
from pytest_kopt.decide.conclusion import VersionFacts
from pytest_kopt.decide.inference import (
    FINAL_LOOK,
    LOOKS,
    Estimate,
    log_ratio,
    percent,
    scatter_of,
    student_quantile,
)
from pytest_kopt.decide.known_noise import DEVICE_TIMED, HOST_TIMED, Noise
from pytest_kopt.decide.look import slower_by
from pytest_kopt.decide.paired import WORTH_PCT, decide
from pytest_kopt.decide.series import Series, SeriesTable
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.schema.table import Classes
from tests.builders import by_metrics, few_examples, paired_evidence, series_table, with_skew

PRIMUS = policies.load("primus")
KNOWN = Noise((), DEVICE_TIMED)
RATIOS = st.floats(-0.1, 0.1).map(lambda value: round(value, 6))
SERIES = st.lists(RATIOS, min_size=2, max_size=8)


CHANGES = st.sampled_from([0.0, 0.003, -0.003, 0.02, -0.03, -0.06, 0.2])


@st.composite
def evidence_of_cases(draw: st.DrawFn) -> SeriesTable:
    """Return cases at a look: guarded or not, with a limit and a weight of their own or without."""
    look = draw(st.sampled_from([*LOOKS]))
    spread = draw(st.sampled_from([0.002, 0.02]))
    scatter = st.floats(-spread, spread).map(lambda value: round(value, 6))

    def series() -> tuple[float, ...]:
        change = draw(CHANGES)
        return tuple(change + draw(scatter) for _ in range(look))

    drawn = [
        Series(
            *(f"case{i}", f"case{i}", {"half": i % 2, "case": i}, series(), series()),
            core=draw(st.booleans()),
            incumbent_ms=draw(st.floats(0.1, 10.0)),
            limit_pct=draw(st.sampled_from([None, 1.0])),
        )
        for i in range(draw(st.integers(1, 4)))
    ]
    noise = draw(st.sampled_from([None, KNOWN]))
    classes = draw(st.sampled_from([Classes(), Classes(("half",)), Classes(("case",))]))
    return series_table(drawn, "step", classes=classes, noise=noise)


def against_each_copy(evidence: SeriesTable) -> Iterator[SeriesTable]:
    """Yield the evidence against the current best alone, and against its copy alone."""
    for is_copy in (False, True):
        cases = []
        for case in evidence.series:
            bias = statistics.fmean(case.copy)
            new = tuple(x - bias * is_copy for x in case.new)
            cases.append(replace(case, new=new, copy=tuple(a - bias for a in case.copy)))
        yield replace(evidence, series=tuple(cases))


def test_the_page_on_the_method_has_its_constants() -> None:
    page = " ".join((Path(__file__).parents[1] / "docs" / "paired.md").read_text().split())
    *first, last = (f"{level:g}" for level in LOOKS.values())
    assert f"{', '.join(first)} and {last} (alpha spending)" in page
    assert f"The levels add up to {100 * sum(LOOKS.values()):.2f} %" in page
    device, host = (
        f"{100 * math.sqrt(prior.variance):g} %" for prior in (DEVICE_TIMED, HOST_TIMED)
    )
    assert f"deviation of {device} a case with {DEVICE_TIMED.freedom} degrees of freedom" in page
    assert f"for host times it is {host} with {HOST_TIMED.freedom}." in page
    assert f"g = min({scatter_of(0.01) / 0.01:g} |m|, {scatter_of(9.0):g})" in page


class TestAnEstimate:
    @few_examples
    @given(SERIES, SERIES, st.sampled_from([*LOOKS.values()]))
    def test_its_bounds_are_those_of_the_formula(
        self, values: list[float], control: list[float], level: float
    ) -> None:
        """As docs/paired.md writes it."""
        found = Estimate.of(values, control)
        m, b = statistics.fmean(values), statistics.fmean(control)
        ts = student_quantile(found.freedom, 1 - level) * found.error
        assert found.lower(level) == pytest.approx(min(m, m - b) - ts, abs=1e-12)
        assert found.upper(level) == pytest.approx(max(m, m - b) + ts, abs=1e-12)

    @few_examples
    @given(SERIES, SERIES, RATIOS, st.floats(0.001, 0.1))
    def test_a_p_value_says_what_the_bound_says(
        self, values: list[float], control: list[float], limit: float, level: float
    ) -> None:
        found = Estimate.of(values, control)
        for p_value, distance in (
            (found.p_above(limit), found.lower(level) - limit),
            (found.p_below(limit), limit - found.upper(level)),
        ):
            assert abs(distance) < 1e-9 or (p_value < level) == (distance > 0)

    @few_examples
    @given(SERIES, SERIES, RATIOS)
    def test_the_two_copies_are_interchangeable(
        self, values: list[float], control: list[float], bias: float
    ) -> None:
        estimate = Estimate(*_figures(Estimate.of(values, control)), copy=bias)
        swapped = replace(estimate, mean=estimate.mean - bias, copy=-bias)
        for level in LOOKS.values():
            assert swapped.lower(level) == pytest.approx(estimate.lower(level), abs=1e-12)
            assert swapped.upper(level) == pytest.approx(estimate.upper(level), abs=1e-12)


class TestAClaim:
    @given(st.sampled_from(Statement), st.lists(st.floats(-0.05, 0.05), min_size=1, max_size=5))
    def test_it_is_shown_where_its_bound_lies_on_the_side_that_it_states(
        self, says: Statement, means: list[float]
    ) -> None:
        """By itself; among others of a family only if it would be by itself."""
        level, bound = 0.01, 0.01
        claims = [
            SeriesClaim(says, str(i), Estimate(mean, 0.01, 8), bound, level)
            for i, mean in enumerate(means)
        ]
        _, below, is_family = says.value
        alone = set()
        for claim in claims:
            found = shown([claim])[says]
            upper, lower = claim.estimate.upper(level), claim.estimate.lower(level)
            assert bool(found) == (upper < bound if below else lower > bound)
            alone |= found
        together = shown(claims)[says]
        assert together <= alone if is_family else together == alone

    def test_several_of_a_family_have_to_be_clearer(self) -> None:
        """Each p-value is just below the level: enough for one claim, and not for two."""
        estimate = Estimate(-student_quantile(8, 1 - 0.009), 1.0, 8)
        for says, names in (
            (Statement.CASE_BEYOND_LIMIT, set()),
            (Statement.CLASS_SLOWER, set()),
            (Statement.CASE_BEYOND_LIMIT_ALONE, {"a", "b"}),
        ):
            claims = [SeriesClaim(says, name, estimate, 0.0, 0.01) for name in "ab"]
            assert shown(claims[:1])[says] == {"a"}
            assert shown(claims)[says] == names


def _figures(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.mean, estimate.error, estimate.freedom


@given(evidence_of_cases(), st.booleans())
def test_a_version_that_is_a_copy_is_neither_faster_nor_slower(
    evidence: SeriesTable, is_by_weight: bool
) -> None:
    """Whatever the machine does to copies: the candidate differs as the copy does."""
    policy = policy_by(is_by_weight)
    cases = tuple(replace(case, copy=case.new) for case in evidence.series)
    verdict = decide(replace(evidence, series=cases), policy)
    assert verdict is None or verdict.decision in (Decision.INCONCLUSIVE, Decision.INCOMPLETE)


@given(evidence_of_cases(), st.booleans())
def test_a_loss_shows_against_each_copy_alone(evidence: SeriesTable, is_by_weight: bool) -> None:
    """Of the whole, of a class and of a case beyond its limit, Holm's families included."""
    policy = policy_by(is_by_weight)
    verdict = decide(evidence, policy)
    if verdict is None or verdict.decision not in (Decision.ROLLED_BACK, Decision.SPLIT):
        return
    for alone in against_each_copy(evidence):
        found = decide(alone, policy)
        assert found is not None
        assert found.decision in (Decision.ROLLED_BACK, Decision.SPLIT), (verdict, found)


@given(evidence_of_cases())
def test_a_gain_shows_against_each_copy_alone(evidence: SeriesTable) -> None:
    verdict = decide(evidence, PRIMUS)
    if verdict is None or not verdict.decision.keeps:
        return
    for alone in against_each_copy(evidence):
        cases = tuple(replace(case, dims={}) for case in alone.series)
        found = decide(replace(alone, series=cases, classes=Classes()), PRIMUS)
        assert found is not None and found.decision.keeps, (verdict, found)


def policy_by(is_by_weight: bool) -> Any:
    decided_by = "weighted-time" if is_by_weight else "geomean"
    return PRIMUS.model_copy(update={"decided_by": decided_by})


def biased(
    *changes: float, copy: float, look: int = FINAL_LOOK, spread: float = 0.1, **more: Any
) -> SeriesTable:
    """Return cases that changed by so many percent, and their copies alike by `copy` percent."""
    evidence = paired_evidence(*changes, look=look, spread=spread, noise=KNOWN, **more)
    copies = paired_evidence(*[copy] * len(changes), look=look, spread=spread).series
    pairs = zip(evidence.series, copies, strict=True)
    cases = tuple(replace(case, copy=other.new) for case, other in pairs)
    return replace(evidence, series=cases)


@pytest.mark.parametrize(
    ("changes", "copy", "said"),
    [
        ((2.0, 2.0), 2.0, "step speed improved: +2.00 %"),
        ((20.0, 20.0), 30.0, "step speed improved: +20.0 %"),
        ((-2.0, -2.0), -2.0, "step speed fell: -2.00 %"),
        ((9.0, -5.5), -1.5, "case 'case1' is slower: -5.5"),
    ],
    ids=["gain", "less than the copy", "loss", "a case"],
)
def test_while_one_copy_alone_shows_it_the_comparison_goes_on_to_incomplete(
    changes: tuple[float, ...], copy: float, said: str
) -> None:
    for look in LOOKS:
        verdict = decide(biased(*changes, copy=copy, look=look), PRIMUS)
        assert (verdict is None) == (look < FINAL_LOOK)
    assert verdict is not None and verdict.decision is Decision.INCOMPLETE
    assert verdict.exit_code == 11
    assert said in verdict.reason
    assert "but not against the copy of the current best (A/A control), which" in verdict.reason
    assert "run the round again" in verdict.next_step


def test_a_gain_that_one_case_holds_up_against_the_copy_names_that_case() -> None:
    """All cases together gain against both copies: the figure of the copy says nothing then."""
    evidence = biased(20.0, -4.0, copy=0.0)
    first, second = evidence.series
    second = replace(second, copy=tuple(ratio + log_ratio(2.0) for ratio in second.copy))
    verdict = decide(replace(evidence, series=(first, second)), PRIMUS)
    assert verdict is not None and verdict.decision is Decision.INCOMPLETE
    assert "step speed improved" in verdict.reason
    _, why = verdict.reason.split("but not against the copy of the current best (A/A control)")
    assert "more time (-4.76 %) in case 'case1' cannot be excluded" in why, why
    assert "which changed" not in why


def test_a_change_that_is_too_small_to_be_worth_it_ends_as_before() -> None:
    verdict = decide(biased(0.0, 0.0, copy=2.0, look=2), PRIMUS)
    assert verdict is not None and verdict.decision is Decision.INCONCLUSIVE


def test_a_clear_loss_of_another_metric_comes_before_a_copy_that_differs() -> None:
    slower, disputed = biased(-9.0, copy=0.0), biased(2.0, copy=2.0)
    verdict = decide(by_metrics(disputed, slower), PRIMUS)
    assert verdict is not None and verdict.decision is Decision.ROLLED_BACK
    assert len(verdict.secondary) == 1, "the figure of the other metric stands beside it"


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_metrics_a_gain_waits_for_the_other_one(turned: bool) -> None:
    """A copy that differs in the other one comes before the gain, too small a change after it."""

    def of_both(other: SeriesTable, look: int) -> Decision | None:
        gained = biased(9.0, copy=0.0, look=look)
        tables = (other, gained) if turned else (gained, other)
        verdict = decide(by_metrics(*tables), PRIMUS)
        return verdict.decision if verdict else None

    first = min(LOOKS)
    assert of_both(biased(2.0, copy=2.0), FINAL_LOOK) is Decision.INCOMPLETE
    assert of_both(biased(1.0, copy=0.0, look=first, spread=1.0), first) is None
    assert of_both(biased(0.0, copy=0.0, look=first), first) is Decision.ACCEPTED
    assert of_both(biased(0.0, copy=0.0), FINAL_LOOK) is Decision.ACCEPTED


@pytest.mark.parametrize("changes", [(9.0, -4.2, -4.6), (9.0, -4.6, -4.2)])
def test_of_cases_that_may_be_beyond_their_limit_the_worst_is_named(
    changes: tuple[float, ...],
) -> None:
    verdict = decide(paired_evidence(*changes, look=FINAL_LOOK, spread=1.5), PRIMUS)
    assert verdict is not None and verdict.decision is Decision.INCONCLUSIVE
    assert f"in case 'case{changes.index(-4.6)}' cannot be excluded" in verdict.reason


def test_a_gain_under_skew_shows_against_both_copies_too() -> None:
    verdict = decide(with_skew(biased(9.0, copy=0.0), biased(2.0, copy=2.0)), PRIMUS)
    assert verdict is not None and verdict.decision is Decision.INCOMPLETE
    assert "with other group sizes: step speed improved" in verdict.reason
    assert "run the round again" in verdict.next_step


@pytest.mark.parametrize("copy", [0.02, -0.02])
def test_an_interval_holds_the_change_against_both_copies(copy: float) -> None:
    exact = Estimate(0.01, 0.0, 8, copy)
    assert sorted((0.01, 0.01 - copy)) == [exact.lower(0.025), exact.upper(0.025)]


def test_equal_is_equal_to_both_copies() -> None:
    """The version is equal to the current best; a copy that differs by 3 % puts that in doubt."""
    for copy, keeps in ((0.0, True), (3.0, False)):
        verdict = decide(
            biased(0.05, 0.05, copy=copy), PRIMUS, VersionFacts("one file instead of two")
        )
        assert verdict is not None and verdict.decision.keeps == keeps, verdict


OPEN = Series("a", "a", {}, (0.02, -0.019), (0.0, 0.001), limit_pct=1.0)
UNGUARDED = [
    Series(f"case{i}", f"case{i}", {"case": i}, (size, -size) * 4, core=False)
    for i, size in enumerate((0.03, 0.06))
]


@given(evidence_of_cases(), st.sampled_from([True, False]))
@example(series_table([OPEN], "step"), False)
@example(series_table(UNGUARDED, "step", classes=Classes(("case",))), False)
def test_what_may_have_lost_keeps_a_comparison_open_to_the_end(
    evidence: SeriesTable, is_last: bool
) -> None:
    """In the end the case, or else the class, with the lowest bound is named."""
    verdict = decide(replace(evidence, is_last=is_last), PRIMUS)
    if verdict is None or verdict.decision is not Decision.INCONCLUSIVE:
        return
    limits = {case.label: case.limit(PRIMUS) for case in evidence.series if case.is_guarded}
    # What may be slower by its limit, with the lower bound of its change.
    cases = {
        shape.label: shape.low_pct
        for shape in verdict.shapes
        if shape.label in limits
        and shape.low_pct is not None
        and shape.low_pct <= percent(slower_by(limits[shape.label].time_pct))
    }
    levels = {one.name: one.low_pct for one in verdict.classes if one.low_pct is not None}
    classes = {name: low for name, low in levels.items() if len(levels) > 1}
    if cases:
        worst = min(cases, key=cases.__getitem__)
        assert f"{limits[worst]} more time" in verdict.reason
        assert f"in case {worst!r} cannot be excluded" in verdict.reason
    elif any(low <= -2 for low in classes.values()):
        worst = min(classes, key=classes.__getitem__)
        assert f"a loss in class {worst!r} cannot be excluded" in verdict.reason
    elif len(levels) < 2:
        assert "neither a gain nor a loss is shown" in verdict.reason
    assert is_last or evidence.is_at_end or not cases


def test_a_case_that_nothing_guards_is_not_named() -> None:
    cases = [
        Series(name, name, {}, (size, -size) * 4, core=name == "a")
        for name, size in (("a", 0.08), ("b", 0.16))
    ]
    verdict = decide(series_table(cases, "step"), PRIMUS)
    assert verdict is not None and "in case 'a' cannot be excluded" in verdict.reason


def at_mean(mean: float, sd: float, look: int, has_copy: bool) -> SeriesTable:
    """Return one case, whose replicates scatter by `sd` around a mean as those of its copy do."""
    step = sd * math.sqrt((look - 1) / look)
    wobble = [step if i % 2 else -step for i in range(look)]
    copy = tuple(wobble) if has_copy else ()
    case = Series("a", "a", {}, tuple(mean + w for w in wobble), copy, core=False)
    return series_table([case], "step")


@pytest.mark.parametrize("has_copy", [True, False])
@pytest.mark.parametrize("look", [2, 4])
@pytest.mark.parametrize("sd", [0.0004, 0.004])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_comparison_goes_on_while_a_standard_error_more_would_decide_at_the_end(
    sign: int, sd: float, look: int, has_copy: bool
) -> None:
    """The mean that is just enough: the bound of the last look reaches zero, or 0.1 %."""
    error = sd / math.sqrt(look)
    freedom = (1 + has_copy) * (FINAL_LOOK - 1)
    t = student_quantile(freedom, 1 - LOOKS[FINAL_LOOK])
    worth = abs(log_ratio(sign * WORTH_PCT) if sign > 0 else slower_by(WORTH_PCT))
    least = max(t * error * math.sqrt(look / FINAL_LOOK), worth) - error
    for factor in (0.999, 1.001):
        verdict = decide(at_mean(sign * least * factor, sd, look, has_copy), PRIMUS)
        assert (verdict is None) == (factor > 1), (factor, verdict)
        assert verdict is None or verdict.decision is Decision.INCONCLUSIVE
