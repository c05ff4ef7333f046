"""A case at two operating points of a GPU that keeps to its power: measured, judged and shown."""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_kopt import policies
from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO
from pytest_kopt.cases.protocol import HandOver, LoadVersions, Prepare
from pytest_kopt.cases.replies import (
    CaseFinished,
    Collected,
    HandedOver,
    Loaded,
    Ready,
    Reply,
)
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import SHAPE_LEVEL, Estimate, log_ratio, percent, scatter_of
from pytest_kopt.decide.known_noise import DEVICE_TIMED, UNDER_LOAD, Noise
from pytest_kopt.decide.operating_points import Load, PointEvidence
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.series import Series, SeriesTable
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.devices.states import BOOST, SUSTAINED
from pytest_kopt.devices.vendor import CPU, Reading
from pytest_kopt.measure.engine import PAUSE_S, Block
from pytest_kopt.paired import comparison
from pytest_kopt.paired.blocks import Blocks
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.noise import NoiseHistory, Scatter
from pytest_kopt.paired.pairing import Criteria, compare
from pytest_kopt.paired.runner import ONE_PROCESS, Clocks, Runner
from pytest_kopt.paired.samples import (
    BlockTime,
    CaseQuads,
    at_other_point,
    evidence_of,
    measured_under,
    warnings_of,
)
from pytest_kopt.processes.sites import Place
from pytest_kopt.schema.metrics import Metric
from pytest_kopt.show.exports.comment import comment
from pytest_kopt.show.progress import Progress
from pytest_kopt.show.terminal import verdict_lines
from pytest_kopt.show.words import conditions, measured_at, second_point, second_points
from tests.fake_ends import BlockWorker
from tests.scripted import nothing_nearby

TOP = 1980.0
#: So long a load leaves the clock at its top, and so many times faster does a pause bring it back.
_BUFFER_S, _RECOVERS = 0.006, 2.0


class Gpu:
    """Runs versions of so many cycles a call, whose clock falls to `capped` MHz under load."""

    def __init__(self, cycles: Mapping[str, float], capped: Mapping[str, float]) -> None:
        self._cycles, self._capped = cycles, capped
        self._busy_s = self.slept_s = 0.0
        self.mhz, self.tells_clock = TOP, True
        #: What keeps the clock from being higher.
        self.reasons: tuple[str, ...] = ()
        #: The case that runs, and the load of each, in s; the clock of a "cool" one does not fall.
        self.case, self.loads = "", defaultdict[str, float](float)

    def run(self, arm: str, seconds: float) -> float:
        """Keep it busy; return the ms of a call."""
        self._busy_s = min(self._busy_s + seconds, 10 * _BUFFER_S)
        is_capped = self._busy_s > _BUFFER_S and self.case != "cool"
        self.mhz = self._capped[arm] if is_capped else TOP
        self.loads[self.case] += seconds if seconds > 0.01 else 0.0
        return self._cycles[arm] / (self.mhz * 1e3)

    @property
    def watts(self) -> float:
        return 700.0 if self.mhz < TOP else 400.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self._busy_s = max(0.0, self._busy_s - _RECOVERS * seconds)
        self.mhz = TOP if self._busy_s <= _BUFFER_S else self.mhz

    def glance(self) -> Reading:
        if not self.tells_clock:
            return Reading()
        return Reading(sm_mhz=self.mhz, power_w=self.watts, throttle=self.reasons)


