from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.cases.case_rooflines import of_evidence, rate_of
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.running.check import check_case
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.knowledge.facts import DeviceCeilings
from pytest_kopt.roofline import (
    Limits,
    Roofline,
    band,
    efficiency,
    roofline,
)
from pytest_kopt.show.rooflines import roofline_lines
from tests.builders import a_bench, few_examples

from .test_writes import case_of

H200 = Limits(790.0, 4.3, 1.4, ("rate", "bandwidth"))
UNKNOWN = Limits(None, None, 0.0, ("rate: UNKNOWN", "bandwidth: UNKNOWN"))
positive = st.floats(1e-3, 1e6)


def gemm(m: int, n: int, k: int, ms: float | None = None, limits: Limits = H200) -> Roofline:
    return roofline(
        "gemm",
        "forward",
        flops=2.0 * m * n * k,
        nbytes=2.0 * (m * k + k * n + m * n),
        time_ms=ms,
        limits=limits,
    )


def test_a_large_gemm_is_compute_bound() -> None:
    found = gemm(4096, 4096, 4096, 0.216)
    assert found.bound == "compute"
    assert found.intensity == pytest.approx(4096 / 3)
    assert found.ridge == pytest.approx(790 / 4.3)
    assert found.attainable == pytest.approx(790.0)
    assert found.achieved == pytest.approx(2 * 4096**3 / 0.216e9)
    assert found.achieved_pct == pytest.approx(636.3 / 790 * 100, rel=1e-3)
    assert found.target == pytest.approx(711.0)
    assert found.sources == ["rate", "bandwidth"] and found.unknown == []


@pytest.mark.parametrize(
    ("shape", "bound"),
    [((1024, 8192, 4096), "compute"), ((512, 512, 512), "launch"), ((16, 8192, 8192), "memory")],
)
def test_bounds_follow_the_largest_term(shape: tuple[int, int, int], bound: str) -> None:
    assert gemm(*shape).bound == bound


def test_without_launch_overhead_a_tiny_gemm_is_what_its_intensity_says() -> None:
    assert gemm(512, 512, 512, limits=Limits(790.0, 4.3, 0.0, ("", ""))).bound == "memory"


def test_a_case_without_flops_is_bound_by_memory_and_told_in_bytes() -> None:
    moved = 2.0 * 2 * 16384 * 8192
    found = roofline("n", "forward", flops=None, nbytes=moved, time_ms=0.15, limits=H200)
    assert (found.bound, found.unit, found.intensity) == ("memory", "GB/s", None)
    assert found.attainable == pytest.approx(4300.0)
    assert found.achieved == pytest.approx(moved / 0.15e6)


def test_the_target_is_told_as_rates_and_time() -> None:
    flops = 2.0 * 4096**3
    compute = gemm(4096, 4096, 4096)
    assert compute.target_us == pytest.approx(flops / 0.9 / 790e6)
    assert compute.targets[0] == compute.target
    moved = roofline("n", "forward", flops=None, nbytes=3.87e9, time_ms=None, limits=H200)
    assert moved.targets[0] is None
    assert moved.targets[1:] == pytest.approx((3870.0, 1000.0))
    assert gemm(512, 512, 512, 1.0, UNKNOWN).targets == (None, None, None)


def test_an_unknown_ceiling_blocks_and_is_named() -> None:
    found = gemm(512, 512, 512, 1.0, UNKNOWN)
    assert found.bound == "UNKNOWN"
    assert found.attainable is None and found.achieved_pct is None and found.target is None
    assert found.achieved is not None, "what was measured stays"
    assert found.unknown == ["rate: UNKNOWN", "bandwidth: UNKNOWN"]


def test_a_rate_that_is_not_needed_blocks_nothing() -> None:
    limits = Limits(None, 4.3, 0.0, ("rate: UNKNOWN", "bandwidth"))
    found = roofline("n", "forward", flops=None, nbytes=1e9, time_ms=1.0, limits=limits)
    assert found.bound == "memory" and found.unknown == []


@few_examples
@given(positive, positive, positive, positive, st.floats(0, 100))
def test_nothing_attainable_passes_a_ceiling(
    flops: float, nbytes: float, rate: float, bandwidth: float, launch: float
) -> None:
    limits = Limits(rate, bandwidth, launch, ("", ""))
    scaled = {"flops": flops * 1e9, "nbytes": nbytes * 1e6}
    found = roofline("x", "forward", **scaled, time_ms=1.0, limits=limits)
    assert found.attainable is not None and found.intensity is not None
    assert found.attainable <= rate * (1 + 1e-9)
    assert found.attainable <= found.intensity * bandwidth * (1 + 1e-9)
    assert found.achieved is not None and found.achieved_pct is not None
    share = found.achieved / found.attainable * 100
    assert found.achieved_pct == pytest.approx(share)


