"""Config classes: what a class is, and that one does not pay for another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.decide.classes import ClassStanding, measured_classes
from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.series import Series, SeriesTable
from pytest_kopt.decide.stored import StoredEvidence, decide_stored, remeasurements_needed
from pytest_kopt.decide.verdict import ConfigClass, Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.metrics import parse_primary
from pytest_kopt.schema.table import Classes, Table, make_row
from tests.builders import by_metrics, few_examples, series_table

PRIMUS, KERNEL_OPT = policies.load("primus"), policies.load("kernel-opt")
BY_BLOCK = Classes(("block_size",))
#: S4's example: microseconds by block_size, the incumbent's and the candidate's.
OLD = {1024: (100.0, 102.0), 16: (40.0, 42.0)}
DIVERGED = {1024: (92.0, 94.0), 16: (44.0, 46.0)}
DISPATCHED = {1024: (92.0, 94.0), 16: (40.0, 42.0)}

Times = Mapping[int, Sequence[float]]
Rule = Callable[..., Verdict]


def table(times: Times) -> Table:
    """A CSV with S4's columns; lower is better."""
    header = ("label", "block_size", "mtp", "Check", "us_flydsl_ps", "err_flydsl_ps")
    rows = [
        make_row(header, {**dims, "us_flydsl_ps": time, "err_flydsl_ps": 0})
        for dims, time in spread(times)
    ]
    return Table(header, tuple(rows))


def spread(times: Times) -> list[tuple[dict[str, int | str], float]]:
    return [
        ({"label": f"b{block}m{mtp}", "block_size": block, "mtp": mtp, "Check": "PASS"}, time)
        for block, found in times.items()
        for mtp, time in enumerate(found, start=1)
    ]


def stored(
    new: Times,
    old: Times = OLD,
    *,
    classes: Classes = BY_BLOCK,
    policy: Policy = KERNEL_OPT,
    again: Sequence[Times] = (),
) -> Verdict:
    evidence = StoredEvidence(
        table(new), table(old), tuple(table(each) for each in again), classes=classes
    )
    return decide_stored(evidence, policy)


def evidence_of(
    new: Times, old: Times, classes: Classes, *, look: int = FINAL_LOOK, noise: float = 1e-4
) -> SeriesTable:
    """Times that every process sees, give or take `noise` of them, two cases a class apart."""
    wobble = [noise * (1 if i % 2 else -1) for i in range(look)]
    cases = [
        Series(
            str(dims["label"]),
            str(dims["label"]),
            {"block_size": dims["block_size"], "mtp": dims["mtp"]},
            tuple(math.log(before / after) + w for w in wobble),
            values=(after, before),
        )
        for (dims, after), (_, before) in zip(spread(new), spread(old), strict=True)
    ]
    return series_table(tuple(cases), "us_flydsl_ps", classes=classes)


def paired(
    new: Times,
    old: Times = OLD,
    *,
    classes: Classes = BY_BLOCK,
    policy: Policy = KERNEL_OPT,
    noise: float = 1e-4,
) -> Verdict:
    verdict = decide(evidence_of(new, old, classes, noise=noise), policy)
    assert verdict is not None
    return verdict


def about(block: int) -> Classes:
    return Classes(("block_size",), f"block_size={block}")


def scaled(**factors: float) -> Times:
    """The incumbent's times, those of a class `b<block>` times a factor."""
    return {b: tuple(t * factors.get(f"b{b}", 1.0) for t in ts) for b, ts in OLD.items()}


def classes_of(verdict: Verdict) -> dict[str, ConfigClass]:
    return {found.name: found for found in verdict.classes}


@pytest.fixture(params=[stored, paired])
def rule(request: pytest.FixtureRequest) -> Rule:
    found: Rule = request.param
    return found


def test_the_class_that_moved_most_is_named_first() -> None:
    gained = {"a", "b"}
    standing = ClassStanding({"a": 3.0, "b": 9.0, "c": -4.0}, gained, {"c"}, gained)
    both = "'b' (+9.00 %) and 'a' (+3.00 %)"
    assert standing.divergence == f"the classes diverge: {both} improved, 'c' (-4.00 %) fell"


