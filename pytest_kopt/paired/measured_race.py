"""A race as it is measured: all candidates and the incumbent in the same processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.paired_evidence import PairedEvidence
from pytest_kopt.decide.race_rule import LAST_LOOK, RACE_LOOKS, Standing, heat, is_over
from pytest_kopt.paired.arms import NotComparable
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.pairing import Criteria, cases_of
from pytest_kopt.paired.replica import CaseQuads, Caught, Unloadable

#: Returns a comparison of the incumbent with these candidates, for at most so many replicas.
Compare = Callable[[Sequence[str], int], Comparison]
_Replicas = list[dict[str, CaseQuads]]


@dataclass(frozen=True, slots=True)
class Raced:
    """How a race went: each candidate's last standing, who is left, what was measured of each."""

    standings: Mapping[str, Standing]
    left: tuple[str, ...]
    evidences: Mapping[str, PairedEvidence]


def run_race(
    compare: Compare,
    begin: Callable[[str], object],
    end: Callable[[], bool],
    names: Iterable[str],
    results: Sequence[CaseResult],
    criteria: Criteria,
) -> Raced:
    """Measure look by look, without those that are out, until one is left or the race is over.

    `begin` begins the final questions to the winner, for the leader, while others race. `end` ends
    it, as it may hold the memory that a race needs, and says whether there was anything. The first
    metric of the criteria decides.

    A candidate that ends or fails the processes it shares with others is out, and takes nobody with
    it. Raises NotComparable if only all together fail, and for a candidate that no process can hold
    next to the incumbent: it may be the best.
    """
    metric, left = criteria.metrics[0], list(names)
    #: Of all who are left: each was in every one of them.
    measured: _Replicas = []
    standings: dict[str, Standing] = {}
    evidences: dict[str, PairedEvidence] = {}
    with _Heats(compare, end) as heats:
        for look in RACE_LOOKS:
            so_far = len(measured)
            replicas, broken = heats.run(left, look - so_far, LAST_LOOK - so_far)
            measured += replicas
            standings |= {name: Standing(None, float("-inf"), why) for name, why in broken.items()}
            left = [name for name in left if name not in broken]
            for name in left:
                evidences[name] = PairedEvidence(
                    metric.name,
                    cases_of(metric, results, measured, criteria.core, name),
                    noise=criteria.history.noise(metric.way, measured[0]),
                )
            standings |= heat({name: evidences[name] for name in left}, criteria.policy)
            left = [name for name in left if not standings[name].out]
            if is_over(standings, left):
                break
            if look < LAST_LOOK:
                begin(max(left, key=lambda name: standings[name].mean))
    return Raced(standings, tuple(left), evidences)


class _Heats(ExitStack):
    """The heats: they measure the candidates that are left, from one look to the next."""

    def __init__(self, compare: Compare, make_room: Callable[[], bool] = lambda: False) -> None:
        """Measure by `compare`; `make_room` ends other runs, if there are any."""
        super().__init__()
        self._compare = compare
        self._make_room = make_room
        self._running: Comparison | None = None

    def run(self, names: Sequence[str], count: int, most: int) -> tuple[_Replicas, dict[str, str]]:
        """Return replicas of who can be measured together, and why others cannot; `most` in all."""
        if self._running is None:
            self._running = self.enter_context(self._compare(names, most))
        self._running.race(names)
        try:
            return list(self._running.replicas(count)), {}
        except (NotComparable, Caught) as error:
            self._running = None
            self.close()
            if self._make_room():
                return self.run(names, count, most)
            if len(names) == 1 and isinstance(error.__cause__, Unloadable):
                raise NotComparable(f"{names[0]}: {error}") from None
            if len(names) == 1:
                return [], {names[0]: str(error)}
            whole = error
        broken: dict[str, str] = {}
        for name in names:
            with _Heats(self._compare) as alone:
                broken |= alone.run([name], 1, 1)[1]
        if not broken:
            raise NotComparable(str(whole))
        rest = [name for name in names if name not in broken]
        if not rest:
            return [], broken
        replicas, more = self.run(rest, count, most)
        return replicas, broken | more
