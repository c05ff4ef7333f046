"""The judge of a comparison draws what a runner's calls met anew, and judges what they gave."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.order import CANDIDATE, UNEVEN, ArmsOrder, Bench
from pytest_kopt.cases.protocol import (
    HandOver,
    JudgeLooks,
    Keep,
    Leave,
    LoadReference,
    Looks,
    Order,
    Prepare,
    Recompute,
    SayReach,
    Time,
    Write,
)
from pytest_kopt.cases.replies import (
    CannotLoad,
    CaseFinished,
    Findings,
    HandedOver,
    Loaded,
    Ready,
    Reply,
    Timed,
)
from pytest_kopt.cases.running.judge_orders import serve_judge
from pytest_kopt.cases.running.timed_calls import input_set
from pytest_kopt.cases.running.timed_versions import serve_arms
from pytest_kopt.devices.processes import Inspected
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.measure.cold import InputPool
from pytest_kopt.measure.engine import Block
from pytest_kopt.measure.wall import WallBlock, WallEngine
from pytest_kopt.numerics.gates import tolerance
from pytest_kopt.paired.judge import Judge, Refused, SeenBlock

SESSION_SEED, NO_SEED = 77, 0
FAST = WallEngine(iterations=10, block_seconds=0.05)


def case_of(function: Callable[..., Any], **more: Any) -> Case:
    settings: dict[str, Any] = {
        "inputs": lambda: (torch.randn(16, 8), torch.randn(8, 8)),
        "reference": lambda x, w: x.double() @ w.double(),
        "dims": {"n": 16},
        "weights": (1,),
        **more,
    }
    schema = "gemm" if "backward" in settings else "single"
    return declare("t.py::test", schema, function, **settings)


class Baseline(Bench):
    """Knows that all results are as exact as can be, so that what is a little off is told."""

    def accuracy(self, nodeid: str) -> dict[str, Accuracy]:
        names = ("out", "input 2", "grad of input 0", "grad of input 1")
        return dict.fromkeys(names, Accuracy("float32", 140.0, 140.0))


class Own(Inspected):
    """This process, which cannot stop itself."""

    def __init__(self) -> None:
        super().__init__(os.getpid())

    @contextmanager
    def stopped(self) -> Iterator[None]:
        yield


class Runner:
    """Orders blocks of every arm, all of them looked at, and keeps what is handed over.

    `seen` is what this process's memory held of them, where it can be read.
    """

    out = ()
    inspected = Own()

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.seen: list[SeenBlock] = []
        self.blocks: list[tuple[str, int]] = []
        self.looks: list[dict[str, Any]] = []
        self.sets = [5, 6]
        self.told: list[str] = []
        self.after_blocks: Callable[[], object] = int
        self.asks_looks = False
        #: By the seed of a block, the arm and the seed whose content calls met.
        self.content: Callable[[int], tuple[str, int] | None] = lambda seed: None
        self._orders: Iterator[Order] = iter([Prepare(self.sets)])

    def send(self, reply: Reply) -> None:
        self.told.append(type(reply).__name__)
        match reply:
            case Ready(calls=calls, places=places):
                self._calls, self._places = calls, places
                self.blocks = [(arm, seed) for seed in (5, 6) for arm in calls]
                self._orders = self._all_orders()
            case Timed():
                block = self.seen[-1]
                way = len(block.calls)
                number = 3 * len(self.seen) % self._calls[block.arm][way]
                block.see(cast("Any", self), self._places[block.arm][way], number)
            case HandedOver(looks, findings):
                assert not findings
                self.looks = [dict(look) for look in looks]
            case _:
                pass

    def receive(self) -> Order:
        return next(self._orders)

    def _all_orders(self) -> Iterator[Order]:
        keep = None
        for place, (arm, seed) in enumerate(self.blocks):
            self.seen.append(SeenBlock(arm, seed, self.content(seed)))
            for way in range(len(self._calls[arm])):
                yield Write(arm, seed, way, is_look=self.asks_looks, keep=keep)
                yield Time()
            keep = Keep(place, self.seen[-1].calls)
        for block in self.seen:
            block.see_later(cast("Any", self))
        self.after_blocks()
        yield HandOver(NO_SEED, keep)


class Asking:
    """Has a judge judge once, or answer where there is nothing to judge."""

    def __init__(
        self, scratch: Path, runner: Runner, looks: Any, seen: Sequence[Any], *, confirms: bool
    ) -> None:
        self.scratch = scratch
        handed_over = Looks(
            "a",
            SESSION_SEED,
            runner.blocks,
            NO_SEED,
            runner.looks if looks is None else looks,
            runner.sets,
            seen,
            confirms,
        )
        self._orders: list[Order] = [
            Recompute(handed_over) if looks is None else JudgeLooks(handed_over)
        ]
        self.found: list[str] | None = None
        self.findings: list[Finding] = []
        self.looks: list[dict[str, Any]] = []

    def send(self, reply: Reply) -> None:
        match reply:
            case Loaded():
                self.known = reply
            case HandedOver(looks):
                self.looks = [dict(look) for look in looks]
            case Findings(findings):
                self.findings = findings
                self.found = [*map(str, findings)]
            case _:
                pass

    def receive(self) -> Order:
        return self._orders.pop() if self._orders else Leave()


def runs(
    case: Case,
    scratch: Path,
    after_blocks: Callable[[], object] = int,
    *,
    asks_looks: bool = False,
) -> Runner:
    runner = Runner(scratch)
    runner.asks_looks = asks_looks
    runner.after_blocks = after_blocks
    bench = Bench("cpu", "auto", SESSION_SEED, cpu=FAST)
    serve_arms(case, bench, ArmsOrder((CANDIDATE,)), cast("Any", runner))
    return runner


def asked(
    case: Case, runner: Runner, looks: Any, seen: Sequence[Any] = (), *, confirms: bool = False
) -> Asking:
    asking = Asking(runner.scratch, runner, looks, seen, confirms=confirms)
    order = ArmsOrder((), root=str(runner.scratch))
    serve_judge(case, Baseline("cpu", "auto", 1, cpu=FAST), order, cast("Any", asking))
    return asking


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def adding(x: Tensor, w: Tensor, out: Tensor) -> None:
    out += x @ w


def several(x: Tensor, w: Tensor) -> dict[str, Any]:
    return {"whole": (x @ w).bfloat16(), "rows": [len(x), None], "top": (x @ w).argmax()}


def by_sizes(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    parts = x.split(sizes.tolist())
    return torch.cat([part @ own for part, own in zip(parts, w, strict=True)])


def shuffled(x: Tensor, seed: int) -> Tensor:
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]


@dataclass
class Filling:
    rows: Tensor
    length: int


def filling(x: Tensor, w: Tensor, cache: Filling) -> None:
    cache.rows.copy_(x @ w)


def with_bias(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return x @ w + bias


def filling_and_more(x: Tensor, w: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    out.copy_(x @ w)
    return out, (x @ w) * 2


KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plain": (product, {}),
    "expanded": (product, {"inputs": lambda: (torch.randn(8).expand(16, 8), torch.randn(8, 8))}),
    "empty": (
        lambda x, w: [x[:0] @ w, x @ w],
        {"reference": lambda x, w: [x[:0].double() @ w.double(), x.double() @ w.double()]},
    ),
    "views of one": (product, {"inputs": lambda: torch.randn(16, 16)[:, ::2].split(8)}),
    "backward": (
        product,
        {
            "backward": True,
            "dims": {"M": 16, "N": 8, "K": 8},
            "inputs": lambda: (
                torch.randn(16, 8, requires_grad=True),
                torch.randn(8, 8, requires_grad=True),
            ),
        },
    ),
    "in place": (
        adding,
        {
            "inputs": lambda: (torch.randn(16, 8), torch.randn(8, 8), torch.randn(16, 8)),
            "reference": adding,
        },
    ),
    "a number among what is written": (
        filling,
        {
            "inputs": lambda: (
                *(torch.randn(16, 8), torch.randn(8, 8)),
                Filling(torch.zeros(16, 8), 3),
            ),
            "reference": filling,
        },
    ),
    "expanded and consumed": (
        with_bias,
        {
            "inputs": lambda: (
                *(torch.randn(16, 8), torch.randn(8, 8)),
                torch.randn(1, 8).expand(16, 8),
            ),
            "reference": with_bias,
            "consumes": (2,),
        },
    ),
    "backward of what is expanded": (
        product,
        {
            "backward": True,
            "dims": {"M": 16, "N": 8, "K": 8},
            "inputs": lambda: (
                torch.randn(1, 8).expand(16, 8),
                torch.randn(8, 8, requires_grad=True),
            ),
        },
    ),
    "what is written is returned with another result": (
        filling_and_more,
        {
            "inputs": lambda: (torch.randn(16, 8), torch.randn(8, 8), torch.randn(16, 8)),
            "reference": filling_and_more,
        },
    ),
    "several": (several, {"reference": several}),
    "seeded": (
        shuffled,
        {
            "reference": shuffled,
            "inputs": lambda: (torch.randn(16, 8), int(torch.randint(1 << 30, ()))),
            "weights": (),
        },
    ),
    "uneven": (
        by_sizes,
        {
            "inputs": lambda: (torch.randn(64, 8), torch.randn(4, 8, 8), torch.tensor([16] * 4)),
            "reference": by_sizes,
            "dims": {"G": 4, "M": 64, "N": 8, "K": 8, "distribution": "uniform"},
        },
    ),
}


@pytest.fixture
def _scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Content is not drawn for every call, as where that takes long."""
    monkeypatch.setattr("pytest_kopt.cases.running.timed_calls._MOST_DRAWN", 0)


