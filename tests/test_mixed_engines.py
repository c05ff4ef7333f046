"""One arm of a comparison cannot be captured: all arms are timed by events, and a flag says why."""

from __future__ import annotations

import math
import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pytest_kopt import policies
from pytest_kopt.cases.case import declare
from pytest_kopt.cases.details import in_a_line
from pytest_kopt.cases.order import (
    ALONE,
    CANDIDATE,
    INCUMBENT,
    PLACEBO,
    UNEVEN,
    ArmsOrder,
    Bench,
)
from pytest_kopt.cases.protocol import HandOver, Looks, Order, Prepare, Time, Write
from pytest_kopt.cases.replies import (
    CaseFinished,
    Collected,
    HandedOver,
    Loaded,
    MachineCode,
    Ready,
    Reply,
    Report,
    Timed,
    Written,
)
from pytest_kopt.cases.result import CaseResult, ExpectedCase
from pytest_kopt.cases.running import timed_versions, timing
from pytest_kopt.cases.running.run_case import run_case
from pytest_kopt.cases.running.timed_versions import serve_arms
from pytest_kopt.decide.inference import replica_ratio
from pytest_kopt.devices.vendor import CPU, Device, Reading
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.measure import choice
from pytest_kopt.measure.engine import NOTHING, Block, CaptureFailed, agreed
from pytest_kopt.measure.wall import WallBlock, WallEngine
from pytest_kopt.paired.judge import Caught, Judge, Refused
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.pairing import Criteria, compare
from pytest_kopt.paired.runner import Died, Runner
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.processes.child import ChildDied
from pytest_kopt.processes.sites import Place
from pytest_kopt.schema.columns import MEMORY
from pytest_kopt.schema.metrics import Metric
from pytest_kopt.schema.table import Table
from pytest_kopt.trials import comparing
from pytest_kopt.trials.comparing import compare_paired, compare_stored, decided
from tests.fake_ends import TwoBlocks

CAPTURING: list[bool] = []
FAST = WallEngine(block_seconds=0.005)
EMPTY = tuple(column.name for column in MEMORY.columns if column.is_backward)


def clean(x: Tensor) -> Tensor:
    return x * 3


def reads_back(x: Tensor) -> Tensor:
    """Return the same; a capture does not stand the host value."""
    if CAPTURING:
        raise RuntimeError("operation not permitted when stream is capturing\nSearch for help")
    return x * 3


def _graph(calls: Sequence[Callable[[], object]], before: Any, *more: object) -> Block:
    """Capture by calling once, as torch does, and time by the wall clock."""
    CAPTURING.append(True)
    try:
        for call in calls:
            call()
    except RuntimeError as error:
        raise CaptureFailed(str(error).splitlines()[0]) from error
    finally:
        CAPTURING.clear()
    return _named("graph", calls, before)


def _events(calls: Sequence[Callable[[], object]], before: Any, *more: object) -> Block:
    return _named("events", calls, before)