class Process(BlockWorker):
    """Holds some arms; a block is 2.5 ms of calls, or as long as it is ordered."""

    is_orphan = has_died = False

    def __init__(self, gpu: Gpu, arms: Collection[str] = ()) -> None:
        super().__init__(lambda write: gpu.run(write.arm, write.seconds or 0.0025) * 10)
        self._gpu, self._arms = gpu, arms
        self._told: deque[Reply] = deque([Collected([])])
        self._case = ""

    def waited(self, reply: Reply) -> float:
        return (self.orders[-1].seconds or 0.0025) * 1e3

    def send(self, order: Any) -> None:
        match order:
            case LoadVersions(nodeid):
                self._case = nodeid
                self._told.append(Loaded())
            case Prepare():
                # The judge loads the incumbent alone of a case that runs here.
                self._gpu.case = self._case or self._gpu.case
                each = {arm: [10] for arm in self._arms}
                self._told.append(Ready("events", {}, each, each))
            case HandOver():
                self._replies = [HandedOver([])]
                self._told.append(CaseFinished(self._case))
            case _:
                super().send(order)

    def receive(self) -> Reply:
        return self._told.popleft()

    def dismiss(self) -> None: ...

    stop = kill = dismiss


#: The candidate takes a tenth fewer cycles, and more power: under load its clock is lower.
CYCLES = {CANDIDATE: 0.9e6, **dict.fromkeys((INCUMBENT, PLACEBO, ALONE), 1e6)}
CAPPED = {CANDIDATE: 1300.0, **dict.fromkeys((INCUMBENT, PLACEBO, ALONE), 1400.0)}
ARMS = CANDIDATE, INCUMBENT, PLACEBO


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    device = Gpu(CYCLES, CAPPED)
    monkeypatch.setattr("pytest_kopt.paired.blocks.time.sleep", device.sleep)
    return device


def blocks_on(gpu: Gpu, seed: int = 1) -> tuple[Blocks, Process]:
    process = Process(gpu)
    held = cast("Any", dict.fromkeys(ARMS, process))
    calls = {arm: [10] for arm in held}
    blocks = Blocks(held, random.Random(seed), "cuda", 5, calls, glance=gpu.glance)
    blocks.warm_up()
    return blocks, process


class Starting:
    """Starts replicas on a GPU, as `Arms` does."""

    how, why_two, written, asks_more = ONE_PROCESS, "", "", True

    def __init__(self, gpu: Gpu, point: str = BOOST) -> None:
        self.config, self.random = None, random.Random(1)
        self._gpu, self._point, self._clocks = gpu, point, Clocks()
        self.choices = dict[str, Any]()

    def start(self, place: Place, judge: Any, number: int) -> Runner:
        process: Any = Process(self._gpu, ARMS)
        return Runner(dict.fromkeys(ARMS, process), place, judge, clocks=self._clocks)

    def start_nearby(self, place: Place, room: int) -> Any:
        return nothing_nearby(place.ids, self.how)

    def start_judge(self, *where: Any) -> Any:
        loaded = Loaded(operating_point=self._point, sets=[0])
        return SimpleNamespace(
            folder=None,
            has_died=False,
            tried_in=lambda looks: [],
            load=lambda nodeid: None,
            await_loaded=lambda nodeid: loaded,
            load_alone=lambda seed: Process(self._gpu, [ALONE]),
            **dict.fromkeys(("end", "kill"), lambda: None),
        )


def comparison_on(gpu: Gpu, *ids: str, point: str = BOOST) -> Comparison:
    host = SimpleNamespace(read=lambda d: gpu.glance(), glance=lambda d: gpu.glance())
    host.lock = lambda device: nullcontext()
    placement = SimpleNamespace(host=host, keep_strangers_off=lambda device: None)
    starter = SimpleNamespace(why_fresh="")
    site: Any = SimpleNamespace(kind="cuda", cores=1, starter=starter, placement=placement)
    place = Place(site, replace(CPU, uuid="GPU-0", kind="cuda"), [*ids])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "Arms", lambda *given: Starting(gpu, point))
        nothing: Any = None
        return Comparison(nothing, nothing, [place], nothing, Progress(None), 8)


def measured(gpu: Gpu, count: int = 1, point: str = BOOST, turns: int = 0) -> list[CaseQuads]:
    """Return a case in so many replicas, the first of which is measured under load as well."""
    with comparison_on(gpu, "hot", point=point) as compared:
        cases = [replica["hot"] for replica in compared.replicas(count)]
        loaded = compared.under_load(["hot"], turns)["hot"] if turns else cases[0]
        cases[0].sustained, cases[0].is_steady = loaded.sustained, loaded.is_steady
    return cases


