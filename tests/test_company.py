"""A version is kept only where the incumbent is as fast beside it as alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.devices.vendor import CPU
from pytest_kopt.paired import credit
from pytest_kopt.paired.arms import Lane
from pytest_kopt.paired.credit import Company, look_alone
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.replica import ONE_PROCESS
from pytest_kopt.paired.samples import CaseQuads, Quad
from pytest_kopt.paired.verifier_process import Refused
from pytest_kopt.processes.sites import Place
from pytest_kopt.show.progress import Progress
from tests.test_known_noise import compared

from .scripted import block_time, nothing_nearby


def replica(slower_pct: float) -> dict[str, CaseQuads]:
    """Two cases in which the incumbent takes so much longer beside the candidate, and one same."""

    def quad(alone: float) -> Quad:
        beside = block_time(alone * (1 + slower_pct / 100))
        return [
            (INCUMBENT, beside),
            (ALONE, block_time(alone)),
            (ALONE, block_time(alone)),
            (INCUMBENT, beside),
        ]

    timed = {f"t.py::t[{i}]": CaseQuads(f"t.py::t[{i}]", "wall") for i in range(2)}
    for number, quads in enumerate(timed.values(), start=1):
        quads.quads["alone"] = [quad(number / 10)] * 3
    return {**timed, "t.py::same": CaseQuads("t.py::same", "")}


class Machine:
    """Gives out what is scripted, and counts how often it was asked."""

    def __init__(self, slower_pct: Sequence[float]) -> None:
        self._left: Iterator[float] = iter(slower_pct)
        self.asked = 0

    def in_company(self) -> dict[str, CaseQuads]:
        self.asked += 1
        found = next(self._left, None)
        if found is None:
            raise Refused("it does not load")
        return replica(found)


@pytest.mark.parametrize("slower", [0.0, 1.5, -30.0])
def test_one_look_is_enough_where_nothing_is_amiss(slower: float) -> None:
    machine = Machine([slower] * 9)
    found = look_alone(machine.in_company, 10.0)
    assert (machine.asked, found.finding) == (1, None)
    assert list(found.slower_pct) == [pytest.approx(slower)]


def test_a_gain_that_is_the_incumbents_loss_is_none() -> None:
    machine = Machine([65.0, 64.0, 66.0, 65.0])
    finding = look_alone(machine.in_company, 65.0).finding
    assert machine.asked == 4
    assert finding is not None and finding.rejects
    assert (finding.check, "65.0 % slower" in finding.message) == ("incumbent-slowed", True)


def test_a_small_part_of_a_gain_is_told() -> None:
    finding = look_alone(Machine([12.0, 12.1, 11.9, 12.0]).in_company, 40.0).finding
    assert finding is not None and not finding.rejects


def test_what_the_incumbent_loses_is_taken_off_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look_alone(Machine([12.0, 12.1, 11.9, 12.0]).in_company, 40.0)
    assert math.exp(found.excess) == pytest.approx(1.12, abs=1e-4)
    monkeypatch.setattr(credit, "look_alone", lambda *given: found)
    result, _ = compared(NoiseHistory(), gain=1.4)
    assert result.verdict.decision is Decision.ACCEPTED and result.verdict.aggregate
    assert result.verdict.aggregate.change_pct == pytest.approx(25.0, abs=0.2)
    assert result.change().step_pct == pytest.approx(25.0, abs=0.2)
    assert any("of the gain in pairs are not credited" in flag for flag in result.verdict.flags)


@pytest.mark.parametrize(
    ("slower", "asked"),
    [((2.5, -1.0), 2), ((9.0, -8.0), 2), ((9.0, 1.0, -8.0), 3), ((9.0, -3.0, 7.0, -3.0), 4)],
)
def test_what_the_processes_scatter_by_is_no_finding(slower: tuple[float, ...], asked: int) -> None:
    machine = Machine(slower)
    assert look_alone(machine.in_company, 5.0).finding is None
    assert machine.asked == asked


def test_a_gain_that_may_be_the_incumbents_loss_is_in_doubt() -> None:
    """So it was where a kernel changed the C library's thresholds on a busy machine."""
    found = look_alone(Machine([129.0, 86.0, 452.0, 1010.0]).in_company, 53.0)
    assert found.finding is None and "slower in one process with the candidate" in found.doubt
    assert not look_alone(Machine([2.8, 7.9, 70.5, 31.1]).in_company, 2190.0).doubt