def _named(engine: str, calls: Sequence[Callable[[], object]], before: Any) -> Block:
    block = WallBlock(calls, len(calls), before=before)
    block.engine = engine
    return block


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose between a graph and events as on a GPU."""
    monkeypatch.setattr(choice, "GraphBlock", _graph)
    monkeypatch.setattr(choice, "EventsBlock", _events)

    def prepare(option: str, device: str, *more: Any, **named: Any) -> Block:
        return choice.prepare(option, "cuda", *more, **named)

    monkeypatch.setattr(timing, "prepare", prepare)


def case_of(function: Callable[..., Any], **more: Any) -> Any:
    settings: dict[str, Any] = {
        "inputs": lambda: (torch.randn(64, 64),),
        "reference": lambda x: x.double() * 3,
        "dims": {"n": 64},
        "nbytes": 2 * 64 * 64 * 4,
        **more,
    }
    return declare("t.py::test", "memory", function, **settings)


@pytest.mark.parametrize(
    ("engines", "common"),
    [
        (["graph", "graph"], "graph"),
        (["graph", "events", "graph"], "events"),
        (["graph+events", "graph+graph"], "graph+events"),
        (["events+graph", "graph+events"], "events+events"),
        (["wall+wall"] * 3, "wall+wall"),
    ],
)
def test_each_direction_has_one_engine_for_all_arms(engines: list[str], common: str) -> None:
    assert agreed(engines) == common


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize("candidate", [clean, reads_back])
def test_arms_of_one_process_come_to_one_engine(
    monkeypatch: pytest.MonkeyPatch, candidate: Callable[..., Any]
) -> None:
    versions = {CANDIDATE: candidate, INCUMBENT: clean, PLACEBO: clean}
    monkeypatch.setattr(timed_versions, "load_versions", lambda *given: versions)
    kept: list[dict[str, Any]] = []
    one_engine = timed_versions.prepared

    def recorded(*given: Any) -> Any:
        arms, ready = one_engine(*given)
        kept.append(arms)
        return arms, ready

    monkeypatch.setattr(timed_versions, "prepared", recorded)
    client = TwoBlocks()
    bench = Bench("cpu", "auto", 1)
    order = ArmsOrder(tuple(versions))
    serve_arms(case_of(candidate), bench, order, cast("Any", client))
    expected = "graph" if candidate is clean else "events"
    assert client.engine == expected and client.findings == []
    assert {block.engine for arm in kept[0].values() for block in arm} == {expected}
    assert list(client.not_captured) == ["the candidate's forward"] * (candidate is reads_back)


@pytest.mark.usefixtures("fake_gpu")
def test_a_process_of_its_own_follows_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could capture its arm; another process could not capture its own."""
    seen: list[str] = []

    def recorded(option: str, device: str, *more: Any, **named: Any) -> Block:
        seen.append(option)
        return choice.prepare(option, "cuda", *more, **named)

    monkeypatch.setattr(timing, "prepare", recorded)
    client = TwoBlocks(common="events")
    serve_arms(
        case_of(clean),
        Bench("cpu", "auto", 1),
        ArmsOrder((INCUMBENT,)),
        cast("Any", client),
    )
    assert seen == ["auto", "events"] and (client.engine, client.not_captured) == ("graph", {})


def test_blocks_have_the_calls_that_are_ordered_however_long_one_takes() -> None:
    """A process that holds the candidate could say that there are few."""
    ready: list[Reply] = []

    class Ordering(TwoBlocks):
        def send(self, reply: Reply) -> None:
            super().send(reply)
            ready.extend([reply] * isinstance(reply, Ready))

    order = ArmsOrder((INCUMBENT,))
    serve_arms(case_of(clean), Bench("cpu", "auto", 1), order, cast("Any", Ordering()))
    (reply,) = ready
    assert isinstance(reply, Ready) and reply.calls == {INCUMBENT: [4]}


