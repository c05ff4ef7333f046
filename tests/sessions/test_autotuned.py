"""An autotuned kernel: each version chooses its configurations once, and all processes use them.

Triton's own autotuner chooses among times that the tests give: there is no GPU to take any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.cases.details import merged_choices, tuning_flags
from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, ArmsOrder, WorkerOrders
from pytest_kopt.cases.running import autotuning
from pytest_kopt.cases.running.autotuning import choices_made, nearest_choices, preset_choices

from .paired import PLAIN, Gate, project_at

autotuner = pytest.importorskip("triton.runtime.autotuner")
SIZES = (16, 64, 256)


class Ran:
    """Stands for a compiled kernel: notes the block and the columns that it ran with."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.fn = kernel
        self.blocks: list[int] = []

    def run(self, columns: int, *, BLOCK: int, **_: object) -> None:
        self.fn(columns)
        self.blocks.append(BLOCK)


class Tuner:
    """An autotuner of a kernel, whose configurations take the `times` of their blocks."""

    def __init__(self, kernel: Callable[..., Any], times: dict[int, float], **more: Any) -> None:
        self.kernel, self.benchmarks = Ran(kernel), 0
        configs = [autotuner.Config({"BLOCK": size}) for size in SIZES]
        self._tuner = autotuner.Autotuner(
            self.kernel, ["columns"], configs, ["columns"], None, None, do_bench=self._time, **more
        )
        self._times = times

    def _time(self, call: Callable[[], None], quantiles: object) -> list[float]:
        call()
        self.benchmarks += 1
        return [self._times[self.kernel.blocks[-1]]] * 3

    def __call__(self, columns: int) -> int:
        """Run with so many columns; return the block."""
        self._tuner.run(columns, grid=(1,), warmup=False)
        return self.kernel.blocks[-1]


def rows(columns: int) -> None: ...


SCALE = 1


def halves(columns: int) -> int:
    return columns * SCALE


SLOW_AT_16 = {16: 2.0, 64: 1.0, 256: 3.0}
BEST_AT_256 = {16: 2.0, 64: 2.0, 256: 1.0}


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have nothing be chosen yet, and Triton be as it was in the end."""
    for name in {"_bench", "check_disk_cache"} & {*vars(autotuner.Autotuner)}:
        monkeypatch.setattr(autotuner.Autotuner, name, getattr(autotuner.Autotuner, name))
    begin_process()
    yield
    begin_process()


def begin_process(choices: dict[str, dict[str, str]] | None = None) -> None:
    """Begin another process; with `choices` it is one that compares."""
    autotuning._TUNING.__init__()  # type: ignore[misc]
    preset_choices(choices or {}, is_fixed=choices is not None)


def test_what_one_process_chose_is_run_in_all() -> None:
    first = Tuner(rows, SLOW_AT_16)
    assert first(1000) == 64 and first.benchmarks == len(SIZES)
    made = choices_made()
    ((kernel, by_key),) = made.items()
    assert (
        kernel.startswith("rows@")
        and list(by_key) == ["[1000]"]
        and "BLOCK: 64" in by_key["[1000]"]
    )
    begin_process(json.loads(json.dumps(made)))
    later = Tuner(rows, BEST_AT_256)
    assert later(1000) == 64 and later.benchmarks == 0
    assert choices_made() == {}


def test_a_copy_of_the_kernel_in_the_same_process_has_its_choice() -> None:
    assert Tuner(rows, SLOW_AT_16)(1000) == 64
    copy = Tuner(rows, BEST_AT_256)
    assert copy(1000) == 64 and copy.benchmarks == 0


def test_another_kernel_chooses_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of the same source with another constant."""
    tuner = Tuner(halves, SLOW_AT_16)
    assert Tuner(rows, SLOW_AT_16)(1000) == tuner(1000) == 64
    autotuning._source.cache_clear()
    monkeypatch.setitem(globals(), "SCALE", 2)
    assert Tuner(halves, BEST_AT_256)(1000) == 256


def test_shapes_nearby_take_the_nearest_choice_and_time_nothing() -> None:
    tuner = Tuner(rows, SLOW_AT_16)
    tuner(100)
    tuner._times = BEST_AT_256
    tuner(10_000)
    count = tuner.benchmarks
    with nearest_choices():
        assert [tuner(columns) for columns in (90, 132, 9_000, 40_000)] == [64, 64, 256, 256]
        unseen = Tuner(halves, BEST_AT_256)
        assert unseen(100) == SIZES[0]
    assert tuner.benchmarks == count and unseen.benchmarks == 0


def test_a_process_that_compares_tunes_no_kernel_that_has_a_choice() -> None:
    Tuner(rows, SLOW_AT_16)(1000)
    begin_process(choices_made())
    tuner, unknown = Tuner(rows, BEST_AT_256), Tuner(halves, BEST_AT_256)
    assert tuner(1032) == 64 and tuner.benchmarks == 0
    assert unknown(1032) == 256, "of which no process has told anything"


def test_a_configuration_that_a_shape_excludes_is_not_run() -> None:
    def fits(configs: list[Any], arguments: dict[str, Any], **_: object) -> list[Any]:
        return [config for config in configs if config.kwargs["BLOCK"] >= arguments["columns"]]

    tuner = Tuner(rows, SLOW_AT_16, prune_configs_by={"early_config_prune": fits})
    assert tuner(60) == 64
    with nearest_choices():
        assert tuner(200) == 256


