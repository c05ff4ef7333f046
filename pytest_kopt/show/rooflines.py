"""Rooflines and measured ceilings as text, and one line on hardware efficiency (T2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tabulate import tabulate

from pytest_kopt.figures import figure
from pytest_kopt.knowledge.ceilings import Ceiling, Ceilings, Measured
from pytest_kopt.roofline import Roofline, efficiency
from pytest_kopt.show.words import clipped

#: Columns of a label: with the others the table fits 80.
_LABEL_WIDTH = 24


def roofline_lines(rooflines: Sequence[Roofline], verbosity: int = 0) -> Iterator[str]:
    """Yield a table of 80 columns, with `-v` of every figure; one line if no bound is known."""
    if not rooflines:
        return
    blocked = sorted({text for item in rooflines for text in item.unknown})
    if any(item.bound != "UNKNOWN" for item in rooflines):
        rows = [_row(item) for item in rooflines]
        if verbosity > 0:
            rows = [row | _details(item) for row, item in zip(rows, rooflines, strict=True)]
        table = tabulate(rows, headers="keys", disable_numparse=True)
        yield from ("", *table.splitlines())
        yield from filter(None, (item.over_declared for item in rooflines))
        yield f"hardware efficiency (T2): {efficiency(rooflines).why}"
    elif blocked:
        names = ", ".join(text.partition(":")[0] for text in blocked)
        yield f"roofline: UNKNOWN until `kopt calibrate --ceilings` measures {names}"


def target_cells(item: Roofline, *headings: str) -> dict[str, str]:
    """Return a case's target as TFLOPS, GB/s and microseconds; "-" without such work."""
    missing = "UNKNOWN" if item.bound == "UNKNOWN" else "-"
    cells = (missing if number is None else f"{number:.4g}" for number in item.targets)
    return dict(zip(headings, cells, strict=True))


def share_of(item: Roofline) -> str:
    return "-" if item.achieved_pct is None else f"{item.achieved_pct:.1f} %"


def _row(item: Roofline) -> dict[str, str]:
    return {
        "roofline": clipped(item.label, _LABEL_WIDTH),
        "": {"forward": "fwd", "backward": "bwd"}[item.way],
        "bound": item.bound,
        "attainable": "UNKNOWN"
        if item.attainable is None
        else f"{figure(item.attainable)} {item.unit}",
        "achieved": figure(item.achieved),
        "share": share_of(item),
    }


def _details(item: Roofline) -> dict[str, str]:
    return {
        "FLOP/B": "-" if item.intensity is None else f"{item.intensity:.1f}",
        "ridge": "-" if item.ridge is None else f"{item.ridge:.1f}",
        "target": figure(item.target),
    }


def ceiling_lines(measured: Measured, known: Ceilings) -> Iterator[str]:
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
