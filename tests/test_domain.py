"""Inputs of the incumbent's domain that a case does not draw itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.nearby.layouts import variants
from pytest_kopt.cases.nearby.variant import Variant
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.running.heldout import try_shape
from pytest_kopt.cases.running.reference import observed
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.nearby_shapes import (
    DOMAIN,
    PATTERNS,
    TIED,
    Tried,
    held_out_findings,
    untried,
)
from pytest_kopt.numerics.gates import snr


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def case_of(function: Callable[..., Any] = softmax, **changes: Any) -> Case:
    given: dict[str, Any] = {
        "inputs": lambda: (torch.randn(8, 64),),
        "reference": lambda x: torch.softmax(x.double(), -1),
        "dims": {"rows": 8},
        "nbytes": 4096,
    }
    return declare("t.py::t", "memory", function, **(given | changes))


def variant(case: Case, kind: str) -> Variant:
    return next(found for found in variants(case, 7) if found.kind == kind)


def content(case: Case, kind: str) -> Tensor:
    found = variant(case, kind)
    (first,) = found.lay([*found.case.arguments()])
    assert isinstance(first, Tensor)
    return first


def test_the_patterns_are_what_they_are_called() -> None:
    case = case_of()
    assert bool((content(case, "outlier").amax(1) == 256).all())
    rows = content(case, "lopsided").abs().mean(1)
    assert rows.max() > 4 * rows.min()
    sizes = content(case, "dominant").abs().mean(1)
    assert sizes.topk(2).values[0] > 2**16 * sizes.topk(2).values[1]
    masked = content(case, "masked")
    assert bool(masked[:, 0].isfinite().all()) and bool((masked[:, -1] == -torch.inf).any())
    constant = content(case, "constant")
    assert bool((constant == constant[:, :1]).all())
    assert float(content(case, "tiny").abs().max()) < 1e-2
    strided = content(case, "strided")
    assert strided.stride() == (1, 8) and strided.shape == (8, 64)
    assert content(case, "wider").dtype is torch.float64


OF_VALUES = (
    *("large", "outlier", "lopsided", "dominant", "masked", "constant", "tiny", "negated"),
    "sorted",
)


@pytest.mark.parametrize("kind", [*OF_VALUES, "exact", "strided", "pitched", "expanded", "wider"])
def test_a_table_of_angles_goes_on_saying_everything_twice(kind: str) -> None:
    """A rotary embedding reads the cosines of one half: Liger's was called wrong when sorted."""
    case = case_of(inputs=lambda: (torch.randn(8, 32).repeat(1, 2),))
    found = content(case, kind)
    assert torch.equal(found[:, :32], found[:, 32:])
    assert kind in ("strided", "pitched") or not torch.equal(found, case.arguments()[0])


def test_weights_keep_their_content_and_gradients_their_leaves() -> None:
    case = case_of(
        lambda x, w: x * w,
        inputs=lambda: (torch.randn(4, 8).requires_grad_(), torch.ones(8)),
        weights=(1,),
    )
    for near in variants(case, 5):
        x, w = near.lay([*near.case.arguments()])
        assert x.requires_grad and x.is_leaf, near.kind
        assert bool((w == 1).all()) or near.kind == "exact"


def test_a_factor_of_zeros_has_numbers_once() -> None:
    """As a LoRA begins: a kernel that left the term out was accepted."""
    case = case_of(
        lambda x, b: x @ b,
        inputs=lambda: (torch.randn(4, 8), torch.zeros(8, 8)),
        reference=lambda x, b: x.double() @ b.double(),
        weights=(1,),
    )
    drawn = [(near.kind, near.case.arguments()[1]) for near in variants(case, 5)]
    assert {kind for kind, b in drawn if b.any()} == {"filled", "exact"}
    assert "filled" not in [near.kind for near in variants(case_of(), 5)]


