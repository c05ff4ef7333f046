"""Profiles, rooflines and measured ceilings, as files and in the terminal."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from pytest_kopt import models
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.figures import figure, in_unit, rounded
from pytest_kopt.knowledge.facts import Ceiling, DeviceCeilings, MeasuredCeiling
from pytest_kopt.profiling.kernel_table import OCCUPIED, CaseProfile, KernelRow
from pytest_kopt.roofline import Roofline, efficiency
from pytest_kopt.schema.table import write_atomically
from pytest_kopt.show.lines import Line
from pytest_kopt.show.words import (
    LABEL,
    TextColumn,
    clipped,
    markdown_table,
    rows,
    text_table,
    with_text,
)

#: Columns of a label: with the others the table fits 80.
_LABEL_WIDTH = 24
PROFILE_VERSION = 1


def roofline_lines(rooflines: Sequence[Roofline], verbosity: int = 0) -> Iterator[str]:
    """Yield a table of 80 columns, with `-v` of every figure, or of what it takes to have one."""
    if any(line.bound != "UNKNOWN" for line in rooflines):
        columns = (*_SHORT, *_LONG) if verbosity > 0 else _SHORT
        table = text_table(rows(rooflines, *columns))
        yield from ("", *(Line(row, whole=True) for row in table))
        yield from filter(None, (line.over_declared for line in rooflines))
        yield f"hardware efficiency (T2): {efficiency(rooflines).why}"
    elif rooflines and verbosity > 0:
        yield f"roofline: UNKNOWN: {why_unknown(rooflines)}"


def why_unknown(rooflines: Sequence[Roofline]) -> str:
    """Return which half of a roofline is missing: the work of the cases, or the device's peaks."""
    if not any(line.flops or line.nbytes for line in rooflines):
        return "no case declares its work; give flops= or nbytes= to kopt()"
    names = sorted({text.partition(":")[0] for line in rooflines for text in line.unknown})
    return f"the peaks {', '.join(names)} are not known; run `kopt calibrate --ceilings`"


def _target(heading: str, place: int) -> TextColumn:
    """Return a column of the target, of which a line has three; "-" without such work."""

    def cell(line: Roofline) -> str:
        missing = "UNKNOWN" if line.bound == "UNKNOWN" else "-"
        number = line.targets[place]
        return missing if number is None else rounded(number)

    return TextColumn(heading, written=cell)


def _attainable(line: Roofline) -> str:
    return "UNKNOWN" if line.attainable is None else in_unit(line.attainable, line.unit)


def _share(pct: float | None) -> str:
    return in_unit(pct, "%")


_BOUND = TextColumn("Bound", "bound")
_INTENSITY = TextColumn("FLOP/byte", "intensity", figure)
_RIDGE = TextColumn("Ridge", "ridge", figure)
_RATES = (
    _BOUND,
    TextColumn("Attainable", written=_attainable),
    TextColumn("Achieved", "achieved", figure),
    TextColumn("Share", "achieved_pct", _share),
)
#: In the terminal, and further ones with `-v`.
_SHORT = (
    TextColumn("Roofline", "label", functools.partial(clipped, room=_LABEL_WIDTH)),
    TextColumn("", "way", {"forward": "fwd", "backward": "bwd"}.__getitem__),
    *_RATES,
)
_LONG = (_INTENSITY, _RIDGE, TextColumn("Target", "target", figure))
_OF_CASE = (LABEL, TextColumn("Direction", "way"))
#: In README.md: rates to reach, and time.
TARGETS = (
    *(*_OF_CASE, _BOUND),
    *map(_target, ("TFLOPS, at least", "GB/s, at least", "µs, at most"), range(3)),
)
#: In the report, and in baseline.md.
DRAWN = (*_OF_CASE, _INTENSITY, *_RATES)
REACHED = (*_OF_CASE, _INTENSITY, _RIDGE, *_RATES)
#: Of a profile's kernels.
_LAUNCHES = (
    TextColumn("Kernel", "kernel"),
    TextColumn("Calls", "calls"),
    TextColumn("Mean (us)", "mean_us", figure),
)
_OCCUPIED = (
    *map(TextColumn, ("Registers", "Accum", "Scalar", "Shared (B)"), OCCUPIED),
    TextColumn("Occupancy", "occupancy_pct", lambda pct: "" if pct is None else _share(pct)),
)


