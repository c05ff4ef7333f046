"""pytest-kopt: GPU-kernel optimisation campaigns in pytest, from measuring to keep or roll back.

The helpers below are imported when first used: importing this package costs nothing, and torch is
only loaded by those who compare tensors, pandas by those who load a campaign.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_kopt.analysis.frames import Frames, load
    from pytest_kopt.cases.fixture import Kopt, Measurement
    from pytest_kopt.cases.skew import skewed_groups
    from pytest_kopt.errors import BadInput, CannotFinish
    from pytest_kopt.numerics.compare import assert_matches, assert_snr, compute_snr
    from pytest_kopt.numerics.gates import bitwise, get_tolerances, snr, tolerance
    from pytest_kopt.numerics.nested import assert_deterministic
    from pytest_kopt.recording.recorded_cases import RecordedCase, recorded
    from pytest_kopt.recording.recorder import record
    from pytest_kopt.schema.columns import Column, Schema
    from pytest_kopt.standalone.two_versions import compare

_ROOMS = {
    "analysis.frames": ("Frames", "load"),
    "cases.fixture": ("Kopt", "Measurement"),
    "cases.skew": ("skewed_groups",),
    "errors": ("BadInput", "CannotFinish"),
    "numerics.compare": ("assert_matches", "assert_snr", "compute_snr"),
    "numerics.nested": ("assert_deterministic",),
    "numerics.gates": ("bitwise", "get_tolerances", "snr", "tolerance"),
    "recording.recorded_cases": ("RecordedCase", "recorded"),
    "recording.recorder": ("record",),
    "schema.columns": ("Column", "Schema"),
    "standalone.two_versions": ("compare",),
}

__all__ = [
    "BadInput",
    "CannotFinish",
    "Column",
    "Frames",
    "Kopt",
    "Measurement",
    "RecordedCase",
    "Schema",
    "assert_deterministic",
    "assert_matches",
    "assert_snr",
    "bitwise",
    "compare",
    "compute_snr",
    "get_tolerances",
    "load",
    "record",
    "recorded",
    "skewed_groups",
    "snr",
    "tolerance",
]


def __getattr__(name: str) -> Any:
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