def test_what_holds_nothing_is_left_as_it_is_but_for_its_dtype() -> None:
    case = case_of(inputs=lambda: (torch.randn(4, 8), torch.empty(0, 8), torch.zeros(2, 2)))
    for near in variants(case, 5):
        name, empty = near.kind, near.case.arguments()[1]
        assert isinstance(empty, Tensor) and len(empty) == 0
        assert empty.dtype is (torch.float64 if name == "wider" else torch.float32), name


def test_the_order_is_drawn() -> None:
    orders = {tuple(near.kind for near in variants(case_of(), seed)) for seed in range(8)}
    assert len(orders) > 4


@pytest.mark.parametrize("word", DOMAIN)
def test_a_case_may_declare_less(word: str) -> None:
    case = case_of(
        lambda x, mask, scale, start, lengths, y, out, at, z=None, *_: torch.mul(x, mask, out=out),
        inputs=lambda: (
            torch.randn(8, 64, requires_grad=True),
            torch.rand(8, 64) > 0.5,
            0.5,
            torch.zeros(2, requires_grad=True),
            torch.randint(16, 64, (8,)),
            torch.randn(8, 64),
            torch.zeros(8, 64),
            torch.randint(64, (24,)),
            torch.randn(8, 64),
            torch.randn(8),
        ),
        reference=lambda x, mask, scale, *others: (scale * x * mask, x.argmax(0)[others[4]]),
        domain=word,
        backward=True,
        writes=(6,),
    )
    kinds = {near.kind for near in variants(case, 5)}
    # A parameter of the test is moved to aligned sizes; what is written to may be a result.
    elsewhere = {"aligned", "single"}
    assert kinds == {k for k, p in PATTERNS.items() if p.excluded_by != word} - elsewhere


def test_several_words_are_a_line() -> None:
    assert case_of(domain="contiguous, finite").domain == ("contiguous", "finite")
    assert case_of(domain=["finite"]).domain == ("finite",)
    with pytest.raises(BadInput, match=r"domain has 'dense'.*contiguous"):
        case_of(domain="contiguous, dense")


def quarter(x: Tensor) -> Tensor:
    power = torch.exp(x - x[:, :16].amax(1, keepdim=True))
    return power / power.sum(1, keepdim=True)


def flat(x: Tensor) -> Tensor:
    return torch.softmax(x.as_strided(x.shape, (x.shape[1], 1)), -1)


