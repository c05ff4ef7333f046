from __future__ import annotations

import pytest

from pytest_kopt.bundled import bundled
from pytest_kopt.documents import load_yaml
from pytest_kopt.knowledge.routing import match, read, route, untried

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


def test_attention_on_gfx950_in_flydsl_is_read_from_workflow_to_language() -> None:
    pages, gaps = route("attention", "gfx950", "FLYDSL", "FLYDSL")
    assert gaps == []
    assert pages[4:] == [
        "ops/attention/overview.md",
        "ops/attention/optimization-directions.md",
        "hardware/overview.md",
        "hardware/gfx950/overview.md",
        "hardware/gfx950/kernel-implementation-notes.md",
        "backend/flydsl/overview.md",
        "backend/flydsl/optimization-directions.md",
    ]
    assert [page.split("/")[0] for page in pages[:4]] == ["workflow"] * 4


@pytest.mark.parametrize("backend", ["CK", "MINE"])
def test_the_language_serves_where_the_backend_has_no_pages(backend: str) -> None:
    assert "backend/hip_ck/overview.md" in route("gemm", "gfx942", backend, "HIP")[0]


def test_every_page_of_a_route_is_there() -> None:
    for op in OPS:
        for gpu in ("gfx942", "gfx950", "sm_90", "sm_100"):
            pages, gaps = route(op, gpu, "TRITON", "TRITON")
            assert gaps == []
            assert all((ROOT / page).is_file() for page in pages)


def test_a_cpu_gets_no_directions_for_a_gpu() -> None:
    """A campaign of torch on a CPU was told to widen its accesses to 16 bytes a lane."""
    for op, backend in (("rms_scale", "TORCH"), ("gelu", "TRITON")):
        pages, gaps = route(op, "cpu", backend, backend)
        assert len(pages) == 5 and untried(pages, [], 9) == []
        assert gaps == ["the directions are about GPUs, and none is proposed for a CPU"]


def test_what_has_no_pages_is_said() -> None:
    pages, (op, gpu, backend) = route("topk", "sm_80", "MOJO", "MOJO")
    assert op.startswith("op topk has no pages (gemm, ")
    # A table of facts is no page.
    assert "GPU sm_80 has no pages (" in gpu and "sm_80" not in gpu.partition("(")[2]
    assert "MOJO (MOJO)" in backend
    assert [page.split("/")[0] for page in pages] == ["workflow"] * 4


PAGES = [str(path.relative_to(ROOT)) for path in ROOT.rglob("optimization-directions.md")]
LINES = ("Symptom", "Change", "Expected effect", "Verify", "Risk")


def test_every_direction_has_an_id_of_its_own_and_five_lines() -> None:
    ways = [way for page in PAGES for way in read(page)]
    assert len({way.id for way in ways}) == len(ways) > 60 and all(way.change for way in ways)
    for page in PAGES:
        text, count = (ROOT / page).read_text(), len(read(page))
        assert all(text.count(f"\n- {line}: ") == count for line in LINES), page


def test_untried_takes_page_after_page_and_leaves_out_what_a_note_names() -> None:
    pages, _ = route("attention", "gfx950", "FLYDSL", "FLYDSL")
    first = untried(pages, [], 4)
    assert [item.id for item in first] == ["attention-01", "flydsl-01", "attention-02", "flydsl-02"]
    left = untried(pages, ["we tried Attention-01 and flydsl-02"], 3)
    assert [item.id for item in left] == ["attention-02", "flydsl-01", "attention-03"]


def test_an_anti_pattern_is_never_proposed() -> None:
    path = "ops/quantisation/optimization-directions.md"
    assert any(item.is_anti_pattern for item in read(path))
    proposed = untried([path], [], 99)
    assert proposed and not any(item.is_anti_pattern for item in proposed)
