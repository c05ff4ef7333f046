"""The ceilings of a device: measured ones where there are any, documented peaks otherwise.

A documented peak bounds what may be measured; a metric without either is UNKNOWN and blocks what
depends on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pytest_kopt.documents import dump_yaml, load_yaml, validate
from pytest_kopt.errors import BadInput
from pytest_kopt.knowledge.facts import Facts
from pytest_kopt.models import Document
from pytest_kopt.schema.table import write_atomically

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

    `value` is in TB/s or TFLOPS and None when UNKNOWN. `documented` is the vendor's peak, a bound
    that nothing can pass, None when no document tells it.
    """

    value: float | None
    documented: float | None
    source: str


class DeviceCeilings:
    """The known ceilings of one device, by its own name.

    Raises BadInput when a measured ceiling lies above the documented peak.
    """

    def __init__(self, device: str, measured: MeasuredCeiling | None, facts: Facts) -> None:
        self._device, self._measured, self._facts = device, measured, facts
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
        if product := self._facts.product(self._device):
            facts = [self._facts.fact(name, *product) for name in names]
            fact = next((fact for fact in facts if fact.value is not None), facts[0])
            metric, documented, cited = fact.metric, fact.value, fact.citation()
        if measured is None:
            return Ceiling(documented, documented, cited)
        if documented is not None and measured > documented:
            what = (
                f"{metric} was measured as {measured:g} {unit}, above the documented peak: {cited}"
            )
            legal = "a peak bounds every measurement; measure again with `kopt calibrate`"
            raise BadInput(what, where=f"ceilings of {self._device}", legal=legal)
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
    return DeviceCeilings(device, load(workspace, device), Facts())
