"""Which inputs a case is tried with, and what the trials say."""

from __future__ import annotations

import importlib
import random
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.function import once_differentiable

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.nearby.near_inputs import stepped, variants
from pytest_kopt.cases.nearby.variant import Variant
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.protocol import CaseServed
from pytest_kopt.cases.running.heldout import try_variant
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.nearby_shapes import (
    AXES,
    DOMAIN,
    Kind,
    Outcome,
    Tried,
    count_untried,
    findings_by_reference,
    held_out_findings,
    merged,
    untried,
)

from .builders import few_examples
from .test_near_inputs import (
    GRADIENTS,
    Function,
    Scaled,
    Versions,
    by,
    case_of,
    scaled,
    trained,
    trials_of,
)


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


def test_the_reference_alone_says_what_a_version_without_another_has_to_support() -> None:
    both = [tried("raises", None), tried("wrong", None, "aligned"), tried("right", None)]
    (finding,) = findings_by_reference(both, "new")
    assert str(finding).startswith("held-out-shape: wrong at M=65, near the declared shape, where ")
    assert "incumbent" not in str(finding)
    assert finding.advice.endswith("exclude it with domain='declared shapes' in the case")


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
    (of_all,) = count_untried(trials)
    reasons = "it has no sizes; the time was over"
    assert of_all.message == f"kopt did not try 2 kinds of near inputs in 3 cases: {reasons}"


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
        bench = SimpleNamespace(device="cpu", uuid="", waiting=None, decides=True)
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


class TwiceOnly:
    def __init__(self):
        self.sizes = []

    def __call__(self, x, *_):
        self.sizes.append(x.shape)
        if x.shape[0] > 64 and self.sizes.count(x.shape) > 2:
            raise RuntimeError("not again")
        return 2 * x


@pytest.mark.parametrize("n", [64])
def test_timed_once_too_often(kopt, n):
    trials = declared(kopt, n, TwiceOnly())
    assert [t.outcomes["candidate"] for t in trials if t.kind == "aligned"] == ["right"]
    assert "signs" in {t.kind for t in trials}


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
    run.assert_outcomes(passed=10)


def drawn_along(kind: str, case: Case) -> list[Variant]:
    return [near for near in variants(case, 7) if near.kind == kind and not near.untried]


def outcome(near: Variant, incumbent: Function, candidate: Function) -> str | None:
    """Return what becomes of a candidate, None if the incumbent is not right."""
    trial = try_variant(near, {INCUMBENT: incumbent, CANDIDATE: candidate}, "cpu", 7)
    return trial.outcomes.get(CANDIDATE) if trial else None


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


SOFTMAX = Versions("", softmax, softmax, softmax, lambda: (torch.randn(8, 64),))


def test_values_are_what_they_are_called() -> None:
    rows = {
        near.where: near.case.arguments()[0]
        for kind in ("values", "infinite", "order")
        for near in drawn_along(kind, case_of(softmax, SOFTMAX))
    }
    assert bool((rows["one outlier in every row"].amax(1) == 256).all())
    most, next_most = rows["one row far larger than the others"].abs().mean(1).topk(2).values
    assert most > 2**16 * next_most
    assert bool((rows["rows of one value"] == rows["rows of one value"][:, :1]).all())
    assert float(rows["4096 times smaller"].abs().max()) < 1e-2
    for mean in (100, -100, 100000, -100000):
        assert abs(float(rows[f"a mean of {mean}"].mean()) / mean - 1) < 0.01
    masked = rows["-inf at the end of rows"]
    assert bool(masked[:, 0].isfinite().all()) and bool((masked[:, -1] == -torch.inf).any())
    assert bool((rows["rows that fall"].diff() <= 0).all())


