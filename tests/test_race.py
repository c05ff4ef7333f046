"""Who is out of a race, who is chosen, and that its error is what `decide/race_rule.py` says."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.cases.details import in_a_line
from pytest_kopt.cases.order import INCUMBENT, PLACEBO, ArmsOrder
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.grounds import Ground, Observation, by_ground
from pytest_kopt.decide.inference import LOOKS, Estimate, log_ratio
from pytest_kopt.decide.known_noise import DEVICE_TIMED, Noise, mean_of
from pytest_kopt.decide.race_rule import (
    RACE_LOOKS,
    Standing,
    by_checks,
    heat,
    interval,
    is_over,
    lead,
    winner,
)
from pytest_kopt.decide.series import Series, SeriesTable, prior_of
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed_within
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.paired.judge import Caught
from pytest_kopt.paired.pairing import Criteria
from pytest_kopt.schema.metrics import STEP
from pytest_kopt.trials.rounds.candidate import _same_machine_code
from pytest_kopt.trials.rounds.race import candidates_of, lines_changed, run_race
from tests.builders import paired_evidence, series_table
from tests.whole_campaign import KERNEL, a_campaign

PRIMUS = policies.load("primus")
#: The scatter of a case's log-ratios in measured pairs.
CASE_SD = 0.0025


def measured(gain: float, look: int = 4, spread: float = 0.02, cases: int = 3) -> SeriesTable:
    """A candidate with so many percent, give or take `spread`, beside an incumbent."""
    noise = Noise((), DEVICE_TIMED)
    return paired_evidence(*[gain] * cases, look=look, spread=spread, noise=noise)


@pytest.mark.parametrize("look", RACE_LOOKS)
def test_who_cannot_win_is_out_and_told_why(look: int) -> None:
    field = {"best": 5.0, "close": 4.9, "behind": 1.0, "slower": -5.0}
    found = heat({name: measured(gain, look) for name, gain in field.items()}, PRIMUS)
    assert [name for name in found if not found[name].out] == ["best", "close"]
    assert "slower than best: -3.8" in found["behind"].out
    told = "fell" if look in LOOKS else "slower than best: -9.5"
    assert told in found["slower"].out, "as the ordinary rule says it, which asks for two replicas"


@pytest.mark.parametrize(("copy", "is_out"), [(0.0, True), (1.5, False)])
def test_a_single_replica_drops_nobody_where_the_incumbents_copy_differs(
    copy: float, is_out: bool
) -> None:
    """Nothing else says yet that the machine is noisier than it was before."""

    def alone(gain: float) -> SeriesTable:
        found = measured(gain, 1)
        placebo = (log_ratio(copy),)
        return replace(found, series=tuple(replace(c, copy=placebo) for c in found.series))

    assert bool(heat({"best": alone(5.0), "behind": alone(3.0)}, PRIMUS)["behind"].out) == is_out


@pytest.mark.parametrize(
    ("diagnosis", "told"),
    [
        ("", ""),
        ("out: outside the tolerance\n  SNR 3 dB", "out: outside the tolerance"),
        (
            "kernels/gemm.py:3: in <module>\nE   ImportError: no such file",
            "kernels/gemm.py:3: ImportError: no such file",
        ),
        ("ended by exit status 1\nTraceback (most recent call last):\nKeyError: 3", "KeyError: 3"),
        ("ended by signal SIGSEGV\nFatal Python error", "ended by signal SIGSEGV"),
    ],
)
def test_a_reason_is_one_line_that_tells_what_was_raised(diagnosis: str, told: str) -> None:
    assert in_a_line(diagnosis) == told


def test_a_candidates_interval_is_the_one_of_its_reason() -> None:
    """The spread of the incumbent's copy widens both."""
    plain = measured(-5.0)
    cases = [replace(case, copy=(0.02, -0.02, 0.02, -0.02)) for case in plain.series]
    slower = replace(plain, series=tuple(cases))
    told = changed_within(*interval(slower).values())
    assert told in heat({"slower": slower}, PRIMUS)["slower"].out