class TestTheExamples:
    @pytest.mark.parametrize("policy", [KERNEL_OPT, PRIMUS], ids=["kernel-opt", "primus"])
    def test_divergence_is_a_split_with_the_advice_to_dispatch(
        self, rule: Rule, policy: Policy
    ) -> None:
        verdict = rule(DIVERGED, policy=policy)
        assert (verdict.decision, verdict.exit_code) == (Decision.SPLIT, 8)
        assert "'block_size=1024' (+8.60 %) improved" in verdict.reason
        assert "'block_size=16' (-8.89 %) fell" in verdict.reason
        assert "give 'block_size=1024' the new path" in verdict.next_step
        assert "leave 'block_size=16' on the old one" in verdict.next_step
        found = classes_of(verdict)
        assert found["block_size=1024"].status == "improved"
        assert found["block_size=16"].status == "regressed"
        assert "regressed" in {shape.status for shape in verdict.shapes}, "beyond the shape gate"

    @pytest.mark.parametrize("target", [None, "block_size=1024"])
    def test_after_dispatch_it_is_accepted(self, rule: Rule, target: str | None) -> None:
        verdict = rule(DISPATCHED, classes=Classes(("block_size",), target))
        assert (verdict.decision, verdict.exit_code) == (Decision.ACCEPTED, 0)
        assert verdict.target_class == target
        assert [found.status for found in verdict.classes] == ["improved", "unchanged"]

    def test_without_classes_they_are_only_a_regressed_case(self, rule: Rule) -> None:
        verdict = rule(DIVERGED, classes=Classes())
        assert verdict.decision is Decision.ROLLED_BACK
        assert verdict.classes == []


class TestResults:
    def test_a_class_is_the_geometric_mean_of_its_cases(self, rule: Rule) -> None:
        found = classes_of(rule(DISPATCHED))["block_size=1024"]
        assert (found.dims, found.cases) == ({"block_size": 1024}, 2)
        assert found.candidate == pytest.approx(math.sqrt(92 * 94))
        assert found.incumbent == pytest.approx(math.sqrt(100 * 102))
        gain = (math.sqrt(100 * 102 / (92 * 94)) - 1) * 100
        assert found.change_pct == pytest.approx(gain)

    def test_only_a_paired_class_has_an_interval(self) -> None:
        for found in stored(DISPATCHED).classes:
            assert found.low_pct is None and found.high_pct is None and found.confidence is None
        for found in paired(DISPATCHED, noise=0.01).classes:
            assert found.low_pct is not None and found.high_pct is not None
            assert found.change_pct is not None
            assert found.low_pct < found.change_pct < found.high_pct

    def test_the_targets_interval_is_the_one_it_is_judged_by(self) -> None:
        found = classes_of(paired(DISPATCHED, classes=about(1024), noise=0.01))
        assert found["block_size=1024"].confidence == 1 - 2 * LOOKS[FINAL_LOOK]
        assert found["block_size=16"].confidence == pytest.approx(0.95)

    def test_the_baselines_classes_have_values_and_no_change(self) -> None:
        rows = table(OLD)
        found = measured_classes(BY_BLOCK, rows, parse_primary(None, rows, {})[0])
        assert [(each.name, each.cases) for each in found] == [
            ("block_size=1024", 2),
            ("block_size=16", 2),
        ]
        assert found[1].candidate == pytest.approx(math.sqrt(40 * 42))
        assert found[1].change_pct is None

    def test_several_columns_make_finer_classes(self, rule: Rule) -> None:
        verdict = rule(DISPATCHED, classes=Classes(("block_size", "mtp")))
        assert list(classes_of(verdict)) == [
            *("block_size=1024, mtp=1", "block_size=1024, mtp=2"),
            *("block_size=16, mtp=1", "block_size=16, mtp=2"),
        ]
        assert verdict.decision is Decision.ACCEPTED