@pytest.mark.parametrize("kind", ["values", "infinite", "signs", "order", "layout"])
def test_a_table_of_angles_goes_on_saying_everything_twice(kind: str) -> None:
    """A rotary embedding reads the cosines of one half: Liger's was called wrong when sorted."""
    versions = replace(SOFTMAX, inputs=lambda: (torch.randn(8, 32).repeat(1, 2),))
    for near in drawn_along(kind, case_of(softmax, versions)):
        (x,) = near.lay(near.case.arguments())
        assert torch.equal(x[:, :32], x[:, 32:]), near.where


def test_weights_keep_their_values_and_gradients_their_leaves() -> None:
    versions = Versions("", scaled, scaled, scaled, trained, {"backward": True, "weights": (1,)})
    case = case_of(scaled, versions)
    _, weight = case.arguments()
    for near in variants(case, 7):
        torch.manual_seed(7)
        x, w = near.lay(near.case.arguments())
        if near.kind in ("values", "signs", "order", "infinite"):
            assert x.requires_grad and x.is_leaf and w.shape == weight.shape
            assert bool((w.abs() < 10).all())


def test_the_order_of_axes_is_drawn_and_each_has_its_turn() -> None:
    orders = {
        tuple(near.kind for near in variants(case_of(softmax, SOFTMAX), seed))[:8]
        for seed in range(4)
    }
    assert len(orders) > 1 and all(len({*order}) > 5 for order in orders)


EVERYTHING: dict[str, Any] = {
    "inputs": lambda: (
        torch.randn(8, 64, requires_grad=True),
        torch.rand(8, 64) > 0.5,
        0.5,
        torch.zeros(2, requires_grad=True),
        torch.randint(16, 64, (8,)),
        torch.randn(8, 64),
        torch.zeros(8, 64),
        torch.randint(60, (24,)),
        torch.randn(8, 64),
    ),
    "reference": lambda x, mask, scale, *others: scale * x * mask,
    "backward": True,
    "writes": (6,),
}


@pytest.mark.parametrize("word", ["", *DOMAIN])
def test_a_case_declares_what_it_is_tried_with(word: str) -> None:
    def function(x, mask, scale, start, lengths, y, out, at, z=None):  # type: ignore[no-untyped-def]
        return torch.mul(x, mask, out=out)

    case = declare(
        *("t.py::t", "memory", function), dims={"rows": 8}, nbytes=1, domain=word, **EVERYTHING
    )
    kinds = {near.kind for near in variants(case, 5)}
    # A result is written to, and gradients are compared in calls that write nothing.
    untried = {"aligned", "unread", "again", "twice"}
    assert (
        kinds == {k for k, axis in AXES.items() if axis.excluded_by != word or not word} - untried
    )


def test_gradients_of_gradients_are_required_only_if_declared() -> None:
    # Torch imports it for a second gradient: each of its calls would be told to a profiler's hook.
    importlib.import_module("torch.fx.experimental.symbolic_shapes")

    class Detached(Scaled):
        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return Scaled.backward(ctx, grad.detach())

    class Once(Scaled):
        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor) -> Any:
            return Scaled.backward(ctx, grad)

    versions = Versions("twice", scaled, by(Detached), **GRADIENTS)
    assert not trials_of(by(Detached), versions, only="twice")
    for function, expected in ((Detached, "wrong"), (Once, "raises"), (Scaled, "right")):
        trials = trials_of(by(function), versions, only="twice", domain="second gradients")
        assert {trial.outcomes[CANDIDATE] for trial in trials} == {expected}
    once = replace(versions, incumbent=by(Once))
    assert not trials_of(by(Once), once, only="twice", domain=DOMAIN[-1])


def test_several_words_are_a_line() -> None:
    assert case_of(softmax, SOFTMAX, domain="contiguous, finite").domain == ("contiguous", "finite")
    with pytest.raises(BadInput, match=r"domain has 'dense'.*contiguous"):
        case_of(softmax, SOFTMAX, domain="contiguous, dense")


