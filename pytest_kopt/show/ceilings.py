"""Measured ceilings as text, beside the documented peaks that bound them."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.knowledge.ceilings import Ceiling, Ceilings, Measured


def lines(measured: Measured, known: Ceilings) -> Iterator[str]:
    """Yield what was measured, each with its share of the documented peak where that is known."""
    versions = ", ".join(f"{name} {text}" for name, text in measured.versions.items())
    yield f"{measured.device}, {measured.measured} ({versions})"
    yield f"copy bandwidth: {measured.copy_tb_per_s:.4g} TB/s{_share(known.bandwidth)}"
    for point in measured.sweep:
        yield f"  {point.nbytes >> 10} KiB: {point.tb_per_s:.4g} TB/s"
    for dtype, found in measured.matrix.items():
        share = _share(known.rate(dtype))
        yield f"matrix rate {dtype}: {found.tflops:.4g} TFLOPS at {found.size}{share}"
    for engine, launch in measured.launch_us.items():
        yield f"launch overhead ({engine}): {launch:.2f} us"
    for dtype, why in measured.skipped.items():
        yield f"no matrix rate for {dtype}: {why}"


def _share(found: Ceiling) -> str:
    if found.documented is None or found.value is None:
        return ""
    return f", {found.value / found.documented * 100:.1f} % of the documented peak"