def test_what_changed_is_told_when_nobody_waits_for_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It filled a pipe that was read later, by somebody who waited for the same lock."""
    held: list[str] = []
    told: list[Reply] = []

    @contextmanager
    def lock(device: str, waiting: Any) -> Iterator[None]:
        held.append(device)
        yield
        held.remove(device)

    class Telling(TwoBlocks):
        def send(self, reply: Reply) -> None:
            assert not held
            told.append(reply)
            super().send(reply)

    monkeypatch.setattr(timed_versions, "checking_lock", lock)
    monkeypatch.setattr(
        timed_versions, "load_versions", lambda *given: {CANDIDATE: clean, INCUMBENT: clean}
    )
    monkeypatch.setattr(
        timed_versions, "_machine_code", lambda *given: MachineCode({}, {}, held[0])
    )
    bench, order = Bench("cpu", "auto", 1, cpu=FAST), ArmsOrder((CANDIDATE, INCUMBENT))
    serve_arms(case_of(clean), bench, order, cast("Any", Telling()))
    loaded, prepared = told[:2]
    assert isinstance(loaded, Loaded) and loaded.code and isinstance(prepared, Ready)


GPU = replace(CPU, kind="cuda")


class _Child:
    """A process with one arm."""

    has_died = False
    inspected = None
    scratch: Path | None = None

    def __init__(self, arm: str, engine: str, not_captured: Mapping[str, str]) -> None:
        self.arm = arm
        self._blocks: list[tuple[Reply, float]] = []
        self.waited_ms = 0.0
        self.told: list[str] = []
        self.blocks: list[int] = []
        self.looks: list[int] = []
        self.places: list[int | None] = []
        #: The number of the block in which it fails.
        self.fails_at = -1
        self._replies: deque[Reply] = deque(
            [
                Collected([]),
                Loaded(),
                Ready(engine, dict(not_captured), {arm: [3]}, {arm: [0]}),
                HandedOver([]),
                CaseFinished("a"),
            ]
        )

    def receive(self) -> Reply:
        if self._blocks:
            reply, self.waited_ms = self._blocks.pop()
            return reply
        reply = self._replies.popleft()
        if isinstance(reply, Ready):
            self._ready = reply
        return reply

    def expect(self, kind: type) -> Reply:
        reply = self.receive()
        if not isinstance(reply, kind):
            self.has_died = True
            raise ChildDied("it failed")
        return reply

    def send(self, order: Order) -> None:
        match order:
            case Prepare(engine=engine):
                self.told.append(engine)
                if engine:
                    self._replies.appendleft(replace(self._ready, engine=engine))
            case Write(seed=seed, keep=keep, is_look=is_look):
                self.looks += [len(self.blocks)] * is_look
                self.places.append(keep.place if keep else None)
                self.blocks.append(seed)
                self._blocks.append((Written(), 0.0))
            case HandOver(keep=keep):
                self.places.append(keep.place if keep else None)
            case Time():
                ms = random.uniform(1.0, 1.01)
                is_failed = len(self.blocks) == self.fails_at
                reply = Report({"outcome": "failed"}) if is_failed else Timed(3 * ms)
                self._blocks.append((reply, 3 * ms))
            case _:
                pass


def replica_on(device: Device, **judged: Any) -> tuple[Runner, list[_Child]]:
    """A process for each arm, and what judges them, which says so."""
    children = [
        _Child(CANDIDATE, "events", {"the candidate's forward": "host value"}),
        _Child(INCUMBENT, "graph", {}),
        _Child(PLACEBO, "graph", {}),
    ]
    placement = SimpleNamespace(
        keep_strangers_off=lambda d: None,
        host=SimpleNamespace(
            read=lambda d: Reading(), glance=lambda d: Reading(), lock=lambda d: nullcontext()
        ),
    )
    known = Loaded(sets=[3])
    judge: Any = SimpleNamespace(folder=None, load=lambda i: None, await_loaded=lambda i: known)
    vars(judge).update({"findings_in": lambda looks: [], **judged})
    judge.tried_in = partial(Judge.tried_in, judge)
    judge.tried_in_memory = partial(Judge.tried_in_memory, judge)
    made = Runner(
        cast("Any", {child.arm: child for child in children}),
        Place(cast("Any", SimpleNamespace(placement=placement)), device, ["a"]),
        judge,
        cast("Any", children[0]),
    )
    return made, children


def replica(seed: int = 1, device: Device = CPU) -> tuple[CaseQuads, list[_Child]]:
    made, children = replica_on(device)
    return made.measure(["a"], random.Random(seed))["a"], children


@pytest.mark.parametrize("found", [[], [Finding("timed-result", "wrong")]])
@pytest.mark.parametrize("fails", ["in a block", "with its results"])
def test_a_process_that_fails_when_it_knows_what_is_looked_at_has_died_and_is_judged(
    found: list[Finding], fails: str, tmp_path: Path
) -> None:
    """It could fail where a bad call was among them, and be measured again for that."""
    judged: list[Looks] = []

    def answered(looks: Looks) -> Looks:
        judged.append(looks)
        return looks

    made, (candidate, *_) = replica_on(
        CPU,
        folder=tmp_path,
        answered=answered,
        findings_in=lambda looks: found,
        confirm=lambda looks: None,
    )
    if fails == "in a block":
        candidate.fails_at = 4
    else:
        candidate._replies[3] = Report({"outcome": "failed"})
    with pytest.raises(Died) as death:
        made.measure(["a"], random.Random(1))
    assert death.value.case == "a"
    (looks,) = judged
    calls = [(look["arm"], look["seed"]) for look in looks.looks]
    assert calls == looks.blocks and {arm for arm, _ in calls} == {CANDIDATE}
    assert len(made.tried) == len(found)


@pytest.mark.parametrize("is_excluded", [True, False])
@pytest.mark.parametrize("accuses", [True, False])
def test_a_wrong_value_that_the_case_excludes_only_accuses(
    is_excluded: bool, accuses: bool
) -> None:
    wrong = Finding("timed-result", "wrong", rejects=not is_excluded)
    made, _ = replica_on(CPU, findings_in=lambda looks: [wrong], accuses=lambda looks: accuses)
    with pytest.raises(Caught) if accuses else nullcontext():
        made.measure(["a"], random.Random(1))
    assert bool(made.tried) == (not accuses and not is_excluded)


@pytest.mark.parametrize("gain", [0.01, -0.01])
def test_results_of_a_case_that_loses_are_judged_only_if_the_version_would_be_kept(
    gain: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CaseQuads, "ratio", lambda *of, **at: gain)
    scratch, folder = tmp_path / "scratch", tmp_path / "folder"
    scratch.mkdir()
    folder.mkdir()
    (scratch / "results").write_text("as handed over")
    (tmp_path / "elsewhere").write_text("nobody's")
    read = list[str]()

    def findings_in(looks: Looks) -> list[Finding]:
        read.extend(Path(look["file"]).read_text() for look in looks.looks)
        return [Finding("timed-result", "wrong")]

    made, (candidate, *_) = replica_on(
        CPU, folder=folder, findings_in=findings_in, accuses=lambda looks: True
    )
    candidate.scratch = scratch
    files = str(scratch / "results"), str(tmp_path / "elsewhere")
    candidate._replies[3] = HandedOver([{"arm": CANDIDATE, "file": file} for file in files])
    judged = pytest.raises(Caught)
    with judged if gain > 0 else nullcontext():
        made.measure(["a"], random.Random(1))
    if gain < 0:
        assert not read
        # Its process has ended by now.
        shutil.rmtree(scratch)
        (looks,) = made.postponed
        with judged:
            made._judge.tried_in(looks)
    assert read == ["as handed over", "nobody's"]
    assert (tmp_path / "elsewhere").exists(), "no file of others is moved"


def test_processes_that_hold_one_arm_each_come_to_one_engine() -> None:
    quads, children = replica(device=GPU)
    # The candidate's has it already.
    assert [child.told for child in children] == [[""], ["", "events"], ["", "events"]]
    assert quads.engine == "events" and quads.not_captured


def test_no_process_says_what_times_it_on_the_cpu() -> None:
    assert replica()[0].engine == "wall"


@pytest.mark.parametrize("loaded", [Loaded(same="source"), Loaded(reached=False)])
@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_process_with_the_candidate_does_not_say_that_a_case_is_the_same(
    loaded: Loaded, is_confirmed: bool
) -> None:
    child = _Child(CANDIDATE, "wall", {})
    child._replies = deque([Collected([]), loaded, CaseFinished("a")])
    judge = SimpleNamespace(load=lambda i: None, confirms_same=lambda i: is_confirmed)
    place = Place(cast("Any", SimpleNamespace(placement=None)), CPU, ["a"])
    made = Runner({CANDIDATE: cast("Any", child)}, place, cast("Any", judge))
    with nullcontext() if is_confirmed else pytest.raises(Refused, match="reaches the case"):
        assert made.measure(["a"], random.Random(1))["a"].same == "source"


def test_both_arms_of_a_pair_meet_the_same_content_and_which_are_looked_at_is_said_later() -> None:
    last = set()
    for number in range(20):
        _, (candidate, incumbent, _) = replica(number)
        for child in (candidate, incumbent):
            # With the order after the block: two places, filled at first, and anew at random.
            assert child.places[:3] == [None, 0, 1]
            assert {*child.places[3:]} <= {None, 0, 1}
            last.add(len(child.places) - 1 - child.places[::-1].index(0))
    assert len(last) > 5
    # The first is not timed.
    seeds = candidate.blocks[1:]
    assert len({*seeds}) == len(seeds)
    # The incumbent meets them later, all but the last.
    assert {*seeds[:-2]} < {*incumbent.blocks}


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(
    "calls",
    [{CANDIDATE: [3], ALONE: [3]}, {}, {CANDIDATE: [3]}, {CANDIDATE: []}],
    ids=["another's", "none", "one direction of two", "no direction"],
)
def test_a_process_holds_the_arms_and_directions_of_its_case(
    device: Device, calls: dict[str, list[int]]
) -> None:
    """A candidate's lacked its backward, which was then in no time."""
    made, (candidate, *_) = replica_on(
        device, await_loaded=lambda i: Loaded(sets=[3], has_backward=True)
    )
    candidate._replies[2] = Ready("events", {}, calls, calls)
    with pytest.raises(Refused, match="other arms or directions"):
        made.measure(["a"], random.Random(1))