def test_a_candidate_that_ruins_a_case_is_out_however_fast_it_is() -> None:
    ruined = measured(30.0)
    case = measured(-9.0, cases=1).series[0]
    cases = (*ruined.series[:2], case)
    ruined = series_table(cases, "step speed", noise=Noise((), DEVICE_TIMED))
    found = heat({"ruined": ruined, "fine": measured(1.0)}, PRIMUS)
    assert "beyond the regression limit" in found["ruined"].out and not found["fine"].out


def test_who_may_have_ruined_a_case_puts_nobody_out() -> None:
    """Shown to have done so it is out itself, and nobody would be left."""
    ruined, fine = measured(30.0, 1), measured(1.0, 1)
    case = measured(-4.9, 1, cases=1).series[0]
    ruined = replace(ruined, series=(*ruined.series[:2], case))
    assert not any(standing.out for standing in heat({"a": ruined, "b": fine}, PRIMUS).values())


@pytest.mark.parametrize(
    ("cheat", "wrong", "decision"),
    [
        ("", "", Decision.ROLLED_BACK),
        ("it caches", "", Decision.REJECTED_OVERFIT),
        ("", "it is FAIL", Decision.REPAIR),
        ("it caches", "it is FAIL", Decision.REJECTED_OVERFIT),
    ],
)
def test_checks_say_who_does_not_race(cheat: str, wrong: str, decision: Decision) -> None:
    said = {Ground.WRONG: wrong, Ground.DISHONEST: cheat}
    observed = [Observation(ground, reason) for ground, reason in said.items() if reason]
    entry = by_checks("a", {}, by_ground(observed, PRIMUS))
    assert (entry.decision, entry.reason, entry.place) == (decision, cheat or wrong, 1)


def test_a_race_is_over_where_one_is_left_or_nobody_gains() -> None:
    standings = heat({"a": measured(0.0), "b": measured(0.0), "fast": measured(5.0)}, PRIMUS)
    for left, ends in ((["fast"], True), ([], True), (["a", "b"], True), (["a", "fast"], False)):
        assert is_over(standings, left) == ends
    undecided = heat({name: measured(0.0, look=1) for name in "ab"}, PRIMUS)
    assert not is_over(undecided, ["a", "b"])


def test_a_lead_has_the_prior_of_two_ratios() -> None:
    first, second = measured(3.0, spread=1e-3), measured(2.0, spread=1e-3)
    ours, theirs = (mean_of([one.new for one in table.series]) for table in (first, second))
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    prior = prior_of(first.series)
    assert prior is not None
    assert lead(first, second) == Estimate.of(differences, prior=prior.times(2))


def test_ties_go_to_the_smaller_change() -> None:
    field = {"long": measured(2.05), "short": measured(2.0), "less": measured(1.5)}
    assert winner(field, list(field), {"long": 90, "short": 3, "less": 1}) == "short"
    clear = {"long": measured(3.0), "short": measured(2.0)}
    assert winner(clear, list(clear), {"long": 90, "short": 3}) == "long", "no tie"
    # A fifth of a percent apart, which so few processes of one case do not show.
    apart = {name: measured(pct, cases=1) for name, pct in (("long", 2.2), ("short", 2.0))}
    assert winner(apart, list(apart), {"long": 90, "short": 3}) == "long"
    quiet = Noise((), DEVICE_TIMED.times(1e-4))
    shown = {
        name: paired_evidence(pct, spread=1e-3, noise=quiet)
        for name, pct in (("long", 2.05), ("short", 2.0))
    }
    assert winner(shown, list(shown), {"long": 90, "short": 3}) == "long"


@pytest.mark.parametrize("raced", [(), ("a", "b")])
def test_a_best_of_the_incumbents_machine_code_leaves_the_incumbent(raced: tuple[str, ...]) -> None:
    """Others wait for a verdict; a lone one is refused, as there is nothing to measure."""
    campaign = SimpleNamespace(
        state=SimpleNamespace(incumbent_round=3), manifest=SimpleNamespace(kernel_source=["k.py"])
    )
    trial: Any = SimpleNamespace(campaign=campaign, raced=raced, results=())
    if not raced:
        with pytest.raises(BadInput, match="the same machine code as round 3"):
            _same_machine_code(trial)
        return
    verdict = _same_machine_code(trial).verdict(PRIMUS.name)
    assert (verdict.decision, verdict.exit_code) == (Decision.ROLLED_BACK, 8)
    assert verdict.reason.startswith("the same machine code as round 3")


