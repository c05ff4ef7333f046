from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.work import PRODUCT_MARGIN
from pytest_kopt.knowledge import facts
from pytest_kopt.knowledge.facts import Copied, DeviceCeilings, MeasuredCeiling, Multiplied

H200 = "NVIDIA H200"


def measured(device: str = H200, copy: float = 4.3, bf16: float = 790.0) -> MeasuredCeiling:
    return MeasuredCeiling(
        device=device,
        kind="gpu",
        measured="2026-11-21 10:00",
        versions={"torch": "2.11.0"},
        copy_tb_per_s=copy,
        sweep=[Copied(nbytes=1 << 24, tb_per_s=9.0), Copied(nbytes=1 << 30, tb_per_s=copy)],
        matrix={"bfloat16": Multiplied(tflops=bf16, size=8192)},
        launch_us={"graph": 1.4, "wall": 5.0},
    )


def test_the_documented_peak_serves_until_something_was_measured() -> None:
    known = DeviceCeilings(H200, None)
    assert known.bandwidth.value == 4.8
    rate = known.rate("bfloat16")
    assert rate.documented == 989.5
    assert rate.value == pytest.approx(1070.6, abs=0.1), "at 1980 MHz, where a light load runs"
    assert rate.source.endswith(
        "spec.yaml:H200.matrix_peak_bf16_dense (at 1830 MHz; 1071 at the highest, 1980)"
    )
    assert known.launch_us == {}


def test_a_measured_ceiling_is_preferred_and_stays_bounded() -> None:
    known = DeviceCeilings(H200, measured())
    assert known.bandwidth.value == 4.3
    assert known.bandwidth.documented == 4.8
    assert known.bandwidth.source == (
        "hbm_bandwidth: 4.3 TB/s <- measured 2026-11-21 10:00 on NVIDIA H200"
    )
    assert known.rate("bfloat16").value == 790.0
    assert known.rate("float16").documented == 989.5, "not measured: the document's"


@pytest.mark.parametrize(
    ("given", "metric"),
    [(measured(copy=4.81), "hbm_bandwidth"), (measured(bf16=1070.7), "matrix_peak_bf16_dense")],
)
def test_a_measurement_above_the_documented_peak_is_an_error(
    given: MeasuredCeiling, metric: str
) -> None:
    with pytest.raises(BadInput, match=f"the measured {metric}, .* exceeds the documented peak"):
        DeviceCeilings(H200, given)


def test_the_peak_itself_can_be_reached() -> None:
    assert DeviceCeilings(H200, measured(bf16=1000.0)).rate("bfloat16").value == 1000.0
    assert DeviceCeilings(H200, measured(copy=4.8)).bandwidth.value == 4.8


def test_a_device_without_a_document_has_only_what_was_measured() -> None:
    unknown = DeviceCeilings("NVIDIA GH200 480GB", None)
    assert unknown.bandwidth.value is None
    assert unknown.rate("bfloat16").value is None
    assert "UNKNOWN (NVIDIA GH200 480GB is in no spec file)" in unknown.bandwidth.source
    known = DeviceCeilings("NVIDIA GH200 480GB", measured("NVIDIA GH200 480GB", copy=99.0))
    assert known.bandwidth.value == 99.0


def test_a_dtype_that_nobody_knows_is_unknown() -> None:
    rate = DeviceCeilings(H200, None).rate("complex64")
    assert rate.value is None and "UNKNOWN" in rate.source


@pytest.mark.parametrize(
    ("device", "peak", "key"),
    [
        ("NVIDIA B200", 9000.0, "B200.matrix_peak_fp4_dense"),
        ("AMD Instinct MI355X", 10066.3, "MI355X.matrix_peak_mxfp4_dense"),
        (H200, None, "matrix_peak_fp4_dense"),
    ],
)
def test_fp4_has_its_documented_peak(device: str, peak: float | None, key: str) -> None:
    rate = DeviceCeilings(device, None).rate("float4_e2m1fn_x2")
    assert rate.value == peak and key in rate.source


@pytest.mark.parametrize(
    "device",
    ["NVIDIA B200", "NVIDIA GB200", "AMD Instinct MI350X", "AMD Instinct MI355X"],
)
def test_no_documented_peak_is_beyond_what_the_physics_check_allows(device: str) -> None:
    """The check knows a product in bf16 only, which reaches 60 % of its peak or more."""
    known = DeviceCeilings(device, None)
    bf16, narrow = known.rate("bfloat16").value, known.rate("float4_e2m1fn_x2").value
    assert bf16 and narrow and narrow <= 0.6 * PRODUCT_MARGIN["cuda"] * bf16


def test_only_where_inputs_stay_in_cache_a_small_copy_sets_the_ceiling() -> None:
    cold = DeviceCeilings(H200, measured())
    assert cold.bandwidth_for(1 << 20).value == 4.3
    warm = DeviceCeilings("some CPU", measured("some CPU").model_copy(update={"kind": "cpu"}))
    assert warm.bandwidth_for(1 << 20).value == 9.0
    assert warm.bandwidth_for(1 << 20).source.startswith("copy bandwidth within caches: 9 TB/s")
    assert warm.bandwidth_for(1 << 30).value == 4.3


def test_what_is_saved_is_found_again_by_the_device(tmp_path: Path) -> None:
    path = facts.save(tmp_path, measured())
    assert path == tmp_path / "ceilings" / "nvidia-h200.yaml"
    assert facts.load(tmp_path, H200) == measured()
    assert facts.load(tmp_path, "NVIDIA B200") is None
    assert facts.known(tmp_path, H200).rate("bfloat16").value == 790.0


def test_a_damaged_file_names_its_key(tmp_path: Path) -> None:
    path = facts.save(tmp_path, measured())
    path.write_text(path.read_text().replace("copy_tb_per_s: 4.3", "copy_tb_per_s: fast"))
    with pytest.raises(BadInput, match="copy_tb_per_s"):
        facts.load(tmp_path, H200)


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_kopt.devices.machine import cpu_model
    from pytest_kopt.measure import measured_peaks as measuring

    monkeypatch.setitem(measuring._COPIES, "cpu", [1 << 16, 1 << 20])
    monkeypatch.setitem(measuring._BEYOND, "cpu", 1 << 20)
    monkeypatch.setitem(measuring._SIZES, "cpu", [64, 128])
    monkeypatch.setitem(measuring._DTYPES, "cpu", ["float32", "float7"])
    found = measuring.measure_ceilings("cpu")
    assert found.device == cpu_model()
    assert found.copy_tb_per_s == found.sweep[1].tb_per_s
    assert set(found.matrix) == {"float32"} and found.matrix["float32"].size in (64, 128)
    assert "float7" in found.skipped["float7"]
    assert set(found.launch_us) == {"wall"}
    assert set(found.versions) >= {"torch", "python", "pytest-kopt"}
    assert DeviceCeilings(found.device, found).bandwidth.value == found.copy_tb_per_s


@pytest.mark.gpu
def test_a_gpu_stays_below_its_documented_peaks() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    from pytest_kopt.measure.measured_peaks import measure_ceilings

    found = measure_ceilings("cuda")
    known = DeviceCeilings(found.device, found)
    assert known.bandwidth.value == found.copy_tb_per_s
    assert found.matrix["bfloat16"].tflops > found.matrix["float32"].tflops
    assert 0 < found.launch_us["graph"] < found.launch_us["wall"]
