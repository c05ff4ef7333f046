from __future__ import annotations

import pytest

from pytest_kopt.bundled import bundled
from pytest_kopt.documents import load_yaml
from pytest_kopt.knowledge import routing
from pytest_kopt.knowledge.routing import match, route

ROOT = bundled("knowledge")
OPS = load_yaml(ROOT / "index.yaml")["ops"]


@pytest.mark.parametrize(
    ("op", "area"),
    [
        ("gemm_fp8_blockwise", "gemm"),
        ("grouped_gemm_fp8", "grouped_gemm"),
        ("moe_gemm", "grouped_gemm"),
        ("flash_attn_fwd", "attention"),
        ("add_rmsnorm", "normalisation"),
        ("softmax", "normalisation"),
        ("fp8_quant", "quantisation"),
        ("swiglu", "elementwise"),
        ("comm", None),  # `mm` inside a word is no word
        ("conv2d", None),
        ("topk", None),
    ],
)
def test_the_longest_run_of_words_names_the_area(op: str, area: str | None) -> None:
    assert match(op, OPS) == area


def test_attention_on_gfx950_in_flydsl_is_read_from_overview_to_isa() -> None:
    found = route("attention", "gfx950", "FLYDSL", "FLYDSL")
    assert [item.path for item in found.readings] == [
        "workflow/loop.md",
        "workflow/anti-overfitting.md",
        "ops/attention/overview.md",
        "hardware/overview.md",
        "hardware/gfx950/overview.md",
        "workflow/bottleneck-classification.md",
        "ops/attention/optimization-directions.md",
        "backend/flydsl/overview.md",
        "backend/flydsl/optimization-directions.md",
        "hardware/gfx950/kernel-implementation-notes.md",
        "workflow/profiling.md",
    ]
    assert found.gaps == ()


def test_the_language_serves_where_the_backend_has_no_pages() -> None:
    assert route("gemm", "gfx942", "CK", "HIP").backend == "HIP"
    assert route("gemm", "gfx942", "MINE", "HIP").backend == "HIP"


def test_every_page_of_a_route_is_there() -> None:
    for op in OPS:
        for gpu in ("gfx942", "gfx950", "sm_90", "sm_100"):
            found = route(op, gpu, "TRITON", "TRITON")
            assert found.gaps == ()
            assert all((ROOT / item.path).is_file() for item in found.readings)


def test_a_cpu_gets_no_directions_for_a_gpu() -> None:
    """A campaign of torch on a CPU was told to widen its accesses to 16 bytes a lane."""
    for op, backend in (("rms_scale", "TORCH"), ("gelu", "TRITON")):
        found = route(op, "cpu", backend, backend)
        assert found.op and found.untried([], 9) == []
        assert found.gaps == ("the directions are about GPUs, and none is proposed for a CPU",)


def test_what_is_not_covered_is_said_with_the_nearest_area() -> None:
    found = route("topk", "sm_80", "MOJO", "MOJO")
    op, gpu, backend = found.gaps
    assert "'topk' is not covered" in op and "nearest area is normalisation" in op
    assert "'sm_80' is not covered" in gpu and "`kopt calibrate --ceilings`" in gpu
    assert "'MOJO'" in backend
    assert [item.path.split("/")[0] for item in found.readings] == ["workflow"] * 4
    (alone,) = route("fft", "sm_90", "TRITON", "TRITON").gaps
    assert "no area is near it" in alone


def test_directions_are_read_with_their_five_lines() -> None:
    (page,) = routing.read(ROOT, ["ops/attention/optimization-directions.md"])
    assert page[0].id == "attention-01"
    for item in page:
        lines = (item.symptom, item.change, item.expected_effect, item.verify, item.risk)
        assert all(lines), item.id


def test_every_id_is_unique() -> None:
    pages = routing.read(
        ROOT, [str(p.relative_to(ROOT)) for p in ROOT.rglob("optimization-directions.md")]
    )
    ids = [item.id for page in pages for item in page]
    assert len(ids) == len(set(ids)) > 80


def test_untried_takes_page_after_page_and_leaves_out_what_a_note_names() -> None:
    found = route("attention", "gfx950", "FLYDSL", "FLYDSL")
    first = found.untried([], 4)
    assert [item.id for item in first] == ["attention-01", "flydsl-01", "attention-02", "flydsl-02"]
    left = found.untried(["we tried Attention-01 and flydsl-02"], 3)
    assert [item.id for item in left] == ["attention-02", "flydsl-01", "attention-03"]


def test_an_anti_pattern_is_never_proposed() -> None:
    path = "ops/quantisation/optimization-directions.md"
    assert any(item.is_anti_pattern for item in routing.read(ROOT, [path])[0])
    found = routing.Route(ROOT, (routing.Page(path, ""),), (), None, None, None)
    proposed = found.untried([], 99)
    assert proposed and not any(item.is_anti_pattern for item in proposed)
