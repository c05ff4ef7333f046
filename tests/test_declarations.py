"""What a pull request's cases declare less than its base's did."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.trials.pull_request.declarations import looser

CLOSE, FAR = "allclose(rtol=0.0001, atol=0.0001)", "allclose(rtol=0.01, atol=0.0001)"
GATES = {"out": CLOSE, "grad of input 0": CLOSE}


def declared(**changes: Any) -> CaseResult:
    given = {"gates": GATES, "drawn": "a", "dims": {"n": 1}, "weights": (1,), "domain": None}
    return CaseResult("t.py::test_it", evidence=CaseEvidence(**{**given, **changes}))


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ({}, {}, []),
        ({}, {"gates": {"out": CLOSE}}, ["does not check grad of input 0 any more"]),
        ({}, {"gates": {**GATES, "out": FAR}}, [f"accepts {FAR} for out, the base {CLOSE}"]),
        ({"gates": {"out": FAR}}, {"gates": {"out": CLOSE}}, []),
        ({}, {"gates": {**GATES, "out": "bitwise equal"}}, []),
        ({"gates": {"out": "SNR >= 25 dB"}}, {"gates": {"out": "SNR >= 40 dB"}}, []),
        (
            {"gates": {"out": "SNR >= 25 dB"}},
            {"gates": {"out": "SNR >= 20.5 dB"}},
            ["accepts SNR >= 20.5 dB for out, the base SNR >= 25 dB"],
        ),
        ({"domain": ("finite",)}, {}, []),
        (
            {"domain": ("finite",)},
            {"domain": ("finite", "contiguous"), "weights": (0, 1)},
            ["excludes contiguous by its domain", "declares input 0 a weight"],
        ),
        ({}, {"drawn": "b"}, ["draws other inputs"]),
        ({}, {"dims": {"n": 2}, "drawn": "b"}, ["has the dims {'n': 2}, at the base {'n': 1}"]),
    ],
)
def test_what_is_looser(then: dict[str, Any], now: dict[str, Any], said: list[str]) -> None:
    assert [*looser(declared(**then), declared(**now))] == said