def reaching(*shares: float | None) -> list[Roofline]:
    return [Roofline(label="x", way="forward", bound="compute", achieved_pct=s) for s in shares]


def test_efficiency_is_the_geometric_mean() -> None:
    assert efficiency(reaching(50.0, 98.0)).pct == pytest.approx(70.0)


@pytest.mark.parametrize(("pct", "reached"), [(89.99, False), (90.0, True), (95.0, True)])
def test_t2_is_reached_at_ninety_percent(pct: float, reached: bool) -> None:
    assert efficiency(reaching(pct, pct)).reaches() is reached


def test_one_unknown_case_blocks_t2() -> None:
    blocked = Roofline(label="y", way="forward", bound="UNKNOWN", unknown=["hbm: UNKNOWN"])
    found = efficiency([*reaching(99.0), blocked])
    assert not found.reaches() and found.pct is None
    assert found.why == "UNKNOWN: hbm: UNKNOWN"
    assert not efficiency([]).reaches()


@pytest.mark.parametrize(
    ("pct", "name"),
    [
        (49.9, "below 50 %"),
        (50.0, "50 to 80 %"),
        (79.9, "50 to 80 %"),
        (80.0, "80 to 100 %"),
        (100.0, "80 to 100 %"),
        (100.1, "above 100 %"),
    ],
)
def test_bands(pct: float, name: str) -> None:
    assert band(pct) == name


def test_evidence_gives_both_directions_declared_bytes_first() -> None:
    evidence = CaseEvidence(
        forward_samples_ms=(1.0, 3.0),
        backward_samples_ms=(4.0,),
        flops=(2e12, 4e12),
        io_bytes={"forward": 1000, "backward": 3000},
    )
    forward, backward = of_evidence("x", evidence, H200)
    assert (forward.way, forward.flops, forward.nbytes) == ("forward", 2e12, 1000)
    assert forward.achieved == pytest.approx(1000.0), "2 TFLOP in the mean of 2 ms"
    assert (backward.way, backward.flops, backward.nbytes) == ("backward", 4e12, 3000)
    declared = of_evidence("x", replace(evidence, nbytes=(7.0, 9.0)), H200)
    assert [line.nbytes for line in declared] == [7.0, 9.0]


def softmax(nbytes: tuple[float, float] | None, **more: Any) -> list[Roofline]:
    """16384 x 8192 in bf16, forward and backward at 95 % and 85.5 % of an H200's 4.3 TB/s."""
    tensor = 2 * 16384 * 8192
    evidence = CaseEvidence(
        forward_samples_ms=(2 * tensor / 4.3e9 / 0.95,),
        backward_samples_ms=(3 * tensor / 4.3e9 / 0.855,),
        nbytes=nbytes,
        io_bytes={"forward": 2 * tensor, "backward": 3 * tensor},
    )
    return of_evidence("s", replace(evidence, **more), H200)


def test_a_backward_that_counts_double_is_told_by_what_its_tensors_hold() -> None:
    """Declared it ran at 114 % of what the device can do, and ended its campaign with T2."""
    tensor = 2.0 * 16384 * 8192
    forward, backward = softmax((2 * tensor, 4 * tensor))
    assert not forward.over_declared and not backward.is_impossible
    assert backward.achieved_pct == pytest.approx(85.5)
    assert "s backward: nbytes is over-declared" in backward.over_declared
    assert "its tensors hold 8.053e+08" in backward.over_declared
    assert efficiency([forward, backward]).pct == pytest.approx(90.1, abs=0.1)
    assert not any(line.over_declared for line in softmax((2 * tensor, 3 * tensor)))
    assert not any(line.over_declared for line in softmax(None))
    slow = softmax((2 * tensor, 4 * tensor), backward_samples_ms=(3 * tensor / 4.3e9 / 0.5,))
    assert not slow[1].over_declared, "double by default, and not impossible"
    both = softmax((4 * tensor, 3 * tensor))
    assert "s forward: nbytes is over-declared" in both[0].over_declared


def test_what_is_impossible_is_no_efficiency_and_ends_no_campaign() -> None:
    found = softmax(None, forward_samples_ms=(0.05,))
    assert found[0].is_impossible and "impossible" in found[0].over_declared
    assert not efficiency(found).reaches() and efficiency(found).why.startswith(
        "UNKNOWN: s forward"
    )
    assert any("impossible" in line for line in roofline_lines(found))