@pytest.fixture(params=["all elements", "elements drawn", "content scaled"])
def _elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "elements drawn":
        monkeypatch.setattr("pytest_kopt.cases.running.inspected_results._JUDGED", 20)
    if request.param == "content scaled":
        request.getfixturevalue("_scaled")


@pytest.mark.usefixtures("_elements")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_is_found_right_on_content_drawn_anew(kind: str, tmp_path: Path) -> None:
    function, settings = KINDS[kind]
    case = case_of(function, **settings)
    runner = runs(case, tmp_path)
    ways = 1 + case.backward
    assert len(runner.looks) == ways * len(runner.blocks)
    assert (UNEVEN[CANDIDATE] in dict(runner.blocks)) == (kind == "uneven")
    asking = asked(case, runner, runner.looks)
    assert asking.found == []
    answers = asked(case, runner, None).looks
    assert len(answers) == len(runner.looks)
    assert asked(case, runner, answers).found == []


@pytest.mark.parametrize(
    ("kind", "has_backward", "groups"),
    [("plain", False, 1), ("backward", True, 1), ("uneven", False, 2)],
)
def test_the_judge_says_what_blocks_a_case_has(
    kind: str, has_backward: bool, groups: int, tmp_path: Path
) -> None:
    function, settings = KINDS[kind]
    known = asked(case_of(function, **settings), Runner(tmp_path), []).known
    assert known.has_backward == has_backward and len(known.sets) == groups
    # Calls are short, and their inputs small: as many as a block has.
    assert {*known.sets} == {FAST.iterations}