def test_a_size_that_nothing_else_can_have_is_named() -> None:
    def rotated(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x) * 1j)

    versions = Versions("", rotated, rotated, rotated, lambda: (torch.randn(16, 2),))
    case = case_of(rotated, versions)
    parts = {near.part for near in variants(case, 7) if near.kind == "size" and near.untried}
    moved = {trial.dims.get("size 2") for trial in trials_of(rotated, versions)}
    assert parts == {"size 2", "size 16"} and moved == {None}


def with_places(at: Tensor) -> tuple[Tensor, Tensor]:
    return torch.randn(20, 32), at


def test_rows_that_integers_count_or_name_are_neither_added_nor_left_out() -> None:
    for at in (torch.tensor([0, 7, 7, 20]), torch.randperm(20), torch.tensor([3, 17])):
        versions = replace(SOFTMAX, inputs=partial(with_places, at))
        case = case_of(lambda x, at: x, versions, reference=lambda x, at: x.double())
        dims = [near.case.dims.get("size 20", 20) for near in drawn_along("size", case)]
        assert {*dims} == {20}


def test_rows_of_one_place_are_tried_only_if_they_have_no_order() -> None:
    for accumulates in (True, False):
        put = partial(torch.index_put, accumulate=accumulates)
        versions = replace(
            SOFTMAX,
            inputs=lambda: (torch.zeros(32, 8), torch.randn(16, 8), torch.randperm(32)[:16]),
        )
        case = case_of(
            put,
            versions,
            reference=lambda out, x, at, put=put: put(out.double(), (at,), x.double()),
        )
        tried_there = [near for near in drawn_along("ends", case) if ", all" in near.where]
        assert bool(tried_there) == accumulates


