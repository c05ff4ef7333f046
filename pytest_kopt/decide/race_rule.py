"""A race of candidates in the same processes: which can still win, and which one is judged.

A race only chooses. Its winner meets the incumbent in fresh processes under the ordinary rule, so
that nothing is accepted because it was lucky here. The only error of the race is to drop the best.
Each look drops a candidate at the level of that look. So of k candidates the best is dropped in at
most (k - 1) times the sum of the levels, 1.5 % for eight (docs/paired-evidence.md counts it).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_kopt.decide.inference import LOOKS, Estimate, percent
from pytest_kopt.decide.known_noise import mean_of
from pytest_kopt.decide.look import Look
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.series import SeriesTable, excess_of, prior_of, together
from pytest_kopt.decide.verdict import Decision, RaceCandidate, Verdict
from pytest_kopt.figures import changed_within

#: After how many replicas a race looks who is far behind, and the one-sided level of each look. It
#: ends with the last: what is not told apart by then is as good.
RACE_LOOKS: Mapping[int, float] = {1: 0.0002, **{look: LOOKS[look] for look in (2, 4)}}
LAST_LOOK = max(RACE_LOOKS)
#: Candidates this close to the leader tie with it where neither is shown to be faster.
TIE_PCT = 0.1


@dataclass(frozen=True, slots=True)
class Standing:
    """A candidate at a look: its verdict, None if undecided yet, and why it is "out"."""

    verdict: Verdict | None
    mean: float
    out: str = ""


def by_checks(name: str, kernel: Mapping[str, str], refused: Verdict | None) -> RaceCandidate:
    """Return a candidate by the verdict on its checks; one that races has no reason yet."""
    return RaceCandidate(
        name=name,
        place=1,
        decision=refused.decision if refused else Decision.ROLLED_BACK,
        reason=refused.reason if refused else "",
        kernel=dict(kernel),
    )


def heat(tables: Mapping[str, SeriesTable], policy: Policy) -> dict[str, Standing]:
    """Return how the candidates stand at a look; all were measured in the same processes.

    Out is a candidate that the ordinary rule would roll back, which asks for two replicas. Out is
    also one that is shown slower than the leader: the best of those none of whose cases may turn
    out to have regressed.
    """
    standings, clear = {}, []
    for name, table in tables.items():
        verdict = decide(table, policy) if table.replicates in LOOKS else None
        lost = verdict and verdict.decision in (Decision.ROLLED_BACK, Decision.SPLIT)
        why = verdict.reason if verdict and lost else ""
        standings[name] = Standing(verdict, _mean(table), why)
        level = RACE_LOOKS[table.replicates]
        if not (lost or Look(table, table.series, policy, level).open_cases):
            clear.append(name)
    if clear:
        leader = max(clear, key=lambda name: standings[name].mean)
        for name, standing in standings.items():
            ahead = lead(tables[leader], tables[name])
            level = RACE_LOOKS[tables[name].replicates]
            if not standing.out and ahead.lower(level) > 0:
                low, high = -ahead.upper(level), -ahead.lower(level)
                behind = changed_within(percent(-ahead.mean), percent(low), percent(high))
                standings[name] = replace(standing, out=f"slower than {leader}: {behind}")
    return standings


def is_over(standings: Mapping[str, Standing], left: Sequence[str]) -> bool:
    """Say whether no more is to be learnt: one is left, or none who may turn out to gain."""
    verdicts = [standings[name].verdict for name in left]
    return len(left) < 2 or all(
        verdict is not None and verdict.decision is Decision.INCONCLUSIVE for verdict in verdicts
    )


def winner(tables: Mapping[str, SeriesTable], left: Sequence[str], sizes: Mapping[str, int]) -> str:
    """Return the best of those left (at least one); a tie goes to the smaller change."""
    means = {name: _mean(tables[name]) for name in left}
    leader = max(left, key=means.__getitem__)
    tied = [
        name
        for name in left
        if percent(means[leader] - means[name]) <= TIE_PCT
        and lead(tables[leader], tables[name]).lower(RACE_LOOKS[LAST_LOOK]) <= 0
    ]
    return min(tied, key=lambda name: (sizes[name], -means[name]))


def lead(first: SeriesTable, second: SeriesTable) -> Estimate:
    """Return how much faster one candidate is than another: a log-ratio, from the same processes.

    Their two ratios share the incumbent's blocks; the prior takes them for independent, which is
    on the safe side.
    """
    differences = [a - b for a, b in zip(_ratios(first), _ratios(second), strict=True)]
    prior = prior_of(first.series)
    excess = max(*(excess_of(table.series) for table in (first, second)), _single(first))
    return Estimate.of(differences, prior=prior and prior.times(2 * excess))


def _single(table: SeriesTable) -> float:
    """Return how noisy a single replica is, in variances of its prior, by the incumbent's copy.

    That is no faster than the incumbent, so that a ratio says what others scatter by.
    """
    with_priors = [(case.copy, prior_of([case])) for case in table.series]
    ratios = [ratios[0] ** 2 / prior.variance for ratios, prior in with_priors if prior and ratios]
    return statistics.fmean(ratios) if ratios and table.replicates == 1 else 1.0


def interval(table: SeriesTable) -> dict[str, float]:
    """Return a candidate's change over the incumbent in percent, at the level of its look."""
    whole = together(table.series, excess_of(table.series))
    return whole.figures(RACE_LOOKS[table.replicates])


def _ratios(table: SeriesTable) -> list[float]:
    return mean_of([case.new for case in table.series])


def _mean(table: SeriesTable) -> float:
    return statistics.fmean(_ratios(table))