def seen_in(runner: Runner) -> list[dict[str, Any]]:
    return [looked for block in runner.seen for looked in block.documents(runner.scratch)]


def test_inputs_that_are_drawn_otherwise_beside_the_candidate_are_its_doing(tmp_path: Path) -> None:
    case = case_of(product, inputs=lambda: (torch.randn(16, 8), torch.randn(8, 8)))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        runner = runs(case, tmp_path)
    finally:
        torch.set_default_dtype(before)
    (found,) = asked(case, runner, runner.looks).found or [""]
    assert found.startswith(
        "process-state: the import of the kernel changes the inputs that its case draws: "
        "bfloat16 [16, 8]"
    )
    assert "float32 [16, 8] on cpu, float32 [8, 8] on cpu without it" in found


@pytest.fixture
def _repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block goes round its calls three times, as on a GPU."""

    def pool(cases: list[Case], seed: int, number: int) -> InputPool:
        numbers = range(max(2, len(cases)))
        return InputPool([input_set(cases, seed, i) for i in numbers], 0, 0)

    def prepare(
        option: str, device: str, is_interpreted: bool, calls: Any, before: Any, **_: Any
    ) -> Block:
        return WallBlock(calls, 3 * len(calls), before=before)

    monkeypatch.setattr("pytest_kopt.cases.running.timed_versions.cpu_pool", pool)
    monkeypatch.setattr("pytest_kopt.cases.running.timing.prepare", prepare)
    for module in ("timing", "judge_orders"):
        name = f"pytest_kopt.cases.running.{module}.repeats_calls"
        monkeypatch.setattr(name, lambda bench: True)


@pytest.mark.usefixtures("_repeats")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_repeated_call_gave_is_judged_on_content_drawn_anew(
    kind: str, tmp_path: Path
) -> None:
    function, settings = KINDS[kind]
    case = case_of(function, **settings)
    runner = runs(case, tmp_path, asks_looks=True)
    assert asked(case, runner, runner.looks).found == []
    answers = asked(case, runner, None).looks
    assert asked(case, runner, answers).found == []
    by_seed = {(look["arm"], look["way"], look["seed"]): look["file"] for look in runner.looks}
    for look in runner.looks:
        look["file"] = by_seed[look["arm"], look["way"], 11 - look["seed"]]
    assert asked(case, runner, runner.looks).found


@pytest.mark.usefixtures("_elements")
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_to_other_content_is_wrong(kind: str, tmp_path: Path) -> None:
    function, settings = KINDS[kind]
    case = case_of(function, **settings)
    runner = runs(case, tmp_path)
    by_block = {(look["arm"], look["way"], look["seed"]): look for look in runner.looks}
    for look in runner.looks:
        look["file"] = by_block[look["arm"], look["way"], 11 - look["seed"]]["file"]
    (found,) = asked(case, runner, runner.looks).found or [""]
    assert found.startswith("timed-result: wrong in a timed block, for new input values")
    assert asked(case, runner, []).found == [
        "timed-result: an inspected result of a forward was not handed over"
    ]


@pytest.mark.usefixtures("_elements")
@pytest.mark.parametrize("kind", ["plain", "backward"])
@pytest.mark.parametrize(
    ("bits", "found"), [(9, "precision-downgrade: "), (11, "precision-downgrade: "), (24, "")]
)
def test_a_timed_result_is_as_exact_as_the_current_bests(
    bits: int, found: str, kind: str, tmp_path: Path
) -> None:
    """Its gate lets every one of them pass."""

    def rounded(x: Tensor) -> Tensor:
        mantissa, exponent = torch.frexp(x.detach())
        return x + (torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent) - x).detach()

    def of_bits(x: Tensor, w: Tensor) -> Tensor:
        return rounded(x) @ rounded(w)

    settings = {**KINDS[kind][1], "gate": tolerance(rtol=0.05, atol=0.05)}
    runner = runs(case_of(of_bits, **settings), tmp_path)
    theirs = asked(case_of(product, **settings), runner, runner.looks).found
    assert [text[: len(found)] for text in theirs or ()] == [found] * bool(found)
    assert asked(case_of(of_bits, **settings), runner, runner.looks).found == []


@pytest.mark.usefixtures("_elements")
def test_a_call_is_as_exact_when_it_is_timed_as_when_it_is_not(tmp_path: Path) -> None:
    """In float16 only while blocks run: the check, and calls after the blocks, are exact."""
    dtypes = [torch.float32, torch.float16]

    def product_in(x: Tensor, w: Tensor) -> Tensor:
        return (x.to(dtypes[-1]) @ w.to(dtypes[-1])).to(x)

    gate = tolerance(rtol=0.05, atol=0.05)
    runner = runs(case_of(product_in, gate=gate), tmp_path, dtypes.pop)
    best = case_of(product, gate=gate)
    (_, found) = asked(best, runner, runner.looks).found or ["", ""]
    assert found.startswith("precision-downgrade: out has ")
    assert "dB of SNR in a timed call" in found


def test_a_timed_result_is_of_the_current_bests_dtype(tmp_path: Path) -> None:
    runner = runs(case_of(lambda x, w: (x @ w).half()), tmp_path)
    (found,) = asked(case_of(product), runner, runner.looks).found or [""]
    assert found.startswith("output-dtype: out is torch.float16, the baseline's is torch.float32")


@pytest.mark.usefixtures("_elements")
def test_a_result_of_another_shape_is_wrong(tmp_path: Path) -> None:
    runner = runs(case_of(product), tmp_path)
    flat = case_of(
        lambda x, w: (x @ w).flatten(),
        reference=lambda x, w: (x.double() @ w.double()).flatten(),
    )
    (found,) = asked(flat, runner, runner.looks).found or [""]
    assert found.startswith("timed-result: wrong in a timed block")


@pytest.mark.usefixtures("_scaled")
@pytest.mark.parametrize("asked_again", [True, False])
@pytest.mark.parametrize("domain", [(), ("moderate values",)])
def test_what_the_current_best_has_right_beyond_the_draws_is_asked_for_unless_it_is_excluded(
    asked_again: bool, domain: tuple[str, ...], tmp_path: Path
) -> None:
    """Blocks meet scaled content; what their process says of calls after them excuses nothing."""

    def function(x: Tensor) -> Tensor:
        is_whole = bool((x == x.round()).all())
        frames = {frame.function for frame in inspect.stack(0)}
        return 2 * x if is_whole or (asked_again and "run_written" not in frames) else -x

    settings = {
        "inputs": lambda: (torch.randint(1, 9, (4, 8)).float(),),
        "reference": lambda x: 2 * x.double(),
        "weights": (),
        "domain": domain,
    }
    runner = runs(case_of(function, **settings), tmp_path)
    (found,) = asked(case_of(lambda x: 2 * x, **settings), runner, runner.looks).findings
    assert (found.check, found.rejects) == ("timed-result", not domain)
    # Where the current best is wrong as well, a call is as right as one that nobody timed.
    beside_wrong = asked(case_of(lambda x: -x, **settings), runner, runner.looks).findings
    assert [found.check for found in beside_wrong] == ["precision-downgrade"] * asked_again


def test_no_domain_excludes_what_the_case_draws(tmp_path: Path) -> None:
    runner = runs(case_of(lambda x, w: -(x @ w)), tmp_path)
    case = case_of(product, domain=("moderate values",))
    (found,) = asked(case, runner, runner.looks).findings
    assert found.check == "timed-result" and found.rejects


@pytest.mark.parametrize("concerning", [(), ("product.py",)])
def test_a_build_of_a_change_may_reach_any_case(
    concerning: tuple[str, ...], tmp_path: Path
) -> None:
    """What it makes of the change is not seen in the sources."""

    class Reaching:
        scratch = tmp_path
        orders: ClassVar[list[Order]] = [Leave(), SayReach()]
        reached: ClassVar[list[bool]] = []

        def send(self, reply: Reply) -> None:
            assert isinstance(reply, Loaded)
            self.reached.append(reply.reached)

        def receive(self) -> Order:
            return self.orders.pop()

    order = ArmsOrder((), root=str(tmp_path), changed=("product.py",), concerning=concerning)
    bench = Bench("cpu", "auto", 1, cpu=FAST)
    serve_judge(case_of(product), bench, order, cast("Any", Reaching()))
    assert Reaching.reached == [True, not concerning]


def test_a_result_that_cannot_be_read_is_wrong(tmp_path: Path) -> None:
    case = case_of(product)
    runner = runs(case, tmp_path)
    odd = [{**look, "results": [{"name": "out", "type": "Ring"}]} for look in runner.looks]
    (found,) = asked(case, runner, odd).found or [""]
    assert "cannot be judged (TypeError: out is a Ring, not a tensor)" in found
    spoilt = [{**look, "file": str(tmp_path / "gone")} for look in runner.looks]
    (found,) = asked(case, runner, spoilt).found or [""]
    assert "cannot be judged (FileNotFoundError" in found


class _Process:
    """A judge's process, as scripted: what it says after each question."""

    has_died = False
    inspected = scratch = None

    def __init__(self, *replies: Reply) -> None:
        self.replies = [*replies]
        self.heard: list[str] = []

    def receive(self) -> Reply:
        return self.replies.pop(0)

    def send(self, order: Order) -> None:
        case = order.nodeid if isinstance(order, LoadReference) else ""
        self.heard.append(f"{type(order).__name__} {case}".rstrip())

    def kill(self) -> None: ...

    def stop(self) -> None: ...