def coarse(x: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return torch.softmax(x, -1)
    return torch.softmax(x.bfloat16(), -1).to(x.dtype)


def blind(x: Tensor) -> Tensor:
    return torch.softmax(x.view(torch.float32)[..., : x.shape[-1]], -1).to(x.dtype)


def summed(x: Tensor) -> Tensor:
    return x.sum(-1)


def test_infinite_results_are_compared_too() -> None:
    case = case_of(summed, reference=lambda x: x.double().sum(-1))
    masked = variant(case, "masked")
    found = try_shape(masked, {INCUMBENT: summed, CANDIDATE: summed}, "cpu", 7)
    assert found is None or set(found.outcomes.values()) == {"right"}


def blurred(x: Tensor) -> Tensor:
    return x.unfold(-1, 5, 1).sum(-1)


def blurred_by_differences(x: Tensor) -> Tensor:
    total = torch.nn.functional.pad(x.cumsum(-1), (1, 0))
    return total[:, 5:] - total[:, :-5]


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def log_of_softmax(x: Tensor) -> Tensor:
    shifted = x - x.amax(-1, keepdim=True)
    return shifted * 1.0 - torch.log(torch.exp(shifted).sum(-1, keepdim=True)) + 0 * x


@pytest.mark.parametrize(
    ("incumbent", "candidate", "outcome"),
    [
        (blurred, blurred_by_differences, None),
        (log_softmax, log_softmax, "right"),
        (log_softmax, log_of_softmax, "wrong"),
        (softmax, lambda x: torch.softmax(x, -1) + 0 * x, "wrong"),
    ],
)
def test_masks_are_asked_for_where_they_stay_in_their_place(
    incumbent: Callable[..., Any], candidate: Callable[..., Any], outcome: str | None
) -> None:
    case = case_of(candidate, reference=lambda x: incumbent(x.double()))
    near = variant(case, "masked")
    found = try_shape(near, {INCUMBENT: incumbent, CANDIDATE: candidate}, "cpu", 7)
    assert (found and found.outcomes[CANDIDATE]) == outcome


def test_what_both_versions_should_give_is_computed_once() -> None:
    asked = list[Tensor]()

    def reference(x: Tensor) -> Tensor:
        asked.append(x)
        return x.double().sum(-1)

    case = case_of(summed, reference=reference)
    large = variant(case, "large")
    asked.clear()
    found = try_shape(large, {INCUMBENT: summed, CANDIDATE: summed}, "cpu", 7)
    assert found is not None and set(found.outcomes) == {INCUMBENT, CANDIDATE}
    assert len(asked) == 1


def timid(x: Tensor) -> Tensor:
    if not x.is_contiguous():
        raise ValueError("rows have to lie in one piece")
    return torch.softmax(x, -1)


class TakesFlatGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(out := torch.softmax(x, -1))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (out,), grad = ctx.saved_tensors, grads[0]
        grad = grad.as_strided(grad.shape, (grad.shape[1], 1))
        found: Tensor = out * (grad - (grad * out).sum(-1, keepdim=True))
        return found


def trained(x: Tensor) -> Tensor:
    made: Tensor = TakesFlatGradients.apply(x)  # type: ignore[no-untyped-call]
    return made


def said_of(candidate: Callable[..., Any], **changes: Any) -> list[tuple[str, bool]]:
    case, tried = case_of(candidate, **changes), list[Tried]()
    for near in variants(case, 7):
        versions = {INCUMBENT: softmax, CANDIDATE: candidate}
        found = try_shape(near, versions, "cpu", 7)
        tried += [found] if found else []
    assert {item.kind for item in tried} >= {"outlier", "masked", "strided", "wider"}
    found_of = held_out_findings(tried, CANDIDATE, INCUMBENT, {})
    return [(finding.check, finding.rejects) for finding in found_of]


class TakesFlatTotals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.columns = x.shape[1]
        return x.sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].as_strided(grads[0].shape, (1,))[:, None].repeat(1, ctx.columns)


def totals(x: Tensor) -> Tensor:
    made: Tensor = TakesFlatTotals.apply(x)  # type: ignore[no-untyped-call]
    return made


@pytest.mark.parametrize(
    ("incumbent", "candidate", "outcome"),
    [
        (softmax, softmax, "right"),
        (softmax, trained, "wrong"),
        (summed, summed, "right"),
        (summed, totals, "wrong"),
    ],
)
def test_incoming_gradients_lie_otherwise_too(
    incumbent: Callable[..., Any], candidate: Callable[..., Any], outcome: str
) -> None:
    case = case_of(
        candidate,
        inputs=lambda: (torch.randn(8, 64, requires_grad=True),),
        reference=lambda x: incumbent(x.double()),
        backward=True,
    )
    near = variant(case, "strided")
    found = try_shape(near, {INCUMBENT: incumbent, CANDIDATE: candidate}, "cpu", 7)
    assert found is not None and found.outcomes == {INCUMBENT: "right", CANDIDATE: outcome}


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (softmax, []),
        (quarter, [("held-out-range", True)]),
        (flat, [("held-out-layout", True)]),
        (coarse, [("held-out-dtype", True)]),
        (timid, [("held-out-layout", False)]),
        (blind, [("held-out-dtype", False)]),
    ],
)
def test_a_kernel_keeps_the_incumbents_domain(
    candidate: Callable[..., Any], said: Sequence[tuple[str, bool]]
) -> None:
    assert said_of(candidate) == said


