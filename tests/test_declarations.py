"""What a pull request's cases declare otherwise than its base's did."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_kopt import policies
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult, Check, Collector
from pytest_kopt.numerics.gates import Gate, bitwise, snr, tolerance
from pytest_kopt.trials.pull_request.own_rules import changed_cases, differences

PRIMUS = policies.load("primus")
CLOSE, FAR = tolerance(rtol=1e-4, atol=1e-4), tolerance(rtol=1e-2, atol=1e-4)
NEAR = "allclose(rtol=0.0001, atol=0.0001)"
GATES = {"out": CLOSE, "grad of input 0": CLOSE}


def declared(**changes: Any) -> CaseResult:
    given = {"tolerances": GATES, "drawn": "a", "dims": {"n": 1}, "weights": (1,), "domain": None}
    result = CaseResult("t.py::test_it", evidence=CaseEvidence(**{**given, **changes}))
    return CaseResult.from_json(result.to_json())


@pytest.mark.parametrize(
    ("then", "now", "looser"),
    [
        ({}, {}, []),
        ({}, {"tolerances": {"out": CLOSE}}, ["does not check grad of input 0 any more"]),
        (
            {},
            {"tolerances": {**GATES, "out": FAR}},
            [f"accepts allclose(rtol=0.01, atol=0.0001) for out, the base {NEAR}"],
        ),
        (
            {"tolerances": {"out": snr("e4m3")}},
            {"tolerances": {"out": snr(20.5)}},
            ["accepts SNR >= 20.5 dB for out, the base SNR >= 25 dB"],
        ),
        (
            {"domain": ("finite",)},
            {"domain": ("finite", "contiguous"), "weights": (0, 1)},
            ["excludes contiguous by its domain", "declares input 0 a weight"],
        ),
        (
            {"consumes": (2,), "writes": (0,)},
            {"consumes": (1, 2, "grad_out"), "writes": (0, 1)},
            [
                "lets input 1 hold results after a call (writes)",
                "lets input 1, grad_out hold anything after a call (consumes)",
            ],
        ),
        ({}, {"nan": "equal"}, ["declares nan='equal', the base None"]),
        ({"deterministic": True}, {}, ["declares deterministic=False, the base True"]),
        ({"batch_invariant": True}, {}, ["declares batch_invariant=False, the base True"]),
        (
            {"groups": {"even": (4, 4)}, "group_multiple": 16},
            {"group_multiple": 48},
            [
                "draws group sizes in multiples of 48, the base of 16",
                "draws no other group sizes",
            ],
        ),
        (
            {"flops": (2.0, 4.0)},
            {"flops": (2.0, 3.0)},
            ["declares flops=(2.0, 3.0), the base (2.0, 4.0)"],
        ),
        ({"limit_pct": 2.0}, {}, ["may be slower by 5 %, at the base by 2 %"]),
        ({}, {"limit_pct": 8.0}, ["may be slower by 8 %, at the base by 5 %"]),
        ({}, {"limit_us": 2.0}, ["may be slower by 5 % and 2 us, at the base by 5 %"]),
        (
            {"limit_us": 2.0},
            {"limit_us": 1.0, "limit_pct": 8.0},
            ["may be slower by 8 % and 1 us, at the base by 5 % and 2 us"],
        ),
        ({"weight": 3.0}, {}, ["has weight 1, at the base 3"]),
        ({}, {"cache": "warm"}, ["declares cache='warm', the base 'cold'"]),
        (
            {"operating_point": "sustained"},
            {},
            ["declares operating_point=None, the base 'sustained'"],
        ),
        ({}, {"drawn": "b"}, ["draws other inputs"]),
        ({}, {"dims": {"n": 2}, "drawn": "b"}, ["has the dims {'n': 2}, at the base {'n': 1}"]),
    ],
)
def test_what_is_looser(then: dict[str, Any], now: dict[str, Any], looser: list[str]) -> None:
    assert [text for text, _ in differences(declared(**then), declared(**now), PRIMUS)] == looser
    assert all(loosens for _, loosens in differences(declared(**then), declared(**now), PRIMUS))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({"tolerances": {"out": FAR}}, {"tolerances": {"out": CLOSE}}),
        ({"tolerances": {"out": snr(25.0)}}, {"tolerances": {"out": snr("e4m3")}}),
        ({"tolerances": {"out": CLOSE}}, {}),
        ({"domain": ("finite",)}, {}),
        ({"consumes": (1, "grad_out")}, {"consumes": ("grad_out",)}),
        ({"nan": "equal"}, {}),
        ({}, {"deterministic": True}),
        ({"group_multiple": 16}, {"group_multiple": 8}),
        ({}, {"weights": ()}),
        ({}, {"limit_pct": 2.0}),
        ({"limit_us": 2.0}, {}),
        ({}, {"weight": 3.0}),
        ({}, {"flops": (2.0, 4.0)}),
    ],
)
def test_what_is_no_looser_is_named_as_well(then: dict[str, Any], now: dict[str, Any]) -> None:
    assert [loosens for _, loosens in differences(declared(**then), declared(**now), PRIMUS)] == [
        False
    ]


def collected(*results: CaseResult) -> Collector:
    return Collector([r.nodeid for r in results], {r.nodeid: r for r in results})


def case(name: str, check: Check = "PASS", **evidence: Any) -> CaseResult:
    given = CaseEvidence(**{"tolerances": GATES, "drawn": "a", **evidence})
    return CaseResult(f"t.py::test_{name}", name, ("label", "Check"), {}, check, evidence=given)


def test_what_the_bases_tests_say_stands_and_what_only_the_changed_ones_run_is_named() -> None:
    now = [case("both", limit_pct=9.0), case("changed"), case("stricter", "FAIL"), case("new")]
    then = collected(case("both"), case("changed", "ERROR"), case("stricter"))
    both, changed, stricter, new = (result.nodeid for result in now)
    known = [both, changed, stricter]
    found = changed_cases(now, then, known, PRIMUS, other=True)
    assert [(r.nodeid, r.check, r.evidence.limit_pct) for r in found.judged] == [
        (nodeid, "FAIL" if nodeid == stricter else "PASS", None)
        for nodeid in (both, changed, stricter, new)
    ]
    assert [*found.by_base] == [both]
    assert (found.new, found.together) == ([new], [changed])
    assert found.looser == ["both may be slower by 9 %, at the base by 5 %"]
    assert found.flags == [
        f"changed together: not compared: {changed}",
        f"fails by its changed test: {stricter}: ",
        f"declares less than at the base: {found.looser[0]}",
        f"new case, not compared: {new}",
    ]
    found = changed_cases(now, None, known, PRIMUS, other=True)
    assert found.judged == now and not (found.by_base or found.together or found.looser)


def test_where_no_kernel_changed_a_test_that_is_mended_judges_its_case() -> None:
    now, fails = case("it"), case("it", "FAIL")
    for there, own, judged in ((fails, now, now), (now, fails, fails), (fails, fails, fails)):
        found = changed_cases([own], collected(there), [own.nodeid], PRIMUS, other=False)
        assert found.judged == [judged]
    found = changed_cases([now], collected(case("it", "ERROR")), [now.nodeid], PRIMUS, other=False)
    assert (found.judged, found.together) == ([now], [])
    assert found.flags == [f"not run by the base's test: {now.nodeid}"]


@pytest.mark.parametrize(
    ("gate", "other", "implies"),
    [
        (bitwise(), FAR, True),
        (tolerance(rtol=0, atol=0), bitwise(), True),
        (bitwise(), snr(60.0), True),
        (FAR, bitwise(), False),
        (CLOSE, FAR, True),
        (FAR, CLOSE, False),
        (tolerance(rtol=1e-6, atol=1e-3), CLOSE, False),
        (snr("e4m3"), snr(25.0), True),
        (snr(24.9), snr("e4m3"), False),
        (snr(99.0), FAR, False),
        (CLOSE, snr(5.0), False),
    ],
)
def test_which_gate_asks_for_no_less(gate: Gate, other: Gate, implies: bool) -> None:
    assert gate.implies(other) is implies


@pytest.mark.parametrize("other", [True, False])
def test_a_case_that_calls_another_function_than_at_the_base_is_not_compared(other: bool) -> None:
    """The base's test would time the function that nobody calls any more."""
    now = [case("moved", function="kernels.new.scale"), case("kept", function="kernels.a.f")]
    then = collected(case("moved", function="kernels.scale"), case("kept", function="kernels.a.f"))
    known = [result.nodeid for result in now]
    found = changed_cases(now, then, known, PRIMUS, other=other)
    calls = "kernels.new.scale, the base"
    assert found.together == (known[:1] if other else [])
    assert any(calls in flag for flag in found.flags) and len(found.flags) == 1
    assert [*found.by_base] == (known[1:] if other else known)