WRONG = Finding("timed-result", "wrong")
LOADED = Loaded()
HANDED = HandedOver([{"arm": CANDIDATE}])


WRONG_AGAIN, RIGHT = Findings([WRONG]), Findings([])


@pytest.mark.parametrize(
    ("candidate", "accuses"),
    [([LOADED, HANDED], True), ([LOADED, CaseFinished("a")], False)],
    ids=["right elsewhere", "raises elsewhere"],
)
def test_a_wrong_result_accuses_where_a_fresh_process_of_the_candidate_is_right(
    candidate: list[Reply], accuses: bool
) -> None:
    first = _Process(LOADED, WRONG_AGAIN, LOADED, RIGHT, LOADED, RIGHT)
    second, third = _Process(LOADED, HANDED), _Process(*candidate)
    incumbents = [first, second]
    judge = Judge(lambda: cast("Any", incumbents.pop(0)), lambda: cast("Any", third))
    looks = Looks("a", 1, [(CANDIDATE, 5)], 3, [], [1])
    judge.await_loaded("a")
    assert judge.findings_in(looks) == [WRONG]
    assert judge.accuses(looks) == accuses
    assert first.heard == ["LoadReference a", *["JudgeLooks"] * (2 + accuses)]
    assert second.heard == third.heard == ["LoadReference a", "Recompute"]