def test_flops_are_held_against_what_torch_counts_in_the_reference() -> None:
    evidence = CaseEvidence(forward_samples_ms=(1.0,), flops=(4e9, 8e9), counted_flops=2 * 10**9)
    (found,) = of_evidence("g", replace(evidence, io_bytes={"forward": 10**6}), H200)
    assert "flops is over-declared: the case says 4e+09, torch counts 2e+09" in found.over_declared
    (found,) = of_evidence("g", replace(evidence, counted_flops=0), H200)
    assert found.over_declared == "", "nothing of it can be counted"


def test_a_check_counts_the_references_flops() -> None:
    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(32, 48), torch.randn(48, 16)

    def check(function: Callable[..., Any], flops: float | None) -> int | None:
        reference = lambda a, b: function(a.double(), b.double())  # noqa: E731
        case = case_of(function, inputs=inputs, reference=reference, flops=flops)
        return check_case(case, a_bench(case, freezes=True)).evidence.counted_flops

    assert check(torch.matmul, 1.0) == 2 * 32 * 48 * 16
    assert check(lambda a, b: a.sum() * b, 1.0) == 0
    assert check(torch.matmul, None) == 0, "nothing to hold against it"


def test_a_case_that_was_not_timed_has_no_roofline() -> None:
    assert of_evidence("x", CaseEvidence(flops=(1.0, 2.0)), H200) == []


def test_the_table_shows_bound_and_target_and_the_blocked_say_why() -> None:
    text = "\n".join(roofline_lines([gemm(4096, 4096, 4096, 0.216)], verbosity=1))
    for part in ("compute", "1365 ", "183.7", "790.0 TFLOPS", "Share", "80.5 %", "711.0"):
        assert part in text
    assert max(map(len, roofline_lines([gemm(4096, 4096, 4096, 0.216)]))) <= 80
    shown = gemm(4096, 4096, 4096, 0.216)
    long = [
        shown.model_copy(update={"label": f"G16_M16384_N1536_K2048_distribution{name}"})
        for name in ("uniform", "top2_cf1.0")
    ]
    rows = list(roofline_lines(long))[3:5]
    assert len({row.split()[0] for row in rows}) == 2, "labels that differ at their end only"
    unknown = [gemm(512, 512, 512, 1.0, UNKNOWN)]
    assert list(roofline_lines(unknown)) == []
    (line,) = roofline_lines(unknown, verbosity=1)
    peaks = "the peaks bandwidth, rate are not known; run `kopt calibrate --ceilings`"
    assert line == f"roofline: UNKNOWN: {peaks}"
    no_work = unknown[0].model_copy(update={"flops": None, "nbytes": None, "unknown": []})
    (line,) = roofline_lines([no_work], verbosity=1)
    assert line.endswith("no case declares its work; give flops= or nbytes= to kopt()")
    assert list(roofline_lines([])) == []


H100 = DeviceCeilings("NVIDIA H100 80GB HBM3", None)


@pytest.mark.parametrize(
    ("tflops", "snr_db", "more", "metric"),
    [
        (20.0, 130.0, {}, "vector_peak_fp32"),
        (20.0, 68.0, {}, "matrix_peak_tf32_dense"),
        (350.0, 68.0, {}, "matrix_peak_tf32_dense"),
        (350.0, 130.0, {}, "matrix_peak_tf32_dense"),
        (700.0, 68.0, {}, "matrix_peak_bf16_dense"),
        (700.0, 130.0, {}, "matrix_peak_tf32_dense"),
        (350.0, None, {}, "matrix_peak_tf32_dense"),
        (20.0, 68.0, {"counted_flops": 0}, "vector_peak_fp32"),
        (20.0, 68.0, {"dtype": "float64"}, "matrix_peak_fp64_dense"),
    ],
    ids=[
        *("float32", "TF32 and slow", "TF32", "emulated", "float16 within", "too fast"),
        *("accuracy not known", "no product", "float64"),
    ],
)
def test_float32_is_held_against_what_its_kernel_multiplies_in(
    tflops: float, snr_db: float | None, more: dict[str, Any], metric: str
) -> None:
    """Triton's tl.dot of float32 is TF32 on an H100: 350 TFLOPS are 71 % of its peak, not 523 %."""
    evidence = CaseEvidence(
        dtype="float32",
        flops=(tflops * 1e9, tflops * 2e9),
        forward_samples_ms=(1.0,),
        accuracy=(snr_db and {"out": Accuracy("torch.float32", snr_db, 150.0)}) or None,
    )
    evidence = replace(evidence, **more)
    assert rate_of(evidence, H100).source.startswith(metric)


def test_a_device_without_tf32_keeps_the_rate_of_float32() -> None:
    cpu = DeviceCeilings("some CPU", None)
    evidence = CaseEvidence(dtype="float32", flops=(1e12, 2e12), forward_samples_ms=(1.0,))
    assert rate_of(evidence, cpu).source.startswith("vector_peak_fp32")