class Heats:
    """A race's comparison, scripted: what each candidate gains in percent, give or take a little.

    `counts` are the replicas that were asked for, comparison by comparison; the first `failing`
    find no memory. Those of `broken` fail every comparison that they race in, from the first
    replica on or, if they are `late`, from the fourth.
    """

    def __init__(
        self,
        gains: dict[str, float],
        failing: int = 0,
        broken: Mapping[str, Exception] | None = None,
        *,
        late: bool = False,
    ) -> None:
        self.gains = gains
        self.failing = failing
        self.broken = broken or {}
        self.first_failing = 3 * late
        self.counts: list[int] = []
        #: Who was to be in each comparison, and in the one that goes on.
        self.fields: list[list[str]] = []
        self.raced: list[str] | None = None
        self.measured = 0

    @contextmanager
    def compare(self, names: Sequence[str], count: int) -> Iterator[Heats]:
        assert self.raced is None, "two comparisons at one time"
        assert len(self.fields) < 9, "a race without end"
        self.counts.append(count)
        self.fields.append([*names])
        self.raced = []
        try:
            yield self
        finally:
            self.raced = None

    def race(self, names: Sequence[str]) -> None:
        assert self.raced is not None, "a comparison that has ended"
        self.raced = [*names]

    def replicas(self, count: int) -> Iterator[dict[str, Any]]:
        assert self.raced, "nobody races"
        for _ in range(count):
            for name in self.raced:
                if name in self.broken and self.measured >= self.first_failing:
                    raise self.broken[name]
            if self.measured >= 2 and self.failing:
                self.failing -= 1
                raise NotComparable("no memory")
            self.measured += 1
            wobble = 0.02 if self.measured % 2 else -0.02

            def ratio(way: str, name: str, wobble: float = wobble) -> float:
                return log_ratio(self.gains.get(name, 0.0) + wobble)

            yield {
                "a": SimpleNamespace(
                    ratio=ratio,
                    device="",
                    same=None,
                    is_same=False,
                    memory={},
                    incumbent_ms=lambda _: 1.0,
                )
            }


def a_race(heats: Heats) -> tuple[dict[str, Standing], list[str], Any]:
    one = CaseResult("a", label="a")
    history: Any = SimpleNamespace(noise=lambda *_: Noise((), DEVICE_TIMED))
    start: Any = heats.compare
    return run_race(start, heats.gains, [one], Criteria([STEP], PRIMUS, history))


def test_a_race_goes_on_where_the_first_of_its_field_is_out() -> None:
    """Each look adds its own replicas: five are no look, and ended such a race in a traceback."""
    heats = Heats({"slow": -9.0, "one": 5.0, "other": 5.01})
    standings, left, _ = a_race(heats)
    assert (heats.counts, heats.measured) == ([4], 4)
    assert left == ["one", "other"]
    assert "slow" in standings and standings["slow"].out


def test_a_race_that_fails_by_itself_is_told() -> None:
    with pytest.raises(NotComparable, match="no memory"):
        a_race(Heats({"one": 5.0, "other": 5.01}, failing=1))


@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(
    "error", [NotComparable("it ended"), Caught([Finding("stale-result", "it ended")])]
)
def test_who_breaks_the_shared_processes_is_out_and_takes_nobody_along(
    error: Exception, late: bool
) -> None:
    """Each is measured alone then, and the others race on in processes without it."""
    gains = {"one": 5.0, "broken": 5.02, "slow": -9.0, "other": 5.01}
    heats = Heats(gains, broken={"broken": error}, late=late)
    standings, left, tables = a_race(heats)
    assert left == ["one", "other"]
    assert "it ended" in standings["broken"].out and "it ended" not in standings["slow"].out
    assert standings["slow"].out and not any(standings[name].out for name in left)
    everybody, *alone, others = heats.fields
    assert everybody == [*gains]
    assert alone == [[name] for name in gains if name != "slow" or not late]
    assert others[0] == "one" and "broken" not in others
    assert heats.counts[-1] == (2 if late else 4), "as many as are missing"
    assert {len(tables[name].series[0].new) for name in left} == {4}
    assert heats.raced is None, "the last comparison ended as well"