def ceiling_lines(measured: MeasuredCeiling, documented: DeviceCeilings) -> Iterator[str]:
    """Yield what was measured, each with its share of the documented peak where that is known."""
    versions = ", ".join(f"{name} {text}" for name, text in measured.versions.items())
    yield f"{measured.device}, {measured.measured} ({versions})"
    copied, bandwidth = in_unit(measured.copy_tb_per_s, "TB/s"), documented.bandwidth
    yield f"copy bandwidth: {copied}{_of_documented(bandwidth)}"
    for point in measured.sweep:
        yield f"  {point.nbytes >> 10} KiB: {in_unit(point.tb_per_s, 'TB/s')}"
    for dtype, rate in measured.matrix.items():
        share = _of_documented(documented.rate(dtype))
        yield f"matrix rate {dtype}: {in_unit(rate.tflops, 'TFLOPS')} at {rate.size}{share}"
    for engine, launch in measured.launch_us.items():
        yield f"launch overhead ({engine}): {in_unit(launch, 'us')}"
    for dtype, why in measured.skipped.items():
        yield f"no matrix rate for {dtype}: {why}"


def _of_documented(ceiling: Ceiling) -> str:
    if ceiling.documented is None or ceiling.value is None:
        return ""
    return f", {_share(ceiling.value / ceiling.documented * 100)} of the documented peak"


def write_profiles(
    layout: Layout, number: int, attempt: int, profiles: Sequence[CaseProfile]
) -> None:
    base = layout.profiles / f"round-{number}"
    document = {
        "schema_version": PROFILE_VERSION,
        "round": number,
        "attempt": attempt,
        "profiles": [asdict(profile) for profile in profiles],
    }
    write_atomically(base / f"attempt-{attempt}.json", json.dumps(document, indent=1) + "\n")
    page = f"# Profile of round-{number}, attempt {attempt}\n{page_of(profiles)}"
    write_atomically(base / f"attempt-{attempt}.md", page)


def read_profiles(layout: Layout, number: int, attempt: int) -> list[CaseProfile]:
    """Return an attempt's profiles, none when it was not profiled."""
    path = layout.profiles / f"round-{number}" / f"attempt-{attempt}.json"
    if not path.is_file():
        return []
    return [
        models.read(CaseProfile, profile)
        for profile in json.loads(path.read_text(encoding="utf-8"))["profiles"]
    ]


def page_of(profiles: Sequence[CaseProfile]) -> str:
    parts = []
    for profile in profiles:
        parts.append(f"\n## {profile.label} ({profile.tool})\n")
        if profile.hottest is None:
            parts.append(f"Nothing: {profile.note}\n")
            continue
        times = "GPU kernel time" if profile.on == "gpu" else "CPU operator time"
        step = in_unit(profile.step_us, "us")
        parts.append(f"{times}: {step} a step; hottest: `{profile.hottest.kernel}`\n")
        parts.append(f"{_kernels(profile)}\n")
    return "\n".join(parts)


def _kernels(profile: CaseProfile) -> str:
    share = TextColumn("Share", written=lambda row: _share(profile.share_pct(row)))
    return markdown_table(with_text(rows(profile.rows, *_LAUNCHES, share, *_OCCUPIED)))


def profile_lines(profiles: Sequence[CaseProfile]) -> Iterator[str]:
    """Yield one line a case and tool: the hottest kernel, or why there is none."""
    for profile in profiles:
        hot = profile.hottest
        if hot is None:
            yield f"profile {profile.label} ({profile.tool}): {profile.note.splitlines()[0]}"
            continue
        yield (
            f"profile {profile.label} ({profile.tool}): {launched(hot, 50)}, "
            f"{_share(profile.share_pct(hot))} of {in_unit(profile.step_us, 'us')} a step"
        )


def launched(row: KernelRow, room: int | None = None) -> str:
    """Return a kernel's name, as long as there is room, with its launches and their mean time."""
    return f"{row.kernel[:room]} {in_unit(row.mean_us, 'us')} x {row.calls}"