def test_places_of_equal_elements_are_not_judged_and_values_are() -> None:
    """The last of a sort was at another place of a constant row than an argmax's."""

    def last(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.amax(-1), x.shape[-1] - 1 - x.flip(-1).argmin(-1)

    def first(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.amax(-1), x.argmin(-1)

    case = case_of(last, replace(SOFTMAX, incumbent=last))
    (near,) = (near for near in drawn_along("values", case) if near.where == "rows of one value")
    assert outcome(near, last, first) == "right"
    assert outcome(near, last, lambda x: (2 * x.amax(-1), x.argmin(-1))) == "wrong"


def blurred(x: Tensor) -> Tensor:
    return x.unfold(-1, 5, 1).sum(-1)


def blurred_by_differences(x: Tensor) -> Tensor:
    total = torch.nn.functional.pad(x.cumsum(-1), (1, 0))
    return total[:, 5:] - total[:, :-5]


@pytest.mark.parametrize(
    ("incumbent", "candidate", "expected"),
    [
        (blurred, blurred_by_differences, None),
        (softmax, softmax, "right"),
        (softmax, lambda x: torch.softmax(x, -1) + 0 * x, "wrong"),
    ],
)
def test_masks_are_required_where_they_stay_in_their_place(
    incumbent: Function, candidate: Function, expected: str | None
) -> None:
    case = case_of(candidate, replace(SOFTMAX, incumbent=incumbent))
    near = next(near for near in drawn_along("infinite", case) if "end" in near.where)
    assert outcome(near, incumbent, candidate) == expected


def test_the_reference_is_called_once_for_both_versions() -> None:
    calls = list[Tensor]()

    def reference(x: Tensor) -> Tensor:
        calls.append(x)
        return x.double().softmax(-1)

    near = drawn_along("signs", case_of(softmax, SOFTMAX, reference=reference))[0]
    calls.clear()
    assert outcome(near, softmax, softmax) == "right" and len(calls) == 1


@pytest.mark.parametrize(
    ("few", "noise", "expected"), [(1, 1.3e-4, "right"), (1, 3e-4, "wrong"), (99, 1.3e-4, "wrong")]
)
def test_a_few_elements_may_miss_the_gate_by_a_hair(few: int, noise: float, expected: str) -> None:
    def rounding(x: Tensor) -> Tensor:
        out = 2 * x.clone()
        out[0, :few] += noise
        return out

    def double(x: Tensor) -> Tensor:
        return 2 * x

    versions = replace(SOFTMAX, incumbent=double, inputs=lambda: (torch.zeros(512, 1024),))
    near = drawn_along("layout", case_of(rounding, versions))[0]
    assert outcome(near, double, rounding) == expected


def test_a_size_that_comes_again_is_judged() -> None:
    """The first call of a size may do what no later one does, and take the time of all others."""
    seen = set[torch.Size]()

    def cut(x: Tensor) -> Tensor:
        is_new = x.shape not in seen
        seen.add(x.shape)
        return x.softmax(-1) if is_new else torch.zeros_like(x)

    assert outcome(Variant(case_of(cut, SOFTMAX), kind="size"), softmax, cut) == "wrong"


def test_inputs_that_find_no_memory_are_untried() -> None:
    """Other processes of the round hold memory of the GPU: that is not the kernel's doing."""

    def full(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    near = drawn_along("signs", case_of(full, SOFTMAX))[0]
    trial = try_variant(near, {INCUMBENT: softmax, CANDIDATE: full}, "cpu", 7)
    assert trial and trial.untried == "the GPU had not enough memory left" and not trial.outcomes


def test_a_kernel_that_raises_is_no_reason_to_refuse() -> None:
    def timid(x: Tensor) -> Tensor:
        if not x.is_contiguous() or x.dtype != torch.float32:
            raise ValueError("rows have to lie in one piece")
        return torch.softmax(x, -1)

    trials = trials_of(timid, SOFTMAX)
    raised = {trial.kind for trial in trials if trial.outcomes[CANDIDATE] == "raises"}
    assert raised == {"layout", "dtypes"}
    (finding,) = held_out_findings(trials, CANDIDATE, INCUMBENT, {})
    assert finding.check == "held-out-layout" and not finding.rejects
    others = [trial for trial in trials if trial.kind == "dtypes"]
    assert not held_out_findings(others, CANDIDATE, INCUMBENT, {})


@pytest.mark.parametrize("leaving", [SystemExit, CaseServed])
def test_a_kernel_that_leaves_the_test_raises(leaving: type[BaseException]) -> None:
    """All other axes would be left untried, and nothing would be asked of the kernel."""

    def gone(x: Tensor) -> Tensor:
        raise leaving

    near = drawn_along("signs", case_of(gone, SOFTMAX))[0]
    assert outcome(near, softmax, gone) == "raises"


def test_results_of_unsigned_integers_are_tried() -> None:
    def codes(x: Tensor, slots: Tensor) -> Tensor:
        sums = (x.abs() * 64).sum(-1).to(torch.int64)
        return torch.zeros(32, dtype=torch.int64).index_put((slots,), sums).to(torch.uint16)

    inputs = lambda: (torch.randn(16, 8), torch.randperm(32)[:16])  # noqa: E731
    trials = trials_of(codes, Versions("", codes, codes, codes, inputs))
    assert {trial.outcomes[CANDIDATE] for trial in trials} == {"right"}


@pytest.mark.parametrize(("error", "expected"), [(2e-12, "right"), (0.1, "wrong")])
def test_a_variance_of_rows_of_one_value_may_have_a_rounding_error(
    error: float, expected: str
) -> None:
    def variance(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)).square().mean(-1)

    def with_an_error(x: Tensor) -> Tensor:
        spread = variance(x)
        return torch.where(spread < 1e-9, error, spread)

    # The sum of 256 equal numbers is exact.
    case = case_of(
        with_an_error,
        replace(SOFTMAX, incumbent=variance, inputs=lambda: (torch.randn(8, 256),)),
    )
    (near,) = (near for near in drawn_along("values", case) if near.where == "rows of one value")
    assert outcome(near, variance, with_an_error) == expected
