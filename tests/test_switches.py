"""Torch's process-wide switches, put back after a case."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_kopt.cases.order import Bench, WorkerOrders
from pytest_kopt.cases.running.switches import (
    left_switches,
    new_operators,
    read_switches,
    replaced_operators,
    switches_kept,
    write_switch,
)
from pytest_kopt.session.worker import bench_of

backends: Any = torch.backends


def set_old_tf32() -> None:
    backends.cuda.matmul.allow_tf32 = True
    backends.cudnn.allow_tf32 = False


def set_new_tf32() -> None:
    backends.cuda.matmul.fp32_precision = "tf32"
    backends.cudnn.conv.fp32_precision = "ieee"


def set_tf32_for_all() -> None:
    backends.fp32_precision = "tf32"


def set_cudnn() -> None:
    backends.cudnn.benchmark = not backends.cudnn.benchmark
    backends.cudnn.deterministic = not backends.cudnn.deterministic
    backends.cudnn.enabled = not backends.cudnn.enabled


def set_attention() -> None:
    backends.cuda.enable_flash_sdp(False)
    backends.cuda.enable_math_sdp(False)
    backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)


def set_reductions() -> None:
    backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    backends.cuda.matmul.allow_fp16_accumulation = True


def set_threads() -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)


@pytest.mark.parametrize(
    "select",
    [
        set_old_tf32,
        set_new_tf32,
        set_tf32_for_all,
        set_cudnn,
        set_attention,
        set_reductions,
        set_threads,
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_device("meta"),
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.set_grad_enabled(False),
    ],
)
def test_what_is_selected_in_code_is_reset(select: Callable[[], None]) -> None:
    before = read_switches()
    assert len(before) > 30
    with switches_kept():
        select()
        assert read_switches() != before
    assert read_switches() == before


def test_every_switch_takes_the_value_that_was_read() -> None:
    before = read_switches()
    for name, value in before.items():
        write_switch(name, value)
        assert read_switches((name,)) == {name: value}


def test_an_error_resets_as_well() -> None:
    before = read_switches()
    with pytest.raises(ValueError, match="on the way"), switches_kept():
        set_old_tf32()
        raise ValueError("on the way")
    assert read_switches() == before


def test_what_was_selected_before_stays() -> None:
    with switches_kept():
        torch.set_float32_matmul_precision("high")
        torch.set_default_device("cpu")
        chosen = read_switches()
        with switches_kept():
            torch.set_float32_matmul_precision("highest")
            torch.set_default_device(None)
        assert read_switches() == chosen


def test_torch_is_not_imported_for_it() -> None:
    code = (
        "import sys\n"
        "from pytest_kopt.cases.running.switches import switches_kept\n"
        "with switches_kept():\n    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_backend_that_the_environment_selects_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEPT_BACKEND", "TRITON")
    monkeypatch.delenv("NEW_BACKEND", raising=False)
    with switches_kept():
        os.environ["KEPT_BACKEND"] = "CK"
        os.environ["NEW_BACKEND"] = "CK"
    assert os.environ["KEPT_BACKEND"] == "TRITON" and "NEW_BACKEND" not in os.environ


@pytest.mark.filterwarnings("ignore:.*verriding a previously registered kernel")
def test_an_operator_of_torchs_that_a_kernel_replaces_is_named() -> None:
    """It runs in whatever else runs here: it can answer before a timed call begins."""
    bench = Bench("cpu", "auto", 1, operators=replaced_operators())
    assert new_operators(bench) == []
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("special_i1e", torch.clone, "CPU")
        (finding,) = new_operators(bench)
        assert finding.rejects and "aten/special_i1e/CPU" in finding.message
    assert new_operators(bench) == []


@pytest.mark.parametrize(
    "leave",
    [
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_anomaly_enabled(True),
        set_threads,
    ],
)
def test_switches_that_calls_leave_are_named(leave: Callable[[], object]) -> None:
    with switches_kept():
        before = read_switches()
        assert [*left_switches(before)] == []
        leave()
        (finding,) = left_switches(before)
    assert finding.check == "switch-left" and not finding.rejects
    assert [*left_switches(before)] == []


def test_torch_compiles_in_the_process_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pool of compilers imports torch for seconds, beside kernels that are timed."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "8")
    imported = SimpleNamespace(compile_threads=8)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", imported)
    bench_of(WorkerOrders("cpu", "auto", 1, 60.0, "standard"))
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert imported.compile_threads == 1