@pytest.mark.parametrize("is_uneven", [True, False])
def test_a_process_holds_the_uneven_arms_of_a_case_that_has_them(is_uneven: bool) -> None:
    """A candidate's left them out, so that nothing was compared there."""
    made, children = replica_on(CPU, await_loaded=lambda i: Loaded(sets=[3, 4]))
    for child in children:
        arms = [child.arm, *filter(None, [UNEVEN.get(child.arm)])] if is_uneven else [child.arm]
        each = ({arm: [number] for arm in arms} for number in (3, 0))
        child._replies[2] = Ready("events", {}, *each)
    with nullcontext() if is_uneven else pytest.raises(Refused, match="other arms or dir"):
        made.measure(["a"], random.Random(1))


def test_a_gpu_has_looks_of_their_own_in_a_round_that_is_drawn() -> None:
    rounds = set()
    for number in range(20):
        quads, (candidate, incumbent, control) = replica(number, GPU)
        assert not control.looks
        for child in (candidate, incumbent):
            assert len({child.blocks[at] for at in child.looks}) == 2, "new content each time"
            rounds.add(child.looks[0])
        ((first, second, third, last),) = quads.looks
        assert first[0] == last[0] and second[0] == third[0]
        assert {first[0], second[0]} == {CANDIDATE, INCUMBENT}
    assert len(rounds) > 2