def test_a_wrong_result_is_the_kernels_where_it_is_wrong_in_a_fresh_process() -> None:
    first = _Process(LOADED, WRONG_AGAIN, LOADED, RIGHT, LOADED, WRONG_AGAIN)
    incumbents, third = [first, _Process(LOADED, HANDED)], _Process(LOADED, HANDED)
    judge = Judge(lambda: cast("Any", incumbents.pop(0)), lambda: cast("Any", third))
    looks = Looks("a", 1, [(CANDIDATE, 5)], 3, [], [1])
    judge.await_loaded("a")
    assert judge.findings_in(looks) == [WRONG]
    assert not judge.accuses(looks)


def test_nothing_is_judged_where_two_processes_of_the_current_best_differ() -> None:
    first = _Process(LOADED, WRONG_AGAIN, LOADED, WRONG_AGAIN)
    incumbents = [first, _Process(LOADED, HANDED)]
    judge = Judge(lambda: cast("Any", incumbents.pop(0)))
    looks = Looks("a", 1, [(CANDIDATE, 5)], 3, [], [1])
    judge.await_loaded("a")
    assert judge.findings_in(looks) == [WRONG]
    with pytest.raises(Refused, match=r"a: what the case computes differs between processes. Fix"):
        judge.accuses(looks)


