"""Whose memory a call uses: results have their own, inputs are written to as declared.

What the memory of a process held of results is judged as well.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.order import RESULTS, WAYS
from pytest_kopt.cases.running.inspected_results import in_memory, read
from pytest_kopt.honesty import outputs
from tests.checked import COLUMNS, ROWS, check, honest, names
from tests.test_judge_role import (  # noqa: F401 (fixtures are found by their names)
    KINDS,
    _elements,
    _scaled,
    asked,
    case_of,
    product,
    runs,
    seen_in,
)


@pytest.mark.parametrize("many", [1, 3, 64])
def test_a_ring_of_buffers_is_handed_out_again_while_it_is_in_use(many: int) -> None:
    ring = itertools.cycle([torch.empty(ROWS, COLUMNS) for _ in range(many)])
    report = check(lambda x, w: torch.tanh(x * w, out=next(ring)))
    assert names(report) == {"output-shared"}


def test_a_pool_asks_for_the_memory_and_not_for_the_object() -> None:
    """A view that a caller kept is use as well: of the object nothing is left then."""
    pool = [torch.empty(ROWS, COLUMNS) for _ in range(8)]

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        free = (buffer for buffer in pool if sys.getrefcount(buffer) <= 3)
        return torch.tanh(x * w, out=next(free, torch.empty(ROWS, COLUMNS)))

    assert names(check(kernel)) == {"output-shared"}

    def counting(x: Tensor, w: Tensor) -> Tensor:
        for buffer in pool:
            storage = buffer.untyped_storage()
            if torch._C._storage_Use_Count(storage._cdata) <= 2:
                return torch.tanh(x * w, out=buffer.view(ROWS, COLUMNS))
        return honest(x, w)

    assert names(check(counting)) == set()


LIES = {
    "copied": lambda x: x.clone(),
    "padded": lambda x: torch.nn.functional.pad(x, (0, 8))[:, :-8],
    "turned": lambda x: x.t().contiguous().t(),
    "a view": lambda x: x.view_as(x),
    "a lazy copy": torch._lazy_clone,
}


@pytest.mark.parametrize(
    ("baseline", "how", "check_named", "said"),
    [
        ("copied", "padded", "PASS", set()),
        ("copied", "turned", "PASS", {"output-order"}),
        ("turned", "copied", "PASS", set()),
        ("copied", "a view", "FAIL", {"output-layout"}),
        ("copied", "a lazy copy", "FAIL", {"output-layout"}),
        ("a view", "a lazy copy", "PASS", set()),
        ("a view", "turned", "PASS", set()),
    ],
)
def test_a_result_lies_in_memory_of_its_own_where_the_baselines_does(
    baseline: str, how: str, check_named: str, said: set[str]
) -> None:
    same = {"inputs": lambda: (torch.randn(ROWS, COLUMNS),), "reference": lambda x: x.double()}
    same["weights"] = ()  # type: ignore[assignment]
    before = check(LIES[baseline], **same)
    report = check(LIES[how], accuracy=before.evidence.accuracy, **same)
    assert (report.check, {found.check for found in report.findings}) == (check_named, said)
    assert not names(report)


@pytest.mark.parametrize(
    ("plain", "saving"),
    [
        (lambda x: x.mean(0).expand_as(x).clone(), lambda x: x.mean(0).expand_as(x)),
        (lambda x: (x + 1).unfold(1, 3, 1).clone(), lambda x: (x + 1).unfold(1, 3, 1)),
        (lambda x: -(x + 1), lambda x: torch._neg_view(x + 1)),
        (lambda x: (x + 1, x + 1), lambda x: (x + 1,) * 2),
    ],
    ids=["expanded", "overlapping", "negated lazily", "one for two"],
)
def test_what_saves_memory_of_its_own_is_no_result_of_its_own(
    plain: Callable[..., Any], saving: Callable[..., Any]
) -> None:
    same: dict[str, Any] = {
        "inputs": lambda: (torch.randn(ROWS, COLUMNS),),
        "reference": lambda x: plain(x.double()),
        "weights": (),
    }
    before = check(plain, **same)
    report = check(saving, accuracy=before.evidence.accuracy, **same)
    assert [found.check for found in report.findings] == ["output-layout"]


@pytest.mark.parametrize(
    ("declared", "found"), [({"consumes": (0,)}, []), ({"writes": (0,)}, ["output-layout"])]
)
def test_a_result_may_lie_in_what_is_consumed_and_not_in_what_is_written(
    declared: dict[str, Any], found: list[str]
) -> None:
    def plain(x: Tensor) -> Tensor:
        return x.mul_(2).clone()

    same: dict[str, Any] = {
        "inputs": lambda: (torch.randn(ROWS, COLUMNS),),
        "reference": lambda x: x.double().mul(2) if "consumes" in declared else plain(x),
        "weights": (),
        **declared,
    }
    before = check(plain, **same)
    assert (before.check, before.findings) == ("PASS", [])
    report = check(lambda x: x.mul_(2).view_as(x), accuracy=before.evidence.accuracy, **same)
    assert [item.check for item in report.findings] == found


def test_parts_of_one_buffer_are_results_of_their_own() -> None:
    same: dict[str, Any] = {
        "inputs": lambda: (torch.randn(ROWS, COLUMNS),),
        "reference": lambda x: (x.double() + 1).chunk(2, -1),
        "weights": (),
    }
    before = check(lambda x: [part.clone() for part in (x + 1).chunk(2, -1)], **same)
    report = check(lambda x: (x + 1).chunk(2, -1), accuracy=before.evidence.accuracy, **same)
    assert (report.check, report.findings) == ("PASS", [])


def test_what_a_result_leaves_to_its_reader_is_done_in_a_comparison() -> None:
    x = torch.randn(ROWS, COLUMNS)

    def turned(x: Tensor) -> dict[str, Tensor]:
        return {"out": (x + 1).t(), "norm": x.norm()}

    like = {"out": (x + 1).t().contiguous(), "norm": x.norm()}
    delivered = outputs.in_order(turned, like, turned(x))(x)
    assert delivered["out"].is_contiguous() and torch.equal(delivered["out"], like["out"])
    assert outputs.in_order(turned, turned(x), turned(x)) is turned


def test_a_kernel_may_keep_its_last_result() -> None:
    last: list[Tensor] = []

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        last[:] = [honest(x, w)]
        return last[0]

    assert names(check(kernel)) == set()


def test_a_kernel_that_writes_to_its_input_is_named() -> None:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        out = honest(x, w)
        x.zero_()
        return out

    report = check(kernel)
    assert (report.check, names(report)) == ("FAIL", set())
    assert [found.check for found in report.findings] == ["input-mutated"]


@pytest.mark.parametrize("how", ["data", "set_"])
def test_a_buffer_is_written_to_and_not_exchanged(how: str) -> None:
    def kernel(x: Tensor, out: Tensor) -> None:
        made = x * 2
        if how == "data":
            out.data = made
        else:
            out.set_(made)  # type: ignore[call-overload]

    def doubled(x: Tensor, out: Tensor) -> None:
        out.copy_(x * 2)

    same: dict[str, Any] = {
        "inputs": lambda: (torch.randn(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS)),
        "reference": doubled,
        "weights": (),
    }
    assert check(doubled, **same).check == "PASS"
    report = check(kernel, **same)
    assert (report.check, names(report)) == ("FAIL", set())
    assert [found.check for found in report.findings] == ["input-moved"]


def test_an_operation_that_changes_its_input_by_contract_may() -> None:
    def doubled(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return x * w

    report = check(doubled, reference=lambda x, w: x.mul_(2).double() * w.double())
    assert (report.check, names(report)) == ("PASS", set())


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
@pytest.mark.usefixtures("_elements")
@pytest.mark.parametrize("kind", KINDS)
def test_what_memory_held_is_judged_and_not_what_is_handed_over(kind: str, tmp_path: Path) -> None:
    function, settings = KINDS[kind]
    case = case_of(function, **settings)
    runner = runs(case, tmp_path)
    seen = seen_in(runner)
    assert seen and all(told["sizes"] for told in seen)
    assert asked(case, runner, runner.looks, seen).found == []
    memory = Path(seen[0]["file"])
    memory.write_bytes(bytes(len(memory.read_bytes())))
    (found,) = asked(case, runner, runner.looks, seen).found or [""]
    assert found.startswith("timed-result: ")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_judged_of_a_process_that_hands_nothing_over(kind: str, tmp_path: Path) -> None:
    function, settings = KINDS[kind]
    case = case_of(function, **settings)
    runner = runs(case, tmp_path)
    seen = seen_in(runner)
    runner.looks = [
        {"arm": block.arm, "seed": block.seed, "way": way, "number": number}
        for block in runner.seen
        for way, number in zip(WAYS, block.calls, strict=False)
    ]
    answers = asked(case, runner, None).looks
    assert asked(case, runner, answers, seen).found == []
    memory = Path(seen[-1]["file"])
    memory.write_bytes(bytes(len(memory.read_bytes())))
    (found,) = asked(case, runner, answers, seen).found or [""]
    assert found.startswith("timed-result: ")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
@pytest.mark.parametrize(
    "change",
    [{"file": ""}, {"call": 99}, {"sizes": []}, {"seed": 99}],
    ids=["memory that cannot be read", "another call", "no results", "nothing of this block"],
)
def test_what_was_not_in_memory_is_wrong(change: dict[str, Any], tmp_path: Path) -> None:
    runner = runs(case_of(product), tmp_path)
    seen = seen_in(runner)
    seen[-1] |= change
    assert asked(case_of(product), runner, runner.looks, seen).found == [
        "timed-result: an inspected result of a forward was not in memory when its block was over"
    ]


def is_timed() -> bool:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "run_written":
        frame = frame.f_back
    return frame is not None


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
@pytest.mark.parametrize("count", [6, 20])
def test_a_timed_call_writes_to_no_result_that_its_caller_has(count: int, tmp_path: Path) -> None:
    """A block has five calls, and is over before their results are given out again."""
    ring = itertools.cycle([torch.empty(16, 8) for _ in range(count)])

    def ringed(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w, out=next(ring)) if is_timed() else x @ w

    runner = runs(case_of(ringed), tmp_path)
    findings = asked(case_of(product), runner, runner.looks, seen_in(runner)).found or [""]
    assert (count == 20) == (findings == [""])
    assert findings[0].startswith("output-shared: a timed call overwrites" if count == 6 else "")


@pytest.mark.parametrize(
    "names", [["out"] * RESULTS + ["last"], [*map(str, range(RESULTS)), "last"]]
)
def test_results_beyond_those_that_are_written_down_are_those_of_the_current_best(
    names: list[str], tmp_path: Path
) -> None:
    """One more that nobody else gives is as wrong as one that was not there."""
    (tmp_path / "memory").write_bytes(b"")
    memory = {"file": str(tmp_path / "memory"), "sizes": [0] * RESULTS, "call": 1}
    empty = {"dtype": "float32", "shape": [0], "strides": [1]}
    look = {"number": 1, "results": [{"name": name, **empty} for name in names]}
    best = dict.fromkeys(names, torch.empty(0))
    is_held = in_memory(look, memory, best, secret=0) is not None
    assert is_held == (len(best) == len(names))
    assert in_memory(look, memory, {"out": torch.empty(0)}, secret=0) is None


def test_a_result_without_elements_is_read_from_memory(tmp_path: Path) -> None:
    (tmp_path / "memory").write_bytes(b"")
    memory = {"file": str(tmp_path / "memory"), "sizes": [0], "call": 1}
    result = {"name": "out", "dtype": "bfloat16", "shape": [0, 256], "strides": [256, 1]}
    held = in_memory({"number": 1, "results": [result]}, memory, {}, secret=0)
    assert held is not None and held["out"].shape == (0, 256)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read on Linux")
@pytest.mark.parametrize("kind", [float, torch.as_tensor])
def test_a_number_is_the_one_that_a_call_returned(
    kind: Callable[[Tensor], Any], tmp_path: Path
) -> None:
    """What its process says afterwards is no result, nor that a tensor was a number."""

    def total(x: Tensor, w: Tensor) -> Any:
        return kind((x @ w).sum())

    def late(x: Tensor, w: Tensor) -> Any:
        return kind(torch.zeros(())) if is_timed() else total(x, w)

    cases = [
        case_of(function, reference=lambda x, w: kind((x.double() @ w.double()).sum()))
        for function in (total, late)
    ]
    for case in cases:
        runner = runs(case, tmp_path)
        right = asked(case, runner, None).looks
        for look in right:
            (results, _) = read(look)
            look["results"] = [{"name": "out", "value": float((results or {})["out"])}]
        assert asked(case, runner, right).found == []
        is_right = case is cases[0] and kind is float
        assert (asked(case, runner, right, seen_in(runner)).found == []) == is_right