def test_a_clock_that_steps_between_two_blocks_spoils_their_pair_only() -> None:
    def times(clocks: Sequence[float]) -> list[list[tuple[str, float]]]:
        slower = {CANDIDATE: 1.02, INCUMBENT: 1.0}
        arms = [CANDIDATE, INCUMBENT, INCUMBENT, CANDIDATE]
        blocks = [(arms[i % 4], slower[arms[i % 4]] * clock) for i, clock in enumerate(clocks)]
        return [blocks[i : i + 4] for i in range(0, len(blocks), 4)]

    # Down within the second and the fourth quad, each time while the candidate's block is first.
    stepping = times([1.0] * 5 + [1.1] * 8 + [1.25] * 11)
    assert replica_ratio(stepping, CANDIDATE, INCUMBENT) == pytest.approx(math.log(1 / 1.02))


def test_the_verdict_says_why_a_case_is_timed_by_events() -> None:
    class Measuring:
        flags, tried, written, untried, asks_more = (), (), "", "", False

        def try_nearby(self) -> None: ...

        def judge_postponed(self) -> None: ...

        def to_document(self) -> dict[str, object]:
            return {}

        def findings_nearby(self, gains: Mapping[str, float]) -> tuple[Finding, ...]:
            return ()

        def replicas(self, count: int) -> list[dict[str, CaseQuads]]:
            return [{"a": replica(device=GPU)[0]} for _ in range(count)]

        def in_company(self) -> dict[str, CaseQuads]:
            raise Refused("there is no incumbent's tree")

    result = CaseResult("a", "a", ("label", "n"), {"n": 1}, "PASS")
    metric = Metric("Forward GB/s", "higher")
    criteria = Criteria([metric], policies.load("primus"), NoiseHistory())
    found = compare(cast("Any", Measuring()), [result], criteria)
    assert found.verdict.engine == "events"
    (flag,) = [flag for flag in found.verdict.flags if "events" in flag]
    assert flag.startswith("a: timed by events, not by replays of a graph: the candidate's")
    assert "(host value)" in flag and "--kopt-engine events" in flag


def frozen(engine: str) -> tuple[ExpectedCase]:
    case = case_of(clean)
    return (ExpectedCase(case.nodeid, case.label, case.header, case.dims, EMPTY, engine=engine),)


@pytest.mark.usefixtures("fake_gpu")
def test_a_baseline_that_cannot_be_captured_says_so() -> None:
    result, _, _ = run_case(case_of(reads_back), Bench("cpu", "auto", 1, cpu=FAST))
    assert (result.check, result.evidence.engine) == ("PASS", "events")
    (found,) = result.findings
    assert found.check == "not-captured" and not found.rejects
    assert "(operation not permitted when stream is capturing)" in found.message


