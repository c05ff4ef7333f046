from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

import pytest

from pytest_kopt.bundled import bundled
from pytest_kopt.campaign.manifest import ARCHITECTURES
from pytest_kopt.knowledge.facts import Product, fact_of, product_of, products_of

ROOT = bundled("knowledge")
SPECIFIED = [path.parent.name for path in sorted(ROOT.glob("hardware/*/spec.yaml"))]
#: Where AMD and NVIDIA publish; a reseller's copy is no source.
VENDORS = (
    *("amd.com", "nvidia.com", "github.com", "nvdam.widen.net"),  # nvdam is NVIDIA's own store
)


def test_a_fact_is_cited_with_its_place() -> None:
    fact = fact_of("hbm_bandwidth", "sm_90", "H200")
    assert fact.citation() == (
        "hbm_bandwidth: 4.8 TB/s <- knowledge/hardware/sm_90/spec.yaml:H200.hbm_bandwidth"
    )


@pytest.mark.parametrize(
    ("metric", "product"),
    [("l2_size", "H20"), ("hbm_bandwidth", "H20"), ("no_such_metric", None), ("l2_size", "H999")],
)
def test_what_the_files_do_not_know_is_unknown(metric: str, product: str | None) -> None:
    fact = fact_of(metric, "sm_90", product)
    assert fact.value is None
    assert f"{metric}: UNKNOWN <- knowledge/hardware/sm_90/spec.yaml" in fact.citation()


def test_an_architecture_without_a_file_knows_nothing() -> None:
    assert fact_of("warp_size", "sm_80").value is None


def test_only_the_whole_name_of_a_device_is_a_product() -> None:
    assert product_of("NVIDIA H200") == Product("sm_90", "H200")
    assert product_of("AMD Instinct MI300X") == Product("gfx942", "MI300X")
    for sister in ("NVIDIA H20-3e", "NVIDIA L40", "NVIDIA GH200 480GB", "NVIDIA H2", "cpu"):
        assert product_of(sister) is None


@pytest.mark.parametrize(
    ("device", "product"),
    [
        ("AMD Instinct MI300X VF", Product("gfx942", "MI300X")),
        ("AMD Instinct MI350X VF", Product("gfx950", "MI350X")),
        ("AMD Instinct MI325 OAM", Product("gfx942", "MI325X")),
        ("NVIDIA H100 PCIe", Product("sm_90", "H100_PCIE")),
        ("NVIDIA H100 NVL", Product("sm_90", "H100_NVL")),
        ("NVIDIA H200 NVL", Product("sm_90", "H200_NVL")),
        ("NVIDIA GB200", Product("sm_100", "GB200")),
        ("NVIDIA A100-SXM4-80GB", Product("sm_80", "A100")),
        ("NVIDIA L40S", Product("sm_89", "L40S")),
    ],
)
def test_a_device_is_known_by_the_name_that_it_gives_itself(device: str, product: Product) -> None:
    assert product_of(device) == product
    for metric in ("hbm_bandwidth", "matrix_peak_bf16_dense"):
        assert fact_of(metric, *product).value


@pytest.mark.parametrize(
    ("product", "units", "flops"),
    [
        *((name, 132, 4096) for name in ("H100", "H200", "H100_NVL", "H200_NVL")),
        ("H100_PCIE", 114, 4096),
        ("A100", 108, 2048),
    ],
)
def test_a_peak_is_what_its_units_do_at_its_clock(product: str, units: int, flops: int) -> None:
    architecture = ARCHITECTURES[product]
    peak = fact_of("matrix_peak_bf16_dense", architecture, product)
    assert peak.value and peak.clock_mhz
    assert peak.value == pytest.approx(units * flops * peak.clock_mhz / 1e6, rel=0.002)
    assert fact_of("sm_count", architecture, product).value == units
    highest = fact_of("highest_clock", architecture, product).value
    assert highest and highest >= peak.clock_mhz


def test_the_index_and_the_manifest_agree_on_architectures() -> None:
    known = {product: arch for arch in SPECIFIED for product in products_of(arch)}
    assert known.items() <= ARCHITECTURES.items()


def test_every_spec_file_is_answered_from() -> None:
    for architecture in SPECIFIED:
        for product in products_of(architecture):
            assert fact_of("hbm_bandwidth", architecture, product).unit == "TB/s"


@pytest.mark.parametrize("path", sorted(ROOT.glob("hardware/*/spec.yaml")), ids=str)
def test_sources_are_the_vendors_own(path: Path) -> None:
    hosts = {
        urlparse(line.split('"')[1]).hostname or ""
        for line in path.read_text().splitlines()
        if line.strip().startswith("url:")
    }
    strange = [h for h in hosts if not any(f".{h}".endswith(f".{v}") for v in VENDORS)]
    assert strange == []