@pytest.mark.parametrize(
    ("candidate", "outcome"),
    [
        (lambda x, dtype: torch.softmax(x, -1).to(dtype), "right"),
        (lambda x, dtype: torch.softmax(x, -1).bfloat16(), "wrong"),
    ],
)
def test_a_dtype_among_the_arguments_is_wider_too(
    candidate: Callable[..., Any], outcome: str
) -> None:
    case = case_of(
        candidate,
        inputs=lambda: (torch.randn(8, 64).bfloat16(), torch.bfloat16),
        reference=lambda x, dtype: torch.softmax(x.double(), -1),
    )
    near = variant(case, "wider")
    incumbent = lambda x, dtype: torch.softmax(x, -1).to(dtype)  # noqa: E731
    found = try_shape(near, {INCUMBENT: incumbent, CANDIDATE: candidate}, "cpu", 7)
    assert found is not None and found.outcomes == {INCUMBENT: "right", CANDIDATE: outcome}


def attend(x: Tensor, scale: float, causal: bool, mask: Tensor, places: Tensor) -> Tensor:
    """Something of everything that a call can be told: numbers, switches, masks and places."""
    scores = (x * scale).masked_fill(~mask, -9.0)
    if causal:
        scores = scores.tril()
    return torch.softmax(scores, -1) * places[:, None]


@pytest.mark.parametrize(
    ("what", "candidate"),
    [
        ("numbers", lambda x, scale, causal, mask, places: attend(x, 0.125, causal, mask, places)),
        ("numbers", lambda x, scale, causal, mask, places: attend(x, scale, True, mask, places)),
        (
            "indices",
            lambda x, scale, causal, mask, places: attend(
                x, scale, causal, torch.arange(x.shape[1]) < mask.sum(-1, keepdim=True), places
            ),
        ),
        (
            "indices",
            lambda x, scale, causal, mask, places: attend(
                x, scale, causal, mask, torch.arange(len(x))
            ),
        ),
    ],
    ids=["scale", "switch", "mask", "places"],
)
def test_what_a_case_always_gives_is_not_a_constant(
    what: str, candidate: Callable[..., Any]
) -> None:
    case = case_of(
        candidate,
        inputs=lambda: (
            torch.randn(8, 64),
            0.125,
            True,
            (torch.arange(64) < torch.randint(16, 32, (8, 1))),
            torch.arange(8),
        ),
        reference=lambda x, *others: attend(x.double(), *others),
    )
    order = [*dict.fromkeys(near.kind for near in variants(case, 7))]
    first = {"numbers", "signs", "indices", "masks"}
    assert {*order[:4]} == first, "however slow the kernel is"
    wrong = set()
    for near in variants(case, 7):
        versions = {INCUMBENT: attend, CANDIDATE: candidate}
        found = try_shape(near, versions, "cpu", 7)
        if found and found.outcomes.get(CANDIDATE) == "wrong":
            wrong.add(near.kind)
    assert what in wrong <= {what, "signs", "masks", "uneven"}


def test_sizes_and_offsets_are_no_numbers_to_change() -> None:
    def inputs() -> tuple[Any, ...]:
        return torch.randn(8, 64), 64, 8, torch.tensor([0, 3, 8]), "mode", None

    case = case_of(lambda x, *others: x, inputs=inputs)
    kinds = {near.kind for near in variants(case, 7)}
    assert kinds.isdisjoint({"numbers", "indices"})


def by_tiles(x: Tensor) -> tuple[Tensor, Tensor]:
    values, place = x.view(len(x), -1, 4).max(-1)
    best, tile = values.topk(2, -1)
    return best, 4 * tile + place.gather(-1, tile)


def test_the_best_need_not_lie_apart() -> None:
    def topk(x: Tensor) -> tuple[Tensor, Tensor]:
        found = x.topk(2, -1)
        return found.values, found.indices

    case = case_of(by_tiles, reference=lambda x: topk(x.double()))
    near = variant(case, "sorted")
    found = try_shape(near, {INCUMBENT: topk, CANDIDATE: by_tiles}, "cpu", 7)
    assert found and found.outcomes == {INCUMBENT: "right", CANDIDATE: "wrong"}


