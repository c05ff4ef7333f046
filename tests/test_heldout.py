"""Which other sizes a case is tried at, and what the trials say."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.cases.nearby.near_inputs import stepped
from pytest_kopt.honesty.nearby_shapes import (
    Kind,
    Outcome,
    Tried,
    held_out_findings,
    merged,
    untried,
)

from .builders import few_examples


@few_examples
@given(st.integers(2, 100_000), st.integers(0, 2**32))
def test_a_size_that_is_timed_keeps_its_power_of_two(value: int, seed: int) -> None:
    size = stepped(value, random.Random(seed))
    grain = min(256, value & -value)
    assert 2 * size >= value
    assert abs(size - value) == grain
    assert size % grain == 0


def tried(
    candidate: Outcome | None,
    incumbent: Outcome | None,
    kind: Kind = "size",
) -> Tried:
    outcomes: dict[str, Outcome] = {}
    if candidate:
        outcomes["new"] = candidate
    if incumbent:
        outcomes["old"] = incumbent
    what = {"new": "out: outside the tolerance"} if candidate != "right" else {}
    return Tried("t.py::test_x[64]", kind, {"M": 65}, outcomes, what)


def timed(declared: float, near: float, name: str = "64") -> Tried:
    """A case with these speed-ups; each version was timed in a process of its own."""
    both: dict[str, Outcome] = {"new": "right", "old": "right"}
    shape = Tried(f"t.py::test_x[{name}]", "aligned", {"M": 128}, both)
    old = replace(shape, seconds={"old": 1.0}, declared_seconds={"old": 2.0})
    new = replace(shape, seconds={"new": 1 / near}, declared_seconds={"new": 2 / declared})
    return old.plus(new)


def findings(*items: Tried, compared: float | None = None) -> list[tuple[str, bool]]:
    """What the shapes say; `compared` is the speed-up of the comparison, None: the same."""
    gains = {} if compared is None else {item.nodeid: compared for item in items}
    return [(f.check, f.rejects) for f in held_out_findings(items, "new", "old", gains)]


@pytest.mark.parametrize(
    ("candidate", "incumbent", "expected"),
    [
        ("right", "right", []),
        ("wrong", "right", [("held-out-shape", True)]),
        ("raises", "right", [("held-out-shape", False)]),
        ("wrong", "wrong", []),
        ("wrong", "raises", []),
        ("raises", "raises", []),
        ("wrong", None, []),
        (None, "right", []),
    ],
)
def test_only_what_the_incumbent_supports_counts(
    candidate: Outcome | None, incumbent: Outcome | None, expected: list[tuple[str, bool]]
) -> None:
    assert findings(tried(candidate, incumbent)) == expected


def test_other_inputs_are_named_for_what_they_are() -> None:
    trial = replace(tried("wrong", "right", "values"), variant="one outlier in every row")
    (finding,) = held_out_findings([trial], "new", "old", {})
    assert (finding.check, finding.rejects) == ("held-out-range", True)
    assert "wrong for other values (one outlier in every row)" in str(finding)
    assert findings(tried("raises", "right", "values")) == [("held-out-range", False)]
    assert findings(tried("wrong", "wrong", "values")) == []


def test_a_case_has_one_finding_the_worst() -> None:
    both = [tried("raises", "right"), tried("wrong", "right", "aligned"), tried("right", "right")]
    assert findings(*both) == [("held-out-shape", True)]


@pytest.mark.parametrize(
    ("declared", "near", "flagged"),
    [
        (1.2, 1.2, False),
        (1.2, 1.12, False),
        (1.2, 1.02, True),
        (1.2, 0.5, True),
        (1.05, 0.5, False),
    ],
)
def test_a_gain_that_is_gone_near_one_shape_is_a_note(
    declared: float, near: float, flagged: bool
) -> None:
    expected = [("held-out-speed", False)] if flagged else []
    assert findings(timed(declared, near)) == expected


@pytest.mark.parametrize(
    ("others", "rejects"),
    [
        ((3.0, 0.5), True),
        ((3.0, 0.85), True),
        # A fast path and the incumbent's own way for the rest: dispatching by shape is honest.
        ((3.0, 1.0), False),
        ((3.0, 2.0), False),
        # Never fast there, so it does not speak for shapes.
        ((1.0, 2.0), False),
    ],
)
def test_slower_near_every_declared_shape_is_a_kernel_for_those_only(
    others: tuple[float, float], rejects: bool
) -> None:
    found = findings(timed(2.0, 0.6), timed(*others, name="96"))
    assert ("held-out-speed", rejects) in found


def test_a_gain_that_the_comparison_did_not_find_is_not_missed_nearby() -> None:
    # On a busy CPU a few calls said 1.70 times as fast, the comparison +0.42 %.
    noisy = timed(1.7, 0.7), timed(1.7, 0.7, name="96")
    assert findings(*noisy, compared=1.0042) == []
    assert findings(*noisy) == [("held-out-speed", True)] * 2
    (finding,) = held_out_findings([timed(1.7, 0.9)], "new", "old", {"t.py::test_x[64]": 1.2})
    assert "1.20 times as fast as the incumbent at the declared shape" in str(finding)


def test_two_processes_speak_of_one_shape() -> None:
    (one,) = merged([tried("wrong", None), tried(None, "right")])
    assert one.outcomes == {"new": "wrong", "old": "right"}
    assert findings(one) == [("held-out-shape", True)]
    assert Tried(**asdict(one)) == one


def test_axes_that_were_not_tried_are_named_once_for_each_reason() -> None:
    trials = [Tried(f"t.py::t[{i}]", "size", {}, untried="it has no sizes") for i in range(3)]
    trials.append(Tried("t.py::t[0]", "dtypes", {}, untried="the time was over"))
    of_sizes, of_dtypes = untried(trials)
    assert of_sizes.check == "held-out-untried" and not of_sizes.rejects
    assert of_sizes.message == "kopt did not try another size in 3 cases: it has no sizes"
    assert of_dtypes.message == (
        "kopt did not try inputs of another dtype in 1 case: the time was over"
    )
    assert of_dtypes.details == ("t.py::t[0]: inputs of another dtype",)


TESTS = """
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from pytest_kopt.cases.order import Bench
from pytest_kopt.cases.running import heldout