@pytest.mark.usefixtures("fake_gpu")
def test_a_candidate_that_cannot_be_captured_is_no_error() -> None:
    """The baseline chose a graph by itself."""
    bench = Bench("cpu", "auto", 1, expected=frozen("graph"), cpu=FAST)
    result, _, _ = run_case(case_of(reads_back), bench)
    assert (result.check, result.evidence.engine) == ("PASS", "events")
    assert run_case(case_of(clean), bench)[0].evidence.engine == "graph"
    bench = Bench("cpu", "auto", 1, expected=frozen("events"), cpu=FAST)
    assert run_case(case_of(clean), bench)[0].evidence.engine == "events"


@pytest.mark.usefixtures("fake_gpu")
def test_a_graph_that_was_asked_for_is_refused_with_a_way_on() -> None:
    with pytest.raises(
        BadInput, match=r"(?s)cannot be captured: operation.*Fix: give --kopt-engine auto"
    ):
        run_case(case_of(reads_back), Bench("cpu", "graph", 1, cpu=FAST))


@pytest.mark.usefixtures("fake_gpu")
def test_a_kernel_that_raises_when_it_is_timed_is_told_by_its_own_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def tired(x: Tensor) -> Tensor:
        if calls:
            raise RuntimeError("no more launches")
        return x * 3

    def prepare(*given: Any) -> Block:
        calls.append(1)
        tired(torch.ones(1))
        raise AssertionError

    monkeypatch.setattr(choice, "EventsBlock", prepare)
    result, _, _ = run_case(case_of(tired), Bench("cpu", "events", 1, cpu=FAST))
    assert result.check == "ERROR"
    said = result.diagnosis
    assert said.startswith("passed its check, but raises in a timed call")
    assert in_a_line(said).endswith("RuntimeError: no more launches")
    assert "no more launches" in said and "in tired" in said and "pytest_kopt" not in said


def test_the_check_of_a_version_needs_no_engine_of_the_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cannot be captured is timed by events in its check, and all versions are in a pair."""
    events = SimpleNamespace(nodeid="a", evidence=SimpleNamespace(engine="events"))
    trial = SimpleNamespace(
        frozen={"a": SimpleNamespace(engine="graph")},
        campaign=SimpleNamespace(
            manifest=SimpleNamespace(primary_metric="Forward GB/s"),
            state=SimpleNamespace(decided=lambda: ()),
        ),
        settings=SimpleNamespace(workspace=None),
        core=None,
        classes=None,
        round_notes=SimpleNamespace(extra_benefit=None, root_cause=None),
        same_as=None,
        kernel=SimpleNamespace(hashes={}),
        versions=lambda opponent: None,
        measurements=SimpleNamespace(compare=lambda ids, versions, phase: nullcontext()),
        collector=None,
        results=[events],
        policy_of_cases=policies.load("primus"),
        rows=Table((), ()),
        level="full",
        raced=(),
    )
    found = cast("Any", SimpleNamespace(verdict=object(), refusing=[]))
    monkeypatch.setattr(comparing, "parse_primary", lambda *given: [])
    monkeypatch.setattr(comparing, "no_figure", lambda *given: None)
    monkeypatch.setattr(comparing, "compare", lambda *given, **named: found)
    monkeypatch.setattr(NoiseHistory, "here", lambda *given: None)
    given = cast("Any", trial)
    assert compare_paired(given, cast("Any", None)) == (found, None, "")
    assert decided([None], found, trial.policy_of_cases) is found.verdict
    with pytest.raises(BadInput, match="stored times of two engines"):
        compare_stored(given)


@pytest.mark.parametrize(
    ("said", "computes", "named", "rejects"),
    [
        (
            "AcceleratorError: CUDA error: capturing stream has unjoined work",
            True,
            "late-result",
            1,
        ),
        (NOTHING, True, "empty-capture", 1),
        (NOTHING, False, "not-captured", 0),
        ("RuntimeError: operation not permitted", True, "not-captured", 0),
    ],
)
def test_what_the_driver_says_of_a_capture_is_told_apart(
    said: str, computes: bool, named: str, rejects: int
) -> None:
    """Streams that go on after the call, and calls that only look as if they worked."""
    why = {"the forward": said}
    (found,) = timing.uncaptured(why, True, lambda: computes)
    assert (found.check, found.rejects) == (named, bool(rejects))
    assert bool([*timing.uncaptured(why, False, lambda: computes)]) == bool(rejects)
