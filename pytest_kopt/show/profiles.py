"""Profiles as files below `profiles/round-N/`, and the hottest kernels in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from pytest_kopt import wire
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.profiling.kernel_table import OCCUPIED, CaseProfile, KernelRow
from pytest_kopt.schema.table import write_atomically
from pytest_kopt.show.words import markdown_table

PROFILE_VERSION = 1


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
    return [wire.read(CaseProfile, profile) for profile in json.loads(path.read_text())["profiles"]]


def page_of(profiles: Sequence[CaseProfile]) -> str:
    parts = []
    for profile in profiles:
        parts.append(f"\n## {profile.label} ({profile.tool})\n")
        if profile.hottest is None:
            parts.append(f"Nothing: {profile.note}\n")
            continue
        times = "GPU kernel time" if profile.on == "gpu" else "CPU operator time"
        parts.append(
            f"{times}: {profile.step_us:.3f} us a step; hottest: `{profile.hottest.kernel}`\n"
        )
        rows = [_row(profile, row) for row in profile.rows]
        headings = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
        parts.append(markdown_table({name: row[name] for name in headings} for row in rows) + "\n")
    return "\n".join(parts)


def profile_lines(profiles: Sequence[CaseProfile]) -> Iterator[str]:
    """Yield one line a case and tool: the hottest kernel, or why there is none."""
    for profile in profiles:
        hot = profile.hottest
        if hot is None:
            yield f"profile {profile.label} ({profile.tool}): {profile.note.splitlines()[0]}"
            continue
        yield (
            f"profile {profile.label} ({profile.tool}): {hot.kernel[:50]} {hot.mean_us:.2f} us x "
            f"{hot.calls}, {profile.share_pct(hot):.0f} % of {profile.step_us:.2f} us a step"
        )


def _row(profile: CaseProfile, row: KernelRow) -> dict[str, str]:
    occupied = (getattr(row, name) for name in OCCUPIED)
    cells = ("-" if count is None else str(count) for count in occupied)
    return {
        "Kernel": row.kernel,
        "Calls": str(row.calls),
        "Mean (us)": f"{row.mean_us:.3f}",
        "Share": f"{profile.share_pct(row):.1f} %",
        **dict(zip(("Registers", "Accum", "Scalar", "Shared (B)"), cells, strict=True)),
        "Occupancy (%)": "-" if row.occupancy_pct is None else f"{row.occupancy_pct:.1f}",
    }