def test_a_judge_that_answers_has_loaded_the_case_again() -> None:
    """It may have been timed as the current best, with another process that then failed."""
    finished = CaseFinished("a")
    process = _Process(LOADED, finished, LOADED, HANDED, LOADED, WRONG_AGAIN)
    judge = Judge(lambda: cast("Any", process))
    judge.await_loaded("a")
    looks = judge.answered(Looks("a", 1, [], 3, [], [1]))
    assert looks.looks == HANDED.looks and judge.findings_in(looks) == [WRONG]
    asked = ["LoadReference a", "Leave", "LoadReference a", "Recompute", "JudgeLooks"]
    assert process.heard == asked


@pytest.mark.parametrize("refusal", [[], [CannotLoad("it is another's code")]])
def test_a_judge_that_was_to_be_timed_loads_the_case_again(refusal: list[Reply]) -> None:
    """Another process failed before its blocks were over, or it could not load the arm."""
    process = _Process(LOADED, *refusal, LOADED, CaseFinished("a"), LOADED)
    judge = Judge(lambda: cast("Any", process))
    judge.await_loaded("a")
    with pytest.raises(Refused, match="a: it is another") if refusal else nullcontext():
        judge.load_alone(1)
    judge.await_loaded("a")
    assert process.heard == ["LoadReference a", "LoadAlone", "Leave", "LoadReference a"]


def test_a_judge_goes_from_case_to_case_and_refuses_what_it_cannot_judge() -> None:
    refusal, finished = CannotLoad("it is another's code"), CaseFinished("a")
    process = _Process(LOADED, RIGHT, LOADED, finished, refusal, finished, LOADED, RIGHT)
    judge = Judge(lambda: cast("Any", process))
    for nodeid in "abc":
        if nodeid == "b":
            with pytest.raises(Refused, match=r"b: no other process can judge .* another's code"):
                judge.await_loaded(nodeid)
            continue
        judge.await_loaded(nodeid)
        assert judge.findings_in(Looks(nodeid, 1, [], 3, [], [1])) == []
    assert process.heard == [
        *("LoadReference a", "JudgeLooks", "Leave"),
        *("LoadReference b", "LoadReference c", "JudgeLooks"),
    ]


def test_a_result_that_was_not_handed_over_is_nobody_elses(tmp_path: Path) -> None:
    """Another process recomputes what is there: it cannot excuse what is missing."""
    case = case_of(product)
    runner = runs(case, tmp_path)
    (found,) = asked(case, runner, []).found or [""]
    assert "was not handed over" in found
    assert asked(case, runner, [], confirms=True).found == []