@pytest.mark.parametrize(
    ("change", "is_final", "decision", "loads"),
    [
        (-5.0, False, Decision.ROLLED_BACK, {}),
        (0.0, False, Decision.INCONCLUSIVE, {}),
        # Where the clock may fall, 0.2 s of either version tell, and are the lead of its turn.
        (25.0, False, Decision.ACCEPTED, {"cool": 0.4, "hot": 2 * (0.2 + 0.6)}),
        (8.5, False, Decision.ROLLED_BACK, {"cool": 0.4, "hot": 2 * (0.2 + 0.6)}),
        (-5.0, True, Decision.ROLLED_BACK, {"cool": 0.4, "hot": 2 * (0.2 + 4 * 0.8)}),
    ],
    ids=["a loss", "the same", "kept", "kept but for a loss under load", "final"],
)
def test_only_what_would_be_kept_is_loaded_and_once(
    change: float,
    is_final: bool,
    decision: Decision,
    loads: dict[str, float],
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pytest_kopt.paired.comparison.why_open", lambda config: "")
    faster = 1 / (1 + change / 100)
    monkeypatch.setitem(CYCLES, CANDIDATE, CYCLES[INCUMBENT] * faster)
    monkeypatch.setitem(CAPPED, CANDIDATE, 1100.0)
    results = [
        CaseResult(name, name, ("label", "n"), {"n": name}, "PASS") for name in ("hot", "cool")
    ]
    metrics = [Metric("Forward TFLOPS", "higher")]
    criteria = Criteria(metrics, policies.load("primus"), NoiseHistory(), is_final=is_final)
    with comparison_on(gpu, "hot", "cool") as compared:
        found = compare(compared, results, criteria)
    assert found.verdict.decision is decision, found.verdict.reason
    assert {name: round(s, 2) for name, s in gpu.loads.items() if s} == {
        name: pytest.approx(s) for name, s in loads.items()
    }
    steady = {shape.label: shape.is_steady for shape in found.verdict.shapes}
    assert steady == ({"hot": False, "cool": True} if loads else {"hot": None, "cool": None})
    lost_under_load = "at the operating point sustained" in found.verdict.reason
    assert lost_under_load == (change == 8.5 or is_final)


def test_pauses_keep_the_clock_at_its_top(gpu: Gpu) -> None:
    blocks, _ = blocks_on(gpu)
    quads = blocks.quads()
    assert {time.mhz for quad in quads["candidate"] for _, time in quad} == {TOP}
    assert gpu.slept_s == pytest.approx(PAUSE_S * (3 + 24 + 4))
    assert percent(CaseQuads("a", "graph", quads).ratio("step")) == pytest.approx(100 / 9)


def test_each_version_has_the_clock_under_load_that_it_gets_alone(gpu: Gpu) -> None:
    (case,) = measured(gpu, turns=1)
    found = at_other_point([case], "step")
    assert found is not None
    assert found[0] == pytest.approx((math.log(1e6 / 1400 / (0.9e6 / 1300)),))
    assert {*case.sustained} == {"candidate"}
    ((first, second),) = case.sustained["candidate"]
    assert {first[0], second[0]} == {CANDIDATE, INCUMBENT}
    assert first[1].watts == pytest.approx(700)


@pytest.mark.parametrize(("turns", "seconds"), [(1, 0.6 + 0.8), (2, 4 * 0.8)])
def test_turns_under_load_take_their_seconds_and_may_be_looked_at(
    gpu: Gpu, turns: int, seconds: float
) -> None:
    blocks, process = blocks_on(gpu)
    blocks.quads()
    process.orders.clear()
    blocks.sustained(turns)
    load, *in_turns = (order.seconds for order in process.orders)
    assert load == 0.2 and sum(in_turns) == pytest.approx(seconds)
    assert [block.arm for block in blocks.looked_at] == [CANDIDATE] * 2


def test_forward_and_backward_share_the_seconds_of_a_load(gpu: Gpu) -> None:
    process = Process(gpu)
    held = cast("Any", dict.fromkeys(ARMS, process))
    calls = {arm: [10, 5] for arm in held}
    blocks = Blocks(held, random.Random(1), "cuda", 5, calls, glance=gpu.glance)
    block = blocks.run(CANDIDATE, 1, 0.5)
    assert [(order.way, order.seconds) for order in process.orders] == [(0, 0.25), (1, 0.25)]
    assert block.backward == pytest.approx(2 * block.forward)


def test_a_device_that_tells_no_clock_is_measured_under_load_where_that_decides(
    gpu: Gpu,
) -> None:
    gpu.tells_clock = False
    (case,) = measured(gpu, point=SUSTAINED)
    assert case.sustained and not case.is_steady
    points = evidence_of([case] * 2)
    assert points is not None and not warnings_of(points)
    estimate = Estimate(case.ratio("step"), 1e-3, 8)
    document = points.document(estimate, estimate)
    assert [point.cycles_pct for point in document["operating_points"]] == [None, None]


def test_the_point_that_decides_is_measured_in_every_replica_with_its_control(gpu: Gpu) -> None:
    replicas = measured(gpu, 3, SUSTAINED)
    for case in replicas:
        assert {*case.sustained} == {"candidate", "placebo"}
        assert case.ratio("step") == case.ratio("step", point=SUSTAINED)
        assert case.ratio("step", "placebo") == 0
    scatter = Scatter.of([{"a": case} for case in replicas])
    assert scatter.log_ratios_by_way["step"]["a"].operating_point == SUSTAINED


def test_a_case_whose_clock_does_not_fall_has_one_figure_and_is_loaded_once(gpu: Gpu) -> None:
    with comparison_on(gpu, "cool", point=SUSTAINED) as compared:
        replicas = [replica["cool"] for replica in compared.replicas(3)]
    assert all(case.is_steady and not case.sustained for case in replicas)
    assert {round(case.ratio("step"), 9) for case in replicas} == {round(-math.log(0.9), 9)}
    assert gpu.loads["cool"] == pytest.approx(0.4)


def test_a_clock_that_the_owner_has_locked_is_named_and_not_loaded_in_turns(gpu: Gpu) -> None:
    gpu.reasons = ("applications_clocks_setting",)
    with comparison_on(gpu, "cool", point=SUSTAINED) as compared:
        replicas = [replica["cool"] for replica in compared.replicas(3)]
    points = evidence_of(replicas)
    assert points is not None and points.is_locked and not any(r.sustained for r in replicas)
    (shape,) = judged(
        Series("b", "rms", {}, (0.03, 0.0301, 0.0302, 0.0299), points=points, cache="warm")
    ).shapes
    assert shape.clock_is_locked
    assert measured_at(shape) == "boost, 1980 MHz locked, the same under load, warm cache"
    (unlocked,) = judged(*case_of(3.0, 2.0)).shapes
    assert unlocked.clock_is_locked is False


def test_a_lock_that_a_power_cap_undercuts_hides_no_second_point(gpu: Gpu) -> None:
    gpu.reasons = ("applications_clocks_setting",)
    (case,) = measured(gpu, turns=1)
    assert case.is_locked and not case.is_steady and CANDIDATE in case.sustained


def test_clock_and_power_of_every_block_are_recorded(gpu: Gpu) -> None:
    (case,) = measured(gpu, turns=1)
    result = cast("Any", type("Result", (), {"nodeid": "a", "label": "a"}))
    (record,) = measured_under([result], [{"a": case}])
    blocks = cast("Any", record["blocks"])
    assert len(blocks[BOOST]["candidate"]) == 16 and len(blocks[SUSTAINED]["candidate"]) == 2
    assert all(mhz and watts for _, _, mhz, watts in blocks[BOOST]["placebo"])


def test_the_evidence_says_what_part_is_the_clocks(gpu: Gpu) -> None:
    replicas = measured(gpu, 3, turns=2)
    points, found = evidence_of(replicas), at_other_point(replicas, "step")
    assert points is not None and not warnings_of(points)
    assert found is not None and len(found[0]) == 1
    first = Estimate(replicas[0].ratio("step"), 1e-4, 8)
    document = points.document(first, Estimate.of(*found))
    assert document["operating_point"] == BOOST and document["is_steady"] is False
    assert document["points_differ"] is True
    boost, loaded = document["operating_points"]
    assert (boost.name, boost.candidate.mhz, boost.incumbent.mhz) == (BOOST, TOP, TOP)
    assert (loaded.name, loaded.candidate.mhz, loaded.incumbent.mhz) == (SUSTAINED, 1300, 1400)
    assert boost.cycles_pct == pytest.approx(100 / 9)
    assert loaded.cycles_pct == pytest.approx(100 / 9)
    assert loaded.joules_pct == pytest.approx(loaded.change_pct)
    assert loaded.incumbent.joules == pytest.approx(700 / 1400e3 * 1e6 / 1e3)
    assert evidence_of([CaseQuads("a", "wall", replicas[0].quads, device="cpu")]) is None


@pytest.mark.parametrize(
    ("clocks", "warning"),
    [
        ((1980, 1980), ""),
        ((1965, 1975), ""),
        ((1650, 1650), "not at boost: pauses left the clock at 1650 of 1980 MHz"),
        ((1940, 1975), "the versions' blocks at boost had 1940 and 1975 MHz"),
        ((None, 1975), ""),
    ],
)
def test_a_warning_says_where_the_state_was_another_than_declared(
    clocks: tuple[float | None, float | None], warning: str
) -> None:
    loads = tuple(Load(mhz=mhz) for mhz in clocks)
    points = PointEvidence("boost", TOP, loads={BOOST: cast("Any", loads)})
    assert warnings_of(points) == ([warning] if warning else [])


def case_of(
    change: float, second: float, decides: Any = "boost", **fields: Any
) -> tuple[Series, Series]:
    """Return a case at the operating point that decides, and at the other one."""
    spread = (-2e-4, 2e-4, 0.0, 1e-4)
    at = {BOOST: Load(mhz=1980.0), SUSTAINED: Load(mhz=1400.0, watts=690.0, joules=0.15)}
    loads = {name: (load, load) for name, load in at.items()}
    points = PointEvidence(decides, TOP, False, loads)
    new, other = (tuple(log_ratio(pct) + e for e in spread) for pct in (change, second))
    case = Series("a", "m4096", {"M": 1}, new, points=points, cache="cold", **fields)
    noise = Noise((), UNDER_LOAD if decides == BOOST else DEVICE_TIMED)
    return case, replace(case, new=other, noise=noise, kind="other point")


def judged(*cases: Series) -> Verdict:
    verdict = decide(SeriesTable(cases), policies.load("primus"))
    assert verdict is not None
    return verdict


def test_a_guarded_case_may_not_be_shown_to_lose_its_limit_at_either_point() -> None:
    verdict = judged(*case_of(3.0, -12.0))
    assert verdict.decision is Decision.ROLLED_BACK
    assert verdict.shapes[0].status == "regressed"
    assert "case 'm4096' is slower: -12.0 % at the operating point sustained" in verdict.reason
    assert judged(*case_of(3.0, -12.0, core=False)).decision.keeps
    assert judged(*case_of(3.0, -3.0)).decision.keeps


def estimate_of(*turns_s: float) -> Estimate:
    """Return the estimate of a gain of 0.03 under load, each version timed for so many s."""

    def block(ms: float, seconds: float) -> BlockTime:
        return BlockTime(ms, None, ms, ms, 1e3 * seconds)

    replicas = []
    for seconds in turns_s:
        turn = [(CANDIDATE, block(1.0, seconds)), (INCUMBENT, block(math.exp(0.03), seconds))]
        replicas.append(CaseQuads("a", "graph", sustained={CANDIDATE: [turn]}))
    found = at_other_point(replicas, "step")
    assert found is not None
    return Estimate.of(*found)


def test_one_replica_under_load_has_the_wide_interval_of_its_prior() -> None:
    one, two, longer = (estimate_of(*turns) for turns in ((0.4,), (0.4, 0.4), (1.6,)))
    assert one.mean == pytest.approx(0.03) and one.freedom == 6
    assert one.error == pytest.approx(math.hypot(0.02, scatter_of(0.03)))
    assert two.error < one.error / math.sqrt(2)
    assert longer.error < 0.6 * one.error


def test_opposite_signs_are_a_warning() -> None:
    (flag,) = judged(*case_of(3.0, -3.0)).flags
    assert flag == (
        "m4096: +3.00 % at the operating point boost, which decides, but -3.00 % at sustained"
    )
    assert judged(*case_of(3.0, 2.0)).flags == judged(*case_of(3.0, -0.1)).flags == []


def test_both_points_stand_side_by_side_where_they_differ_by_more_than_the_interval() -> None:
    verdict = judged(*case_of(20.5, 16.1))
    (line,) = second_points(verdict)
    assert line.startswith("m4096: +20.5 % [") and "] at boost (1980 MHz); +16.1 % [" in line
    assert line.endswith(
        "] at sustained (1400 MHz, 690 W), +16.1 % in cycles, 0.1500 -> 0.1500 J a call"
    )
    assert line in [*verdict_lines(verdict)]
    assert "at sustained (1400 MHz, 690 W)" in comment(verdict)
    assert second_point(verdict.shapes[0]).startswith("+16.1 % [")
    assert second_points(judged(*case_of(20.5, 20.4))) == []
    assert conditions(verdict) == "measured at boost, 1980 MHz, cold cache"


def test_a_case_with_one_figure_for_both_points_says_so() -> None:
    points = PointEvidence("boost", TOP, True, loads={BOOST: (Load(mhz=1980.0),) * 2})
    steady = Series("b", "rms", {}, (0.03, 0.0301, 0.0302, 0.0299), points=points, cache="warm")
    (shape,) = judged(steady).shapes
    assert measured_at(shape) == "boost, 1980 MHz, the same under load, warm cache"
    assert shape.is_steady and shape.points_differ is False and second_point(shape) == ""
    both = judged(steady, *case_of(3.0, 2.0))
    assert conditions(both).endswith("(1 of 2 cases)")
    untold = replace(points, loads={BOOST: (Load(), Load(mhz=1980.0))})
    (boost,) = judged(replace(steady, points=untold)).shapes[0].operating_points
    assert boost.cycles_pct is None, "one version's clock is not known"


def test_where_sustained_decides_boost_stands_beside_it() -> None:
    first, other = case_of(16.1, 20.5, "sustained")
    (shape,) = judged(first, other).shapes
    assert [point.name for point in shape.operating_points] == ["sustained", "boost"]
    alone = Estimate.of(other.new, prior=DEVICE_TIMED).figures(SHAPE_LEVEL)
    boost = shape.operating_points[1].model_dump(include={*alone})
    assert boost == pytest.approx(alone), "the prior is that point's own"
    assert measured_at(shape) == "sustained, 1400 MHz, cold cache"


def test_a_block_that_is_run_for_some_seconds_gives_its_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([0.0, 0.1, 0.2, 0.3])
    monkeypatch.setattr("pytest_kopt.measure.engine.perf_counter", lambda: next(now))

    class Counted(Block):
        engine = "graph"
        calls = 1

        def run(self) -> float:
            times.append(float(len(times)))
            return times[-1]

    times: list[float] = []
    assert Counted().run_for(0.25) == 1.0 and len(times) == 3