@pytest.mark.skipif(
    not hasattr(autotuner.Autotuner, "check_disk_cache"), reason="this Triton keeps no times"
)
def test_no_choice_is_written_to_tritons_cache_as_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read there: whoever keeps one has chosen before."""
    written: list[object] = []

    def look_up(tuner: Any, key: object, configs: object, time_all: Callable[[], None]) -> bool:
        time_all()
        written.append(key)
        return False

    monkeypatch.setattr(autotuner.Autotuner, "check_disk_cache", look_up)
    begin_process()
    tuner = Tuner(rows, SLOW_AT_16)
    tuner._tuner.cache_results = True
    assert tuner(1000) == 64 and written == [(1000,)]
    with nearest_choices():
        assert tuner(1032) == 64
    assert written == [(1000,)]


@pytest.mark.parametrize(
    "key", ["[1000]", "[1e400]", f"[{10**400}]", "no JSON", "3", "[null, [1], true]"]
)
def test_a_key_of_any_form_is_some_way_from_another(key: str) -> None:
    """Kernel code hands them over."""
    near = autotuning._distance('[1000, "torch.float32"]', key)
    assert near >= (0, 0) == autotuning._distance(key, key)


def test_dtypes_and_flags_count_before_sizes() -> None:
    asked = '[1000, true, "torch.float32"]'
    keys = ['[1001, false, "torch.float32"]', '[9000, true, "torch.float32"]', "[1000, true]"]
    assert min(keys, key=lambda key: autotuning._distance(asked, key)) == keys[1]


def test_a_process_of_the_current_best_alone_gets_no_choice_from_a_candidate() -> None:
    best, candidate = {"rows@1": {"[1]": "best"}}, {"rows@1": {"[2]": "worse"}, "new@2": {}}
    orders = WorkerOrders("cpu", "auto", 0, choices=best, candidate_choices=candidate)

    def preset(*names: str) -> object:
        return WorkerOrders(
            "cpu",
            "auto",
            0,
            choices=best,
            candidate_choices=candidate,
            arms=ArmsOrder(names),
        ).preset_choices

    assert preset() == preset(INCUMBENT) == preset(ALONE) == best
    assert preset(CANDIDATE, INCUMBENT) == orders.preset_choices == {**best, "new@2": {}}


def test_the_first_process_that_chose_for_a_key_decides() -> None:
    first, second = {"rows": {"[1]": "a"}}, {"rows": {"[1]": "b", "[2]": "c"}, "more": {"[1]": "d"}}
    assert merged_choices([first, second]) == {
        "rows": {"[1]": "a", "[2]": "c"},
        "more": {"[1]": "d"},
    }


def test_a_verdict_names_two_choices() -> None:
    choices = {"rows@1": {"[1]": "BLOCK: 1", "[2]": "BLOCK: 2"}, "columns@2": {"[1]": "BLOCK: 3"}}
    (flag,) = tuning_flags(choices)
    assert flag.endswith(": rows [1]: BLOCK: 1; rows [2]: BLOCK: 2; 1 more")
    assert tuning_flags({}) == []


AUTOTUNED = '''\
"""Doubles a tensor by Triton's autotuner, whose choice is another one in each process."""

import os

import torch
from clock import spend
from triton.runtime.autotuner import Autotuner, Config

COST_MS = {{size: 250.0 + size for size in {sizes}}}


class OnCpu:
    def __init__(self, kernel):
        self.fn = kernel

    def run(self, x, out, columns, *, BLOCK, **_):
        spend(COST_MS[BLOCK], "{who}")
        self.fn(x, out)


def _rows(x, out):
    torch.mul(x, 2, out=out)


def timed(call, quantiles):
    call()
    spend(0, "{who} tunes")
    return [int.from_bytes(os.urandom(4), "big")] * 3


rows = Autotuner(
    OnCpu(_rows), ["x", "out", "columns"],
    [Config({{"BLOCK": size}}) for size in {sizes}], ["columns"], None, None, do_bench=timed,
)


def plain(x):
    out = torch.empty_like(x)
    rows.run(x, out, x.shape[1], grid=(1,), warmup=False)
    return out
'''


def test_each_version_tunes_in_one_process_of_a_session(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    project.write(PLAIN, AUTOTUNED.format(who="old", sizes=[2**n for n in range(6)]))
    project.replace("tests/test_plain.py", 'domain="declared shapes"', "domain=()")
    project.commit_all("Tune it")
    project.write(PLAIN, AUTOTUNED.format(who="new", sizes=[2**n for n in range(6)]))
    done = Gate(project)()
    assert done.run.code == 0, done.run.text
    # By chance each process would have another cost.
    assert done.judged["aggregate"]["change_pct"] == 0
    assert {who for who, _ in done.trace} == {"old", "old tunes", "new", "new tunes"}
    tuning = [(who, process) for who, process in done.trace if who.endswith("tunes")]
    assert sorted(who for who, _ in tuning) == ["new tunes", "old tunes"], tuning
    together = [process for process, who in done.processes.items() if {"old", "new"} <= who]
    assert together and {process for _, process in tuning}.isdisjoint(together)
    (flag,) = [flag for flag in done.judged["flags"] if "autotuned" in flag]
    assert re.search(r"once, for all processes: _rows \[8, .*\]: BLOCK: \d+, num_warps", flag)