@pytest.mark.parametrize("kind", TIED)
def test_places_of_equal_elements_are_not_judged_and_values_are(kind: str) -> None:
    """The last of a sort was at another place of a constant row than an argmax's."""

    def last(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.amax(-1), x.shape[-1] - 1 - x.flip(-1).argmin(-1)

    def first(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.amax(-1), x.argmin(-1)

    def none(x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x.amax(-1), x.argmin(-1)

    case = case_of(last, reference=lambda x: last(x.double()))
    near = variant(case, kind)
    for candidate, outcome in ((first, "right"), (none, "wrong")):
        found = try_shape(near, {INCUMBENT: last, CANDIDATE: candidate}, "cpu", 7)
        assert found and found.outcomes == {INCUMBENT: "right", CANDIDATE: outcome}


def test_a_sign_that_no_case_draws_is_owed() -> None:
    def kept(x: Tensor) -> Tensor:
        return torch.log1p(x.abs()) * x.sign()

    case = case_of(
        torch.log1p,
        inputs=lambda: (torch.rand(8, 64),),
        reference=lambda x: kept(x.double()),
    )
    near = variant(case, "negated")
    found = try_shape(near, {INCUMBENT: kept, CANDIDATE: torch.log1p}, "cpu", 7)
    assert found and found.outcomes == {INCUMBENT: "right", CANDIDATE: "wrong"}


class Scaled(torch.autograd.Function):
    """A product of two tensors, with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class Forgetful(Scaled):
    """Keeps what the weight's gradient needs only where the input has one, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x if x.requires_grad else torch.ones_like(x), w)
        return x * w


@pytest.mark.parametrize(
    ("function", "outcomes"), [(Scaled, ["right", "right"]), (Forgetful, ["wrong", "right"])]
)
def test_each_input_once_asks_for_no_gradient(
    function: type[torch.autograd.Function], outcomes: list[str]
) -> None:
    def candidate(x: Tensor, w: Tensor) -> Any:
        return function.apply(x, w)

    def incumbent(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    case = case_of(
        candidate,
        inputs=lambda: tuple(torch.randn(*s, requires_grad=True) for s in ((8, 64), (64,))),
        reference=lambda x, w: x.double() * w.double(),
        backward=True,
    )
    cases = [near for near in variants(case, 7) if near.kind == "frozen"]
    versions = {INCUMBENT: incumbent, CANDIDATE: candidate}
    found = [try_shape(near, versions, "cpu", 7) for near in cases]
    assert [item and item.outcomes[CANDIDATE] for item in found] == outcomes
    assert [item and item.outcomes[INCUMBENT] for item in found] == ["right"] * 2


@pytest.mark.parametrize("backward", [True, False])
def test_a_single_input_always_asks(backward: bool) -> None:
    case = case_of(
        softmax,
        inputs=lambda: (torch.randn(8, 64, requires_grad=backward),),
        reference=lambda x: torch.softmax(x.double(), -1),
        backward=backward,
    )
    assert "frozen" not in [near.kind for near in variants(case, 7)]


def test_numbers_of_a_list_change_each_for_itself() -> None:
    case = case_of(
        lambda x, rates: x * rates[0],
        inputs=lambda: (torch.randn(8, 64), [0.5, 0.5, 0.5]),
        reference=lambda x, rates: x.double() * rates[0],
    )
    tried = [near.case.arguments()[1] for near in variants(case, 7) if near.kind == "numbers"]
    rates = tried.pop()
    assert len({*rates}) == 3 and all(0.5 * 1.125 <= rate < 0.5 * 1.25 for rate in rates)
    # Each alone: another, above one, and zero; the one that counts at its ends as well.
    assert [sum(rate != 0.5 for rate in each) for each in tried] == [1] * 11
    assert [min(rates[0] for rates in tried), max(rates[0] for rates in tried[-2:])] == [
        0.0,
        16 / 17,
    ]
    assert [sum(rate in each for each in tried) for rate in (0.0, 2.5)] == [3, 3]


def strided_by_x(x: Tensor, y: Tensor) -> Tensor:
    return x + y.as_strided(y.shape, x.stride(), y.storage_offset())


def by_the_pitch_of_rows(x: Tensor, y: Tensor) -> Tensor:
    pitch = y.stride(-2)
    return x + y.as_strided(y.shape, (y.shape[-2] * pitch, pitch, 1), y.storage_offset())


def from_the_beginning(x: Tensor, y: Tensor) -> Tensor:
    y = y.contiguous()
    return x + y.as_strided(y.shape, y.stride(), 0)


def one_bias(x: Tensor, keep: Tensor) -> Tensor:
    return x.masked_fill(~keep, -1e30).softmax(-1)


def kept(x: Tensor, keep: Tensor) -> Tensor:
    return x.masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num(0.0)


def shifted(x: Tensor, bias: Tensor) -> Tensor:
    return (x + bias).softmax(-1).nan_to_num(0.0)


def shifted_by_its_best(x: Tensor, bias: Tensor) -> Tensor:
    return (x + bias.clamp_min(-1e30)).softmax(-1)


def pooled(values: Tensor, offsets: Tensor) -> Tensor:
    parts = [values[a:b] for a, b in itertools.pairwise(offsets.tolist())]
    return torch.stack([part.sum(0) / max(len(part), 1) for part in parts])


def pooled_by_sums(values: Tensor, offsets: Tensor) -> Tensor:
    total = torch.nn.functional.pad(values.double().cumsum(0), (0, 0, 1, 0))[offsets]
    return (total.diff(dim=0) / offsets.diff()[:, None]).to(values.dtype)


def last_token(values: Tensor, lengths: Tensor) -> Tensor:
    rows = values[torch.arange(len(values)), lengths.clamp_min(1) - 1]
    return rows * (lengths > 0)[:, None]


def last_token_always(values: Tensor, lengths: Tensor) -> Tensor:
    return values[torch.arange(len(values)), lengths - 1]


def mean_to_length(values: Tensor, lengths: Tensor) -> Tensor:
    unread = torch.arange(values.shape[1]) >= lengths[:, None]
    total = values.masked_fill(unread[..., None], 0).sum(1)
    return total / lengths.clamp_min(1)[:, None]


def mean_by_weights(values: Tensor, lengths: Tensor) -> Tensor:
    read = (torch.arange(values.shape[1]) < lengths[:, None])[..., None]
    return (values * read).sum(1) / lengths.clamp_min(1)[:, None]


def scaled_into(x: Tensor, out: Tensor) -> Tensor:
    return out.copy_(x / x.abs().sum(-1, keepdim=True))


def scaled_in_steps(x: Tensor, out: Tensor) -> Tensor:
    out.copy_(x)
    return out.div_(x.abs().sum(-1, keepdim=True) if out is not x else x.sum(-1, keepdim=True))


def two(second: Callable[[], Tensor], *rows: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(*(rows or (8, 64))), second())


PACKED = two(lambda: torch.randn(8, 64))
BATCHES = two(lambda: torch.randn(3, 8, 64), 3, 8, 64)
MASK = two(lambda: torch.rand(8, 64) < 0.7)
BIAS = two(lambda: torch.zeros(8, 64).masked_fill(torch.rand(8, 64) < 0.3, -torch.inf))
OFFSETS = two(lambda: torch.tensor([0, 5, 11, 24]), 24, 16)
LENGTHS = two(lambda: torch.randint(1, 12, (8,)), 8, 12, 4)
OUT = two(lambda: torch.empty(8, 64))


@pytest.mark.parametrize(
    ("kind", "incumbent", "candidate", "inputs"),
    [
        ("pitched", torch.add, strided_by_x, PACKED),
        ("pitched", torch.add, by_the_pitch_of_rows, BATCHES),
        ("turned", torch.add, strided_by_x, PACKED),
        ("expanded", torch.add, strided_by_x, PACKED),
        ("shifted", torch.add, from_the_beginning, PACKED),
        ("masks", kept, one_bias, MASK),
        ("masks", shifted, shifted_by_its_best, BIAS),
        ("counts", pooled, pooled_by_sums, OFFSETS),
        ("counts", last_token, last_token_always, LENGTHS),
        ("padded", mean_to_length, mean_by_weights, LENGTHS),
        ("aliased", scaled_into, scaled_in_steps, OUT),
    ],
)
def test_every_axis_is_tried_at_its_ends_and_alone(
    kind: str,
    incumbent: Callable[..., Any],
    candidate: Callable[..., Any],
    inputs: Callable[[], tuple[Tensor, ...]],
) -> None:
    def reference(x: Tensor, other: Tensor) -> Tensor:
        more = (torch.empty_like(x.double()),) if inputs is OUT else (other,)
        found: Tensor = incumbent(x.double(), *more)
        return found

    writes = (1,) if inputs is OUT else ()
    case = case_of(candidate, inputs=inputs, reference=reference, writes=writes)
    near = [near for near in variants(observed(case, 3), 7) if near.kind == kind]
    told = {
        version: {found.outcomes[CANDIDATE] for found in tried if found}
        for version in (incumbent, candidate)
        for versions in [{INCUMBENT: incumbent, CANDIDATE: version}]
        for tried in [[try_shape(each, versions, "cpu", 7) for each in near]]
    }
    assert told[incumbent] == {"right"} and "wrong" in told[candidate]


def mean_of_rows(x: Tensor) -> Tensor:
    return x.sum(0) / max(len(x), 1)


@pytest.mark.parametrize(
    ("candidate", "kind", "outcome"),
    [
        (lambda x: x.sum(0) / len(x), "none", "wrong"),
        (lambda x: x.sum(0) / max(len(x), 2), "one", "wrong"),
        (lambda x: x.view(len(x) // 8, 8, -1).sum((0, 1)) / len(x), "one", "raises"),
        (lambda x: x[:, :64].sum(0) / max(len(x), 1), "uneven", "wrong"),
    ],
)
def test_sizes_that_no_parameter_carries_are_moved(
    candidate: Callable[..., Any], kind: str, outcome: str
) -> None:
    case = case_of(candidate, reference=lambda x: mean_of_rows(x.double()))
    tried = [
        try_shape(near, {INCUMBENT: mean_of_rows, CANDIDATE: candidate}, "cpu", 7)
        for near in variants(case, 7)
        if near.kind == kind
    ]
    assert outcome in {item.outcomes[CANDIDATE] for item in tried if item}


def test_what_could_not_be_tried_is_said_once() -> None:
    tried = [Tried(f"t.py::t[{i}]", "uneven", {}, untried="it has no sizes") for i in range(3)]
    (found,) = untried(tried)
    assert found.check == "held-out-untried" and not found.rejects
    assert found.message == "kopt did not try 1 kind of inputs in 3 cases: it has no sizes"
    assert found.details == ("another size",) and "another size" not in str(found)


def test_integers_are_exact_whatever_the_tolerance() -> None:
    """25 dB of rounding hid four of 8196 columns."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        return a.to(torch.float8_e4m3fn).float() @ b.to(torch.float8_e4m3fn).float()

    def short(a: Tensor, b: Tensor) -> Tensor:
        return product(a[:, :-4], b[:-4])

    case = case_of(
        short,
        inputs=lambda: (torch.randn(16, 2052), torch.randn(2052, 16)),
        reference=lambda a, b: a.double() @ b.double(),
        weights=(1,),
        gate=snr("e4m3"),
    )
    near = variant(case, "exact")
    for version, outcome in ((product, "right"), (short, "wrong")):
        found = try_shape(near, {INCUMBENT: product, CANDIDATE: version}, "cpu", 7)
        assert found and found.outcomes == {INCUMBENT: "right", CANDIDATE: outcome}
    assert try_shape(variant(case_of(), "exact"), {INCUMBENT: softmax}, "cpu", 7) is None