def test_a_gain_in_doubt_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "look_alone", lambda *given: Company(doubt="it is slow"))
    found, _ = compared(NoiseHistory(), gain=1.05)
    assert found.verdict.decision is Decision.INCONCLUSIVE
    assert found.verdict.reason.endswith("; but it is slow")
    assert cast(dict[str, object], found.session["incumbent_alone"])["doubt"] == "it is slow"


def test_says_where_the_incumbent_cannot_be_alone() -> None:
    found = look_alone(Machine([]).in_company, 5.0)
    assert (found.finding, found.slower_pct, found.why_not) == (None, (), "it does not load")


def test_the_sign_is_that_of_a_loss() -> None:
    (quads, *_) = replica(25.0).values()
    assert quads.ratio("step", "alone") == pytest.approx(-math.log(1.25))


BESIDE = "the incumbent alone"
COMPANY = ("replica", BESIDE)


class Arms:
    """Starts replicas of a candidate that takes so much less time; notes which had company."""

    how, random, asks_more = ONE_PROCESS, random.Random(0), True

    def __init__(self, gain_pct: float, *, refuses: bool = False) -> None:
        self.started: list[str] = []
        self._gain_pct, self._refuses, self._refused = gain_pct, refuses, False

    def start(self, *where: Any) -> Any:
        return self._started("replica")

    def start_alone(self, place: Place) -> Any:
        self.started.append(BESIDE)

    def start_verifier(self, *where: Any) -> Any:
        return SimpleNamespace(has_died=False, **dict.fromkeys(("kill", "end"), lambda: None))

    def start_nearby(self, place: Place, room: int) -> Any:
        return nothing_nearby(place.ids, self.how)

    def _started(self, what: str) -> Any:
        self.started.append(what)

        def measure(ids: Sequence[str], *given: Any, **named: Any) -> dict[str, CaseQuads]:
            found = {n: quads for n, quads in replica(0.0).items() if not quads.is_same}
            for quads in found.values():
                alone = quads.quads.pop("alone")
                old, new = (
                    (INCUMBENT, block_time(1.0)),
                    (CANDIDATE, block_time(1 / (1 + self._gain_pct / 100))),
                )
                quads.quads["candidate"] = [[new, old, old, new]] * 3
                if started.has_company:
                    quads.quads["alone"] = alone
            if started.has_company and self._refuses and not self._refused:
                self._refused = True
                raise Refused("it does not load alone")
            return found

        ignored: Any = dict.fromkeys(("load", "dismiss", "stop", "kill"), lambda *given: None)
        known = {
            "how": self.how,
            "held_seconds": 0.0,
            "tried": [],
            "loads": 1,
            "are_orphans": False,
        }
        started = SimpleNamespace(measure=measure, has_company=False, **known, **ignored)
        started.join = lambda child: setattr(started, "has_company", True)
        return started


@pytest.mark.parametrize(
    ("gain_pct", "refuses", "started"),
    [
        (20.0, False, ["replica", "replica", BESIDE]),
        (-20.0, False, ["replica", "replica", *COMPANY]),
        (20.0, True, ["replica", "replica", BESIDE, "replica", *COMPANY]),
    ],
    ids=["gain", "loss", "gain, and the incumbent does not load alone"],
)
@pytest.mark.parametrize("ahead", [1, 2])
def test_after_a_gain_the_next_replica_has_company(
    gain_pct: float, refuses: bool, started: list[str], ahead: int
) -> None:
    """So no replica more has to be measured for what is asked of whatever is kept.

    Also one that was started before the gain was known, as it is on a GPU.
    """
    arms: Any = Arms(gain_pct, refuses=refuses)
    kind = "cuda" if ahead > 1 else "cpu"
    site: Any = SimpleNamespace(kind=kind, starter=SimpleNamespace(why_fresh=""))
    place = Place(site, CPU, ["t.py::t[0]", "t.py::t[1]"])
    lane = Lane(arms, place, Progress(None), 6, cores=ahead)
    for quads in lane.measure(2):
        assert all([*found.quads] == ["candidate"] for found in quads.values())
    alone = lane.in_company(0.1)
    assert all("alone" in found.quads for found in alone.values()) and len(alone) == 2
    begun = [*arms.started]
    # Where they are started ahead there is one replica more.
    assert begun.count(BESIDE) == started.count(BESIDE)
    # Where they are started ahead there may be more.
    assert begun.count("replica") >= started.count("replica")
    assert ahead > 1 or begun == started
    lane.in_company(0.1)
    assert arms.started == [*begun, *COMPANY]