def test_who_is_left_alone_by_those_that_break_has_won() -> None:
    broken = {name: NotComparable(f"{name} ended") for name in ("first", "last")}
    heats = Heats({"first": 9.0, "fine": 5.0, "last": 9.0}, broken=broken)
    standings, left, _ = a_race(heats)
    assert left == ["fine"] and heats.fields[-1] == ["fine"]
    assert {name: standings[name].out for name in broken} == {n: f"{n} ended" for n in broken}


def test_a_process_prepares_nothing_for_candidates_that_are_out() -> None:
    trees = ("copy", "tree of a", "tree of b")
    order = ArmsOrder(("b", PLACEBO, "a", INCUMBENT), trees=trees, project_version=INCUMBENT)
    order = replace(order, tree_versions=(PLACEBO, "a", "b"))
    left = order.without(["a"])
    assert left.names == ("b", PLACEBO, INCUMBENT)
    assert (left.tree_versions, left.trees) == ((PLACEBO, "b"), ("copy", "tree of b"))
    assert order.without([]) is order


def test_equal_candidates_race_once_under_all_their_names(tmp_path: Path) -> None:
    """Equal is what runs the same code; the size that breaks ties counts lines that changed."""
    campaign = a_campaign(tmp_path, rounds=1, shapes=1)
    incumbent = (tmp_path / KERNEL).read_text()
    texts = {"a": "x = 1\n", "b": "x = 1  # The same.\n", "c": f"{incumbent}y = 2\n"}
    for name, text in texts.items():
        path = tmp_path / name / KERNEL
        path.parent.mkdir(parents=True)
        path.write_text(text)
    candidates = candidates_of(campaign, [*"abca"], tmp_path)
    best = campaign.incumbent()
    found = {name: lines_changed(version, best) for name, version in candidates.items()}
    assert [*found] == ["a, b", "c"]
    assert found["c"] == 1 and found["a, b"] > 200


@given(
    gains=st.lists(st.floats(-20, 20), min_size=1, max_size=12), look=st.sampled_from([*RACE_LOOKS])
)
@settings(max_examples=60)
def test_somebody_who_gains_is_never_without_a_leader(gains: list[float], look: int) -> None:
    """Whatever the field, the fastest is only out where the ordinary rule rolls it back."""
    field = {str(i): measured(gain, look) for i, gain in enumerate(gains)}
    found = heat(field, PRIMUS)
    best = str(max(range(len(gains)), key=gains.__getitem__))
    assert not found[best].out or gains[int(best)] < 0
    left = [name for name in found if not found[name].out]
    if left:
        assert winner(field, left, dict.fromkeys(left, 1)) in left


def test_the_best_is_dropped_no_more_often_than_stated() -> None:
    """Eight equal candidates under recorded noise: each has to stay in at least 99.2 of 100."""
    draw, dropped, races = random.Random(3), 0, 60
    noise = Noise((), DEVICE_TIMED)
    for _ in range(races):
        ratios = [
            [[draw.gauss(0.0, CASE_SD) for _ in range(4)] for _ in range(5)] for _ in range(8)
        ]
        out: set[str] = set()
        for look in RACE_LOOKS:
            field = {
                str(i): series_table(
                    (Series(str(c), "", {}, tuple(r[:look])) for c, r in enumerate(cases)),
                    noise=noise,
                )
                for i, cases in enumerate(ratios)
                if str(i) not in out
            }
            out |= {name for name, found in heat(field, PRIMUS).items() if found.out}
        dropped += "0" in out
    assert dropped / races <= 7 * sum(RACE_LOOKS.values()) + 0.01
