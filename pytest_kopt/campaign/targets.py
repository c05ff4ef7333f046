"""What a manifest may aim at: GPUs, languages, performance targets."""

from __future__ import annotations

import re
from dataclasses import dataclass

ARCHITECTURES = {
    **dict.fromkeys(("H20", "H100", "H200"), "sm_90"),
    "B200": "sm_100",
    **dict.fromkeys(("MI300X", "MI308X", "MI325X"), "gfx942"),
    **dict.fromkeys(("MI350X", "MI355X"), "gfx950"),
}
LANGUAGES = {
    "TRITON": "TRITON",
    **dict.fromkeys(("CK", "HIPBLASLT", "TURBO"), "HIP"),
    **{name: name for name in ("FLYDSL", "TORCH")},
}
_ARCHITECTURE = re.compile(r"cpu|sm_\d{2,3}a?|gfx[0-9a-f]{3,5}")
EFFICIENCY = "% peak efficiency"
#: What a unit measures, and how many of the smallest one it is.
_SCALES = {
    "TFLOPS": ("work", 1.0),
    "GB/s": ("traffic", 1.0),
    "TB/s": ("traffic", 1e3),
    "us": ("time", 1.0),
    "µs": ("time", 1.0),
    "ms": ("time", 1e3),
}
_TARGET = re.compile(r"\s*([<>])\s*(\d+(?:\.\d+)?)\s*(TFLOPS|TB/s|GB/s|ms|us|% peak efficiency)\s*")


@dataclass(frozen=True, slots=True)
class PerformanceTarget:
    """A parsed `performance_target`: rates and efficiencies are floors, times are ceilings."""

    above: bool
    number: float
    unit: str

    def __str__(self) -> str:
        gap = "" if self.unit.startswith("%") else " "
        return f"{'>' if self.above else '<'}{self.number:g}{gap}{self.unit}"

    @property
    def is_efficiency(self) -> bool:
        return self.unit == EFFICIENCY

    def is_reached_by(self, figure: float) -> bool:
        return figure > self.number if self.above else figure < self.number

    def in_its_unit(self, metric: str, figure: float) -> float | None:
        """Return a metric's figure in the target's unit, None where the metric has another.

        A metric's name tells its unit: `Forward GB/s`, `Combined Step TFLOPS`, `Time (ms)`.
        """
        words = {word.strip("()") for part in metric.split("_") for word in part.split()}
        for unit, (kind, scale) in _SCALES.items():
            target_kind, target_scale = _SCALES.get(self.unit, ("", 1.0))
            if unit in words and kind == target_kind:
                return figure * scale / target_scale
        return None


def architecture(gpu: str) -> str:
    """Return the architecture of a platform or architecture name; ValueError for another."""
    found = ARCHITECTURES.get(gpu.upper(), gpu.lower())
    if not _ARCHITECTURE.fullmatch(found):
        raise ValueError(
            f"cpu, an architecture (sm_90, gfx942) or one of {', '.join(ARCHITECTURES)}"
        )
    return found


def language(backend: str) -> str | None:
    """Return the language that follows from a backend, None where it has to be given."""
    return LANGUAGES.get(backend.upper())


def parse_target(text: str) -> PerformanceTarget:
    """Parse `>500 TFLOPS`, `>60% peak efficiency`, `<12 us`; ValueError for anything else."""
    legal = "'>500 TFLOPS', '>60% peak efficiency', '>3 TB/s', '<12 us' or null"
    found = _TARGET.fullmatch(text.replace("%peak", "% peak"))
    if not found:
        raise ValueError(legal)
    sign, number, unit = found.groups()
    if (sign == "<") != (unit in ("ms", "us")):
        raise ValueError(f"{legal}; more is better for rates, less for times")
    return PerformanceTarget(sign == ">", float(number), unit)