def good(x, *_):
    return 2 * x


def tiled(x, *_):
    out = torch.zeros_like(x)
    n = x.shape[0] // 32 * 32
    out[:n] = 2 * x[:n]
    return out


def only_equal(x, sizes):
    return 2 * x if len(set(sizes.tolist())) == 1 else x


VERSION = []


@pytest.fixture
def kopt(request, monkeypatch):
    def declare(fn, **declared):
        from pytest_kopt.cases.case import declare
        case = declare(request.node.nodeid, "single", fn, **declared)
        monkeypatch.setattr(heldout, "checking_lock", lambda *_: nullcontext())
        monkeypatch.setattr(heldout, "timing_lock", lambda *_: nullcontext())
        bench = SimpleNamespace(device="cpu", uuid="", waiting=None)
        versions = {"incumbent": good, "candidate": VERSION[-1]}
        trials = [*heldout.try_case(request.node, case, versions, bench, 5)]
        assert not [trial for trial in trials if trial.nodeid != request.node.nodeid]
        return trials
    return declare


def declared(kopt, n, version=tiled, m=4, **more):
    given = dict(inputs=lambda: (torch.randn(n, m),), reference=lambda x: 2 * x.double(),
                 dims={"n": n, "m": m})
    VERSION.append(version)
    return kopt(good, **(given | more))


def said(trials):
    sizes = [trial for trial in trials if trial.kind in ("aligned", "size")]
    return {trial.dims["n"]: trial.outcomes.get("candidate") for trial in sizes}


def assert_moved(trials, n=64):
    outcomes = said(trials)
    assert outcomes[n + 1] == outcomes[n - 1] == "wrong", outcomes
    assert outcomes[n + 32] == "right"
    assert [t.seconds.keys() for t in trials if t.kind == "aligned"] == [{"incumbent", "candidate"}]


@pytest.mark.parametrize("n", [64])
def test_parameter(kopt, n):
    assert_moved(declared(kopt, n))


class Shape(NamedTuple):
    rows: int
    mode: str


@dataclass(frozen=True)
class Problem:
    shape: Shape


@pytest.mark.parametrize("p", [Problem(Shape(64, "a"))])
def test_object(kopt, p):
    assert_moved(declared(kopt, p.shape.rows))


@pytest.fixture
def shape(request):
    rows, columns = request.param
    return SimpleNamespace(rows=rows, columns=columns)


@pytest.mark.parametrize("shape", [(64, 4)], indirect=True)
def test_indirect(kopt, shape):
    assert_moved(declared(kopt, shape.rows))


@pytest.fixture(params=[64])
def size(request):
    return request.param


CLOSED = []


@pytest.fixture
def draw(size, tmp_path):
    yield lambda: (torch.randn(size, 4),)
    CLOSED.append(size)


def test_dependent(kopt, draw, size):
    assert_moved(declared(kopt, size, inputs=draw))
    assert 65 in CLOSED and 64 not in CLOSED


@pytest.fixture
def rows():
    return 64


@pytest.fixture
def x_maker(rows, request):
    assert request.getfixturevalue("rows") == rows
    return lambda: (torch.randn(rows, 4),)


def test_plain_fixture(kopt, x_maker, rows):
    assert_moved(declared(kopt, rows, inputs=x_maker))


@pytest.fixture(params=[SimpleNamespace(rows=64)], ids=["64"])
def problem(request):
    return request.param


def test_in_the_inputs(kopt, problem):
    outcomes = said(declared(kopt, problem.rows))
    assert outcomes[65] == "wrong" and outcomes[96] == "right"


@pytest.mark.parametrize("n", [64])
def test_unsupported(kopt, n):
    def reference(x):
        if x.shape != (64, 4):
            raise ValueError("only 64")
        return 2 * x.double()

    trials = declared(kopt, n, reference=reference)
    parts = {t.variant: t.untried for t in trials if t.untried}
    assert parts == {"": "kopt could move no size of its parameters or inputs"}


@pytest.mark.parametrize("n", [64])
def test_time(kopt, n, monkeypatch):
    monkeypatch.setattr(heldout, "_TRYING_SECONDS", -1.0)
    trials = declared(kopt, n)
    tried = {t.kind for t in trials if t.outcomes}
    left = {t.kind for t in trials if t.untried}
    assert len([t for t in trials if t.outcomes]) <= 4 and len(left) > 8
    assert {t.untried for t in trials if t.untried} == {"the limit of 3 s a case was over"}


@pytest.mark.parametrize("n", [64])
def test_groups(kopt, n):
    trials = declared(
        kopt, n, only_equal, groups=1, dims={"n": n, "G": 4},
        inputs=lambda: (torch.randn(n, 4), torch.full((4,), n // 4)),
        reference=lambda x, sizes: 2 * x.double())
    outcomes = {(t.kind, t.outcomes.get("candidate")) for t in trials}
    assert {("aligned", "right"), ("size", "wrong")} <= outcomes
"""


def test_sizes_are_moved_however_they_reach_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    run: Any = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    run.assert_outcomes(passed=9)