class TestAClassTargetedRound:
    @pytest.mark.parametrize(
        ("new", "decision", "says"),
        [
            (scaled(b16=0.9), Decision.ACCEPTED, "of 'block_size=16' improved"),
            (scaled(b1024=0.9, b16=0.9), Decision.ACCEPTED, "of 'block_size=16' improved"),
            (scaled(b1024=1.04, b16=0.9), Decision.SPLIT, "'block_size=1024' (-3.85 %) fell"),
            (scaled(b1024=0.9, b16=1.04), Decision.SPLIT, "'block_size=16' (-3.85 %) fell"),
            (scaled(b1024=0.998, b16=1.0026), Decision.ROLLED_BACK, "fell"),
            (scaled(b16=1.04), Decision.ROLLED_BACK, "fell"),
        ],
    )
    def test_its_class_has_to_improve_and_no_other_may_lose(
        self, rule: Rule, new: Times, decision: Decision, says: str
    ) -> None:
        verdict = rule(new, classes=about(16))
        assert verdict.decision is decision
        assert says in verdict.reason
        assert verdict.target_class == "block_size=16"

    def test_what_another_class_gains_does_not_count(self) -> None:
        faster_elsewhere = scaled(b1024=0.9)
        kept = stored(faster_elsewhere, classes=about(16))
        assert kept.decision is Decision.ROLLED_BACK
        assert "of 'block_size=16' is unchanged" in kept.reason
        kept = paired(faster_elsewhere, classes=about(16))
        assert kept.decision is Decision.INCONCLUSIVE
        assert "of 'block_size=16' changed by +0.00 %" in kept.reason
        for rule in (stored, paired):
            assert rule(faster_elsewhere).decision is Decision.ACCEPTED

    def test_a_gain_too_small_for_the_aggregate_is_enough_for_its_class(self) -> None:
        """One class of many: what it gains is diluted in the whole."""
        old = dict.fromkeys(range(1, 11), (100.0, 100.0))
        new = {**old, 3: (97.0, 97.0)}
        assert stored(new, old).decision is Decision.INCOMPLETE, "0.3 % lies inside the noise"
        assert stored(new, old, classes=about(3)).decision is Decision.ACCEPTED

    def test_it_may_not_lower_the_whole(self, rule: Rule) -> None:
        """Many others lose a little each: none is hurt, all together are."""
        old = dict.fromkeys(range(1, 11), (100.0, 100.0))
        share = 1.0028 if rule is paired else 1.0195
        new = {b: (97.9, 97.9) if b == 3 else (100 * share, 100 * share) for b in old}
        verdict = rule(new, old, classes=about(3), policy=PRIMUS)
        assert verdict.decision is Decision.ROLLED_BACK
        assert "us_flydsl_ps fell" in verdict.reason
        assert "regressed" not in {found.status for found in verdict.classes}

    def test_a_small_gain_is_measured_again_for_the_class(self) -> None:
        first = scaled(b16=1 / 1.015)
        waiting = stored(first, classes=about(16), policy=PRIMUS)
        assert waiting.decision is Decision.INCOMPLETE
        assert remeasurements_needed(waiting, PRIMUS) == 3
        again = [scaled(b16=1 / factor) for factor in (1.014, 1.015, 1.016)]
        verdict = stored(first, classes=about(16), policy=PRIMUS, again=again)
        assert verdict.decision is Decision.ACCEPTED
        assert verdict.remeasured_pct == [pytest.approx(x) for x in (1.4, 1.5, 1.6)]

    @pytest.mark.parametrize(
        ("columns", "target", "legal"),
        [
            (("block_size",), "block_size=7", "block_size=1024, block_size=16"),
            (("block_size",), "1024", "block_size=1024"),
            (("block_size", "mtp"), "block_size=16", "block_size=16, mtp=1"),
            ((), "block_size=16", "classes of the baseline"),
        ],
    )
    def test_an_unknown_class_is_refused(
        self, rule: Rule, columns: tuple[str, ...], target: str, legal: str
    ) -> None:
        with pytest.raises(BadInput) as refused:
            rule(DISPATCHED, classes=Classes(columns, target))
        assert refused.value.where == "target_class"
        assert repr(target) in str(refused.value) and legal in refused.value.legal

    def test_its_columns_may_come_in_any_order(self, rule: Rule) -> None:
        classes = Classes(("block_size", "mtp"), " mtp=2,block_size=16")
        assert rule(DISPATCHED, classes=classes).target_class == "block_size=16, mtp=2"


