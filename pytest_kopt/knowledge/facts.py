"""Hardware facts, from the files of `knowledge/hardware` alone, and the ceilings of a device.

A documented peak, at the highest clock of the device, bounds what may be measured. A metric without
a measured or documented value is UNKNOWN, and blocks what depends on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from pytest_kopt.bundled import bundled
from pytest_kopt.documents import dump_yaml, load_yaml, validate
from pytest_kopt.errors import BadInput
from pytest_kopt.models import Document
from pytest_kopt.schema.table import write_atomically

UNKNOWN = "UNKNOWN"
_TOP = "knowledge"
#: The documented peak of an input dtype, by torch's name of it: the first that a document tells.
_PEAKS = {
    "float4_e2m1fn_x2": "matrix_peak_fp4_dense matrix_peak_mxfp4_dense",
    "bfloat16": "matrix_peak_bf16_dense",
    "float16": "matrix_peak_fp16_dense",
    "float8_e4m3fn": "matrix_peak_fp8_dense",
    "float8_e4m3fnuz": "matrix_peak_fp8_dense",
    "float8_e5m2": "matrix_peak_fp8_dense",
    "float8_e5m2fnuz": "matrix_peak_fp8_dense",
    "int8": "matrix_peak_int8_dense",
    "tf32": "matrix_peak_tf32_dense",
    "float32": "vector_peak_fp32",
    "float64": "matrix_peak_fp64_dense",
}
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class Fact:
    """A spec file's value of a metric, at `path` and `key`; None where it has none.

    `clock_mhz` is the clock that a peak holds at, None where no document tells it.
    """

    metric: str
    value: float | None
    unit: str
    path: str
    key: str
    clock_mhz: float | None = None

    def citation(self) -> str:
        """Return `<metric>: <value> <unit> <- <path>:<key>`, UNKNOWN in the place of a value."""
        value = UNKNOWN if self.value is None else f"{self.value:g} {self.unit}"
        return f"{self.metric}: {value} <- {self.path}:{self.key}"


class Product(NamedTuple):
    """A product as the spec files know it: its architecture and its name there."""

    architecture: str
    name: str


@cache
def read_index() -> dict[str, Any]:
    """Read what the knowledge folder holds, once a process: it takes 25 ms."""
    return load_yaml(bundled(_TOP) / "index.yaml")


@cache
def _spec_file(architecture: str) -> dict[str, Any]:
    """Read a spec file once a process, without facts where there is none."""
    path = bundled(_TOP) / "hardware" / architecture / "spec.yaml"
    return load_yaml(path) if path.is_file() else {"specs": {}, "platforms": {}}


def _specs(architecture: str, product: str | None) -> dict[str, Any]:
    """Return what a spec file says of a product, or of all products of its architecture."""
    document = _spec_file(architecture)
    section = document if product is None else document["platforms"].get(product, {})
    specs: dict[str, Any] = section.get("specs", {})
    return specs


def product_of(device: str) -> Product | None:
    """Return the product behind its name or a device's own, `H200` or `NVIDIA H200`, or None.

    Only whole names count: a sister product's facts are no facts of this one.
    """
    for architecture, block in read_index()["hardware"].items():
        for name, devices in block["platforms"].items():
            if device == name or device in devices:
                return Product(architecture, name)
    return None


def products_of(architecture: str) -> list[str]:
    return [*_spec_file(architecture)["platforms"]]


def fact_of(metric: str, architecture: str, product: str | None = None) -> Fact:
    """Return what is known of a metric of a product, or of all products of an architecture."""
    key = f"{product}.{metric}" if product else metric
    path = f"{_TOP}/hardware/{architecture}/spec.yaml"
    entry = _specs(architecture, product).get(metric, {"value": UNKNOWN, "unit": ""})
    value = None if entry["value"] == UNKNOWN else float(entry["value"])
    return Fact(metric, value, entry["unit"], path, key, entry.get("clock_mhz"))


def facts_of(architecture: str, product: str | None = None) -> list[Fact]:
    """Return all facts of a product, known or UNKNOWN, or those that an architecture shares."""
    metrics = _specs(architecture, product)
    return [fact_of(metric, architecture, product) for metric in metrics]


def product_facts(gpu: str, model: str | None, device: str) -> tuple[str, list[Fact]]:
    """Return the facts of the very model that a campaign is about, with what they are the facts of.

    The model is the manifest's, else that of the device that measured the baseline. If only
    the architecture is known, its own facts are all: no sister product's peaks stand in.
    """
    product = product_of(model or device)
    if product is not None:
        return f"{product.name} ({product.architecture})", facts_of(*product)
    models = products_of(gpu)
    if not models or device or model:
        return f"{model or device or gpu} is in no spec file: its peaks are UNKNOWN", []
    return (
        f"only the architecture is known, and the peaks of {', '.join(models)} differ; name the "
        f"model (target_model: {models[0]}). All of {gpu} have",
        facts_of(gpu),
    )


class Copied(Document):
    """One point of the copy sweep: read + written bytes per second while `nbytes` are copied."""

    nbytes: Annotated[int, Field(gt=0)]
    tb_per_s: Positive


class Multiplied(Document):
    """The best rate of a square product of random matrices, and the size that reached it."""

    tflops: Positive
    size: Annotated[int, Field(gt=0)]


class MeasuredCeiling(Document):
    """A file of measured ceilings.

    `copy_tb_per_s` is the ceiling beyond every cache, `sweep` what smaller copies reached. Launch
    overhead is in microseconds per launch, by timing engine.
    """

    schema_version: Literal[1] = 1
    device: Annotated[str, Field(min_length=1)]
    kind: Literal["cpu", "gpu"]
    measured: str
    versions: dict[str, str]
    copy_tb_per_s: Positive
    sweep: list[Copied]
    matrix: dict[str, Multiplied]
    launch_us: dict[str, Positive]
    skipped: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One ceiling: the value to work with, and where it stands.

    `value` is in TB/s or TFLOPS and None when UNKNOWN. `documented` is the vendor's peak, None when
    no document tells it. It may hold at a clock below the highest, so a light load can pass it.
    """

    value: float | None
    documented: float | None
    source: str


