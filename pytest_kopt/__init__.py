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
    from pytest_kopt.cases.running.gate_advice import propose_gate
    from pytest_kopt.cases.skew import skewed_groups
    from pytest_kopt.numerics.compare import assert_matches, assert_snr
    from pytest_kopt.numerics.determinism import assert_deterministic
    from pytest_kopt.numerics.gates import bitwise, get_tolerances, snr, tolerance
    from pytest_kopt.numerics.snr import compute_snr
    from pytest_kopt.schema.profile import Column, Schema

_ROOMS = {
    "Frames": "analysis.frames",
    "load": "analysis.frames",
    "Kopt": "cases.fixture",
    "Measurement": "cases.fixture",
    "skewed_groups": "cases.skew",
    "assert_matches": "numerics.compare",
    "assert_snr": "numerics.compare",
    "assert_deterministic": "numerics.determinism",
    "bitwise": "numerics.gates",
    "get_tolerances": "numerics.gates",
    "snr": "numerics.gates",
    "tolerance": "numerics.gates",
    "propose_gate": "cases.running.gate_advice",
    "compute_snr": "numerics.snr",
    "Column": "schema.profile",
    "Schema": "schema.profile",
}

__all__ = [
    "Column",
    "Frames",
    "Kopt",
    "Measurement",
    "Schema",
    "assert_deterministic",
    "assert_matches",
    "assert_snr",
    "bitwise",
    "compute_snr",
    "get_tolerances",
    "load",
    "propose_gate",
    "skewed_groups",
    "snr",
    "tolerance",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