class TestAGlobalRound:
    @pytest.mark.parametrize("column", ["num_kv_heads", "us_flydsl_ps", "label", "Check"])
    def test_only_dims_tell_classes_apart(self, column: str) -> None:
        with pytest.raises(BadInput, match=f"{column!r} is no dim") as refused:
            stored(DISPATCHED, classes=Classes((column,)))
        assert (refused.value.where, refused.value.legal) == ("classes", "block_size, mtp")

    @pytest.mark.parametrize(
        ("policy", "loss", "decision"),
        [
            (KERNEL_OPT, 1.0, Decision.SPLIT),
            (KERNEL_OPT, 0.99, Decision.ACCEPTED_WITH_NOTE),
            (PRIMUS, 2.0, Decision.SPLIT),
            (PRIMUS, 1.99, Decision.ACCEPTED_WITH_NOTE),
        ],
    )
    def test_stored_the_policys_noise_is_no_loss(
        self, policy: Policy, loss: float, decision: Decision
    ) -> None:
        new = scaled(b1024=0.9, b16=1 / (1 - loss / 100))
        assert stored(new, policy=policy).decision is decision

    @pytest.mark.parametrize(
        ("loss", "noise", "decision"),
        [
            (0.2, 1e-4, Decision.ACCEPTED_WITH_NOTE),
            (0.5, 1e-4, Decision.SPLIT),
            (0.5, 15e-4, Decision.INCONCLUSIVE),
            (0.5, 4e-3, Decision.ACCEPTED),
            (0.5, 1e-2, Decision.INCONCLUSIVE),
            (4.0, 1e-2, Decision.SPLIT),
        ],
    )
    def test_paired_the_intervals_say_what_is_a_loss(
        self, loss: float, noise: float, decision: Decision
    ) -> None:
        """Not shown, it is none; what seems to be one, or may be all the noise, is not safe."""
        new = scaled(b1024=0.9, b16=1 + loss / 100)
        verdict = paired(new, noise=noise)
        assert verdict.decision is decision, verdict.reason
        named = re.search(
            r"a loss in class '.*=16' cannot be excluded: -\d\.\d+ % \[", verdict.reason
        )
        assert (named is not None) == (verdict.exit_code == 9), verdict.reason

    @pytest.mark.parametrize(
        ("gain", "decision"), [(0.2, Decision.ROLLED_BACK), (0.5, Decision.SPLIT)]
    )
    def test_paired_the_known_bias_is_no_gain_to_dispatch_for(
        self, gain: float, decision: Decision
    ) -> None:
        verdict = paired(scaled(b1024=1 / (1 + gain / 100), b16=1.04))
        assert verdict.decision is decision, verdict.reason
        assert classes_of(verdict)["block_size=1024"].status == "improved"

    def test_paired_what_seems_to_be_a_loss_is_looked_at_again(self) -> None:
        new, first = scaled(b1024=0.9, b16=1.01), next(iter(LOOKS))
        early = evidence_of(new, OLD, BY_BLOCK, look=first, noise=1e-3)
        assert decide(early, PRIMUS) is None
        assert paired(new, policy=PRIMUS, noise=1e-3).decision is Decision.SPLIT

    def test_a_loss_that_nobody_gained_from_is_rolled_back(self) -> None:
        """The aggregate is up by what is noise for each class alone."""
        old = dict.fromkeys(range(1, 6), (100.0, 100.0))
        new = {**dict.fromkeys(old, (98.5, 98.5)), 5: (102.5, 102.5)}
        verdict = stored(new, old, policy=PRIMUS)
        assert verdict.decision is Decision.ROLLED_BACK
        assert "'block_size=5' (-2.44 %) fell beyond the noise" in verdict.reason

    def test_paired_too(self) -> None:
        """Four classes gain less than the known bias, so that no path of their own is worth it."""
        old = dict.fromkeys(range(1, 6), (100.0, 100.0))
        new = {**dict.fromkeys(old, (99.75, 99.75)), 5: (100.5, 100.5)}
        verdict = paired(new, old)
        assert verdict.aggregate is not None and (verdict.aggregate.low_pct or 0) > 0
        assert verdict.decision is Decision.ROLLED_BACK
        assert "'block_size=5' (-0.50 %) fell beyond the noise" in verdict.reason

    def test_a_split_that_only_the_repetitions_show(self) -> None:
        first = {1024: (98.5, 100.5), 16: (40.0, 42.0)}
        assert stored(first, policy=PRIMUS).decision is Decision.INCOMPLETE
        again = [scaled(b1024=0.96, b16=1.03)] * 3
        assert stored(first, policy=PRIMUS, again=again).decision is Decision.SPLIT

    def test_one_bad_case_in_a_class_that_holds_is_the_shape_gates(self, rule: Rule) -> None:
        new = {1024: (80.0, 82.0), 16: (40 * 1.08, 42 / 1.08)}
        verdict = rule(new)
        assert verdict.decision is Decision.ROLLED_BACK
        assert "'b16m1'" in verdict.reason and "regression limit" in verdict.reason
        assert classes_of(verdict)["block_size=16"].status == "unchanged"

    def test_all_classes_slower_is_no_split(self, rule: Rule) -> None:
        assert rule(scaled(b1024=1.03, b16=1.04)).decision is Decision.ROLLED_BACK

    def test_two_metrics_of_which_one_splits(self) -> None:
        whole = evidence_of(scaled(b1024=1.03, b16=1.03), OLD, BY_BLOCK)
        split = evidence_of(DIVERGED, OLD, BY_BLOCK)
        for order in ([whole, split], [split, whole]):
            verdict = decide(by_metrics(*order), KERNEL_OPT)
            assert verdict is not None and verdict.decision is Decision.SPLIT