class DeviceCeilings:
    """The known ceilings of one device, by its own name.

    Raises BadInput when a measured ceiling lies above the documented peak at the highest clock.
    """

    def __init__(self, device: str, measured: MeasuredCeiling | None) -> None:
        self._device, self._measured = device, measured
        self.launch_us = measured.launch_us if measured else {}
        rates = {dtype: rate.tflops for dtype, rate in measured.matrix.items()} if measured else {}
        copied = measured.copy_tb_per_s if measured else None
        self.bandwidth = self._ceiling("hbm_bandwidth", copied, "TB/s")
        self._matrix = {
            dtype: self._ceiling(metrics, rates.get(dtype), "TFLOPS")
            for dtype, metrics in _PEAKS.items()
        }

    def _ceiling(self, metrics: str, measured: float | None, unit: str) -> Ceiling:
        metric, *_ = names = metrics.split()
        documented, cited = None, f"{metric}: UNKNOWN ({self._device} is in no spec file)"
        bound = None
        if product := product_of(self._device):
            facts = [fact_of(name, *product) for name in names]
            fact = next((fact for fact in facts if fact.value is not None), facts[0])
            metric, documented, cited = fact.metric, fact.value, fact.citation()
            bound = documented
            highest = fact_of("highest_clock", *product).value
            if documented and fact.clock_mhz and highest and highest > fact.clock_mhz:
                # An H100 multiplies at 1980 MHz while its power allows, its peak is of 1830 MHz.
                bound = documented * highest / fact.clock_mhz
                cited += f" (at {fact.clock_mhz:g} MHz; {bound:.4g} at the highest, {highest:g})"
        if measured is None:
            return Ceiling(bound, documented, cited)
        if bound is not None and measured > bound:
            what = (
                f"the measured {metric}, {measured:g} {unit}, exceeds the documented peak: {cited}"
            )
            fix = "kopt calibrate --ceilings"
            raise BadInput(what, where=f"ceilings of {self._device}", fix=fix)
        return Ceiling(measured, documented, f"{metric}: {measured:.4g} {unit} <- {self._origin}")

    @property
    def _origin(self) -> str:
        return f"measured {self._measured.measured} on {self._device}" if self._measured else ""

    def rate(self, dtype: str) -> Ceiling:
        """Return the ceiling of the FLOP rate on inputs of a dtype (torch's name of it)."""
        return self._matrix.get(dtype) or Ceiling(None, None, f"matrix rate of {dtype}: UNKNOWN")

    def bandwidth_for(self, nbytes: float) -> Ceiling:
        """Return the bandwidth ceiling for a call that moves `nbytes`.

        On a CPU inputs stay in cache between calls: it follows the size of what is copied.
        """
        beyond = self.bandwidth.value
        if self._measured is None or self._measured.kind != "cpu" or beyond is None:
            return self.bandwidth
        fitting = (point.tb_per_s for point in self._measured.sweep if 2 * point.nbytes >= nbytes)
        best = max(fitting, default=beyond)
        if best <= beyond:
            return self.bandwidth
        source = f"copy bandwidth within caches: {best:.4g} TB/s <- {self._origin}"
        return Ceiling(best, self.bandwidth.documented, source)


def path_of(workspace: Path, device: str) -> Path:
    slug = re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-").lower()
    return workspace / "ceilings" / f"{slug}.yaml"


def load(workspace: Path, device: str) -> MeasuredCeiling | None:
    path = path_of(workspace, device)
    return validate(MeasuredCeiling, load_yaml(path), where=str(path)) if path.is_file() else None


def save(workspace: Path, measured: MeasuredCeiling) -> Path:
    path = path_of(workspace, measured.device)
    write_atomically(path, dump_yaml(measured.model_dump(mode="json")))
    return path


def known(workspace: Path, device: str) -> DeviceCeilings:
    return DeviceCeilings(device, load(workspace, device))