FACTORS = st.floats(0.85, 1.15).map(lambda factor: round(factor, 4))
TIMES = st.lists(st.lists(FACTORS, min_size=1, max_size=3), min_size=1, max_size=4)
NOISES = st.sampled_from([0.0, 1e-4, 3e-3, 2e-2])


def blocks(factors: list[list[float]]) -> tuple[Times, Times]:
    new = {i: tuple(100 * f for f in found) for i, found in enumerate(factors)}
    return new, {i: (100.0,) * len(found) for i, found in enumerate(factors)}


def decided(verdict: Verdict | None) -> tuple[object, ...]:
    """What a verdict says, whatever the order of its cases."""
    if verdict is None:
        return (None,)
    changes = sorted((c.name, c.status, round(c.change_pct or 0, 6)) for c in verdict.classes)
    return (verdict.decision, verdict.exit_code, *changes)


@few_examples
@given(TIMES, NOISES, st.sampled_from([*LOOKS]), st.randoms(use_true_random=False))
def test_the_order_of_the_cases_does_not_matter(
    factors: list[list[float]], noise: float, look: int, random: Random
) -> None:
    new, old = blocks(factors)
    order = list(new)
    random.shuffle(order)
    shuffled = ({i: new[i] for i in order}, {i: old[i] for i in order})
    assert decided(stored(new, old)) == decided(stored(*shuffled))
    one, other = (
        decide(evidence_of(*times, BY_BLOCK, look=look, noise=noise), PRIMUS)
        for times in ((new, old), shuffled)
    )
    assert decided(one) == decided(other)


@few_examples
@given(TIMES, NOISES, st.sampled_from([*LOOKS]), st.sampled_from([None, "group=0"]))
def test_one_class_is_as_none(
    factors: list[list[float]], noise: float, look: int, target: str | None
) -> None:
    """Paired, and with the class as the target too: its improvement is the aggregate's."""
    new, old = blocks(factors)
    plain = evidence_of(new, old, Classes(), look=look, noise=noise)
    cases = [
        Series(case.name, case.label, {**case.dims, "group": 0}, case.new) for case in plain.series
    ]
    one = series_table(tuple(cases), "us_flydsl_ps", classes=Classes(("group",), target))
    without, verdict = decide(plain, PRIMUS), decide(one, PRIMUS)
    if without is None or verdict is None:
        assert verdict is without
        return
    assert verdict.decision is without.decision
    assert [shape.status for shape in verdict.shapes] == [s.status for s in without.shapes]
    if target is None:
        assert verdict.reason == without.reason


@few_examples
@given(st.lists(FACTORS, min_size=1, max_size=5))
def test_one_class_is_as_none_in_a_stored_comparison(factors: list[float]) -> None:
    new, old = {1: tuple(100 * f for f in factors)}, {1: (100.0,) * len(factors)}
    for classes in (BY_BLOCK, about(1)):
        verdict, without = stored(new, old, classes=classes), stored(new, old, classes=Classes())
        assert verdict.decision is without.decision
        assert verdict.aggregate == without.aggregate


@few_examples
@given(TIMES, NOISES)
def test_no_accepted_round_has_a_class_that_lost(factors: list[list[float]], noise: float) -> None:
    new, old = blocks(factors)
    for verdict in (stored(new, old), paired(new, old, noise=noise)):
        lost = [found for found in verdict.classes if found.status == "regressed"]
        if len(verdict.classes) > 1 and verdict.decision.keeps:
            assert not lost
        if verdict.decision is Decision.SPLIT:
            assert lost and "improved" in {found.status for found in verdict.classes}
