"""Values that no case draws: numbers at their ends, places, neighbours, gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.nearby.layouts import variants
from pytest_kopt.cases.nearby.variant import Variant
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.running.heldout import try_shape
from pytest_kopt.cases.running.switches import left_switches, read_switches, switches_kept
from pytest_kopt.honesty.nearby_shapes import Tried, held_out_findings, merged

Function = Callable[..., Any]
Inputs = Callable[[], tuple[Any, ...]]


def case_of(candidate: Function, inputs: Inputs, reference: Function, **more: Any) -> Case:
    declared: dict[str, Any] = {"dims": {"n": 1}, "nbytes": 4096} | more
    return declare("t", "memory", candidate, inputs=inputs, reference=reference, **declared)


def told(
    incumbent: Function,
    candidate: Function,
    inputs: Inputs,
    reference: Function,
    language: str = "",
    **more: Any,
) -> dict[str, str]:
    """Return what becomes of a candidate by kind and variant, where the incumbent is right."""
    case = case_of(candidate, inputs, reference, **more)
    versions = {INCUMBENT: incumbent, CANDIDATE: candidate}
    tried = [try_shape(near, versions, "cpu", 7, language) for near in variants(case, 7)]
    comparable = [item for item in merged(filter(None, tried)) if CANDIDATE in item.outcomes]
    assert len(comparable) > 5
    return {f"{item.kind} {item.variant}".strip(): item.outcomes[CANDIDATE] for item in comparable}


def wrong(*versions: Any, **more: Any) -> set[str]:
    return {name for name, outcome in told(*versions, **more).items() if outcome == "wrong"}


def normed(x: Tensor, eps: Any) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def leaky(x: Tensor, slope: Any) -> Tensor:
    return torch.where(x > 0, x, slope * x)


@pytest.mark.parametrize(
    ("function", "given", "candidate", "where"),
    [
        (normed, 1e-5, lambda x, eps: normed(x, 1e-5), {"", ", large", ", small"}),
        # With the inputs that the case draws no smaller one shows.
        (normed, 1e-5, lambda x, eps: normed(x, max(eps, 1e-5)), {", small"}),
        (normed, 1e-5, lambda x, eps: normed(x, min(eps, 0.5)), {", large"}),
        (leaky, 0.01, lambda x, slope: leaky(x, min(slope, 0.2)), {""}),
        (leaky, torch.tensor(2.0), lambda x, slope: leaky(x, slope.clamp(max=4)), {", large"}),
        (normed, 1e-5, normed, set()),
    ],
)
def test_a_number_is_tried_as_far_out_as_it_shows(
    function: Function, given: Any, candidate: Function, where: set[str]
) -> None:
    found = wrong(
        function,
        candidate,
        lambda: (torch.randn(8, 64), given),
        lambda x, number: function(x.double(), number),
    )
    assert {name for name in found if name.startswith("numbers")} >= {
        f"numbers input 1{end}" for end in where
    }
    assert bool(found) == bool(where)


def test_a_number_that_makes_nan_is_moved_no_further() -> None:
    """An error between two variants would end the trial of all that follow."""
    found = told(
        lambda x, power: x**power,
        lambda x, power: x**power,
        lambda: (torch.randn(8, 64), 2.0),
        lambda x, power: x.double() ** power,
    )
    assert {name.partition(" ")[0] for name in found} >= {"numbers", "large", "wider"}


def test_what_one_variant_shows_no_other_hides() -> None:
    """The same input changed twice was one entry, of the last outcome."""
    drawn = list(
        variants(
            declare(
                "t",
                "memory",
                normed,
                inputs=lambda: (torch.randn(8, 64), [0.5, 0.25]),
                reference=lambda x, eps: normed(x.double(), eps[0]),
                dims={"n": 1},
                nbytes=4096,
            ),
            7,
        )
    )
    names = [(near.kind, near.where, repr(near.case.dims)) for near in drawn]
    assert len({*names}) == len(names)
    shown = Tried("t", "numbers", {}, {INCUMBENT: "right", CANDIDATE: "wrong"}, variant="input 1")
    hidden = replace(shown, outcomes={INCUMBENT: "right", CANDIDATE: "right"}, variant="input 2")
    (finding,) = held_out_findings(merged([shown, hidden]), CANDIDATE, INCUMBENT, {})
    assert finding.rejects


def rows_of(table: Tensor, at: Tensor) -> Tensor:
    return table[at.long()]


@pytest.mark.parametrize(
    ("candidate", "found"),
    [
        (lambda table, at: table[at.clamp_min(0)], {"behind input 1"}),
        (lambda table, at: table[at.abs()], {"behind input 1"}),
        (lambda table, at: table[at.clamp_max(498)], {"places input 1, last"}),
        (lambda table, at: table[at] * (at.unique().numel() > 1), {"places input 1, first"}),
        (rows_of, set()),
    ],
)
def test_places_are_tried_at_their_ends_and_from_behind(
    candidate: Function, found: set[str]
) -> None:
    def inputs() -> tuple[Tensor, Tensor]:
        # The last place is not drawn.
        return torch.randn(500, 16), torch.randint(499, (64,))

    said = wrong(rows_of, candidate, inputs, lambda table, at: table.double()[at])
    assert said >= found and bool(said) == bool(found)


@pytest.mark.parametrize("at", [torch.tensor([0, 7, 7, 20]), torch.randperm(32), torch.ones(8) > 0])
def test_offsets_slots_and_masks_are_no_places_to_move(at: Tensor) -> None:
    """Offsets end with a size, and slots differ, as two rows written to one place have no order."""
    case = declare(
        "t",
        "memory",
        lambda x, at: x,
        inputs=lambda: (torch.randn(20, 32), at),
        reference=lambda x, at: x.double(),
        dims={"n": 1},
        nbytes=4096,
    )
    named = {near.where for near in variants(case, 7) if near.kind == "places"}
    assert named.isdisjoint({"input 1, first", "input 1, last"})


def test_segments_need_not_be_sorted() -> None:
    def by_place(values: Tensor, ids: Tensor) -> Tensor:
        return torch.zeros(8, values.shape[1], dtype=values.dtype).index_add_(0, ids, values)

    def by_length(values: Tensor, ids: Tensor) -> Tensor:
        parts = values.split(torch.bincount(ids, minlength=8).tolist())
        return torch.stack([part.sum(0) for part in parts])

    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(32, 8), torch.randint(8, (32,)).sort().values

    found = wrong(by_place, by_length, inputs, lambda x, ids: by_place(x.double(), ids))
    assert "places input 1, shuffled" in found


def best(x: Tensor) -> tuple[Tensor, Tensor]:
    found = x.topk(4, -1)
    return found.values, found.indices


def at_places(x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    places = seen.topk(4, -1).indices
    return x.gather(-1, places), places


@pytest.mark.parametrize(
    ("candidate", "found"),
    [
        (lambda x: at_places(x, x.view(torch.int32) & ~1023), {"close in the last bit"}),
        (lambda x: at_places(x, (x * 2**16).round()), {"close denormal"}),
        (lambda x: at_places(x, x.masked_fill(x.abs() < 2e-38, 0)), {"close denormal"}),
        (
            lambda x: at_places(x, (x / x.abs().amax() * 2**20).round()),
            {"close one huge element a row"},
        ),
        (lambda x: at_places(x, x), set()),
    ],
    ids=["packed", "fixed point", "flushed", "scaled", "right"],
)
def test_places_among_close_values_are_right(candidate: Function, found: set[str]) -> None:
    def inputs() -> tuple[Tensor]:
        # No two values lie close together.
        return ((torch.randperm(512).view(8, 64) - 255.5) / 64,)

    said = wrong(best, candidate, inputs, lambda x: best(x.double()))
    assert said >= found and bool(said) == bool(found)


def test_a_sum_of_close_values_may_round() -> None:
    """What one pass makes of them is the formula's doing."""

    def two_passes(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.var(-1, correction=0), x.argmax(-1)

    def one_pass(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.square().mean(-1) - x.mean(-1).square(), x.argmax(-1)

    def inputs() -> tuple[Tensor]:
        return (torch.randn(8, 64),)

    found = wrong(two_passes, one_pass, inputs, lambda x: two_passes(x.double()))
    assert not [name for name in found if name.startswith("close")]


def test_what_is_left_of_a_row_of_one_value_is_rounding() -> None:
    def normed_rows(x: Tensor, mean: Tensor) -> Tensor:
        centred = x - mean
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)

    def exact(x: Tensor) -> Tensor:
        return normed_rows(x, x.double().mean(-1, keepdim=True).to(x))

    def by_halves(x: Tensor) -> Tensor:
        halves = [half.sum(-1, keepdim=True) for half in x.split(x.shape[-1] // 2 + 1, -1)]
        return normed_rows(x, sum(halves) / x.shape[-1] * (1 + 1e-7))

    def one_off(x: Tensor) -> Tensor:
        return normed_rows(x, x[:, 1:].sum(-1, keepdim=True) / x.shape[-1])

    def no_epsilon(x: Tensor) -> Tensor:
        return x.sub(x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=0)

    def inputs() -> tuple[Tensor]:
        return (torch.randn(8, 64),)

    def reference(x: Tensor) -> Tensor:
        return exact(x.double())

    assert "constant" not in wrong(exact, by_halves, inputs, reference)
    for candidate in (one_off, no_epsilon):
        assert "constant" in wrong(exact, candidate, inputs, reference)


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 3 * x**2


class Detached(Squares):
    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0].detach() * 3 * x.detach() ** 2


class Partly(Squares):
    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 3 * x * x.detach()


class Slightly(Squares):
    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 3 * (0.95 * x + 0.05 * x.detach()) ** 2


class Once(Squares):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return Detached.backward(ctx, *grads)


def test_a_row_far_larger_than_the_others_leaves_theirs_right() -> None:
    """The sum over all rows up to one, less that before the row, is right where rows are alike."""

    def flat(x: Tensor) -> Tensor:
        sums = x.flatten().cumsum(0).view(x.shape)
        before = torch.cat([sums.new_zeros(1), sums[:-1, -1]])
        return sums - before[:, None]

    found = told(
        lambda x: x.cumsum(1),
        flat,
        lambda: (torch.rand(16, 64),),
        lambda x: x.double().cumsum(1),
    )
    assert found["dominant"] == "wrong"


def test_a_size_that_comes_again_is_judged() -> None:
    """The first call of a size may do what no later one does, and take the time of all others."""
    seen = set[torch.Size]()

    def cut(x: Tensor) -> Tensor:
        is_new = x.shape not in seen
        seen.add(x.shape)
        return x * 2 if is_new or len(x) % 2 == 0 else torch.zeros_like(x)

    case = case_of(cut, lambda: (torch.randn(63, 64),), lambda x: x.double() * 2)
    versions = {INCUMBENT: lambda x: x * 2, CANDIDATE: cut}
    tried = try_shape(Variant(case, kind="uneven"), versions, "cpu", 7)
    assert tried is not None and tried.outcomes[CANDIDATE] == "wrong"


def test_inputs_that_find_no_memory_are_untried() -> None:
    """Other processes of the round hold memory of the GPU: that is not the kernel's doing."""

    def filled(x: Tensor) -> Tensor:
        if float(x.abs().max()) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x * 2

    case = case_of(filled, lambda: (torch.randn(8, 64),), lambda x: x.double() * 2)
    versions = {INCUMBENT: lambda x: x * 2, CANDIDATE: filled}
    tried = {near.kind: try_shape(near, versions, "cpu", 7) for near in variants(case, 7)}
    large = tried["large"]
    assert large is not None and large.untried == "the GPU had not enough memory left"
    assert not large.outcomes


@pytest.mark.parametrize(
    ("function", "language", "outcome"),
    [
        (Squares, "TORCH", "right"),
        (Detached, "TRITON", "raises"),
        (Detached, "TORCH", "wrong"),
        (Partly, "TORCH", "right"),
        (Slightly, "TORCH", "right"),
        (Once, "TORCH", "raises"),
    ],
)
def test_gradients_of_gradients_are_those_of_the_incumbent(
    function: type[torch.autograd.Function], language: str, outcome: str
) -> None:
    """A fused backward has none and cannot say so; torch's operators have, unless detached."""
    found = told(
        lambda x: x**3,
        lambda x: function.apply(x),
        lambda: (torch.randn(8, 64, requires_grad=True),),
        lambda x: x.double() ** 3,
        language,
        backward=True,
    )
    assert found["twice"] == outcome
    assert {name for name, what in found.items() if what != "right"} <= {"twice"}


@pytest.mark.parametrize(("incumbent", "is_asked"), [(Squares, True), (Once, False)])
def test_what_the_incumbent_gives_once_is_asked_once(
    incumbent: type[torch.autograd.Function], is_asked: bool
) -> None:
    found = told(
        lambda x: incumbent.apply(x),
        lambda x: Detached.apply(x),  # type: ignore[no-untyped-call]
        lambda: (torch.randn(8, 64, requires_grad=True),),
        lambda x: x.double() ** 3,
        backward=True,
    )
    assert ("twice" in found) == is_asked


@pytest.mark.parametrize(
    "leave",
    [
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_anomaly_enabled(True),
    ],
)
def test_switches_that_calls_leave_are_named(leave: Callable[[], object]) -> None:
    with switches_kept():
        before = read_switches()
        assert [*left_switches(before)] == []
        leave()
        (finding,) = left_switches(before)
    assert finding.check == "switch-left" and not finding.rejects
    assert [*left_switches(before)] == []


@pytest.mark.parametrize(
    ("candidate", "found"),
    [
        (lambda x, steps: torch.roll(x, abs(steps), 1), {"signs input 1"}),
        (lambda x, steps: torch.roll(x, steps % 48, 1), set()),
    ],
)
def test_positive_integers_are_tried_with_the_other_sign(
    candidate: Function, found: set[str]
) -> None:
    def rolled(x: Tensor, steps: int) -> Tensor:
        return torch.roll(x, steps, 1)

    said = wrong(rolled, candidate, lambda: (torch.randn(8, 48), 3), rolled)
    assert said == found


def test_a_count_that_the_reference_refuses_below_zero_is_not_asked() -> None:
    def largest(x: Tensor, count: int) -> Tensor:
        return x.topk(count, 1).values

    found = told(largest, largest, lambda: (torch.randn(8, 48), 3), lambda x, k: largest(x, k))
    assert "signs input 1" not in found


def as_in_memory(table: Tensor, at: Tensor, dtype: torch.dtype) -> Tensor:
    """Read the memory of indices as that of a dtype, as what is handed an address does."""
    memory = torch.empty(0, dtype=dtype).set_(at.untyped_storage())
    return table[memory[: at.numel()].long() % len(table)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("candidate", "found"), [(as_in_memory, {"integers input 1"}), (None, set())]
)
def test_indices_are_tried_in_the_other_width(
    candidate: Any, found: set[str], dtype: torch.dtype
) -> None:
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(64, 16), torch.randint(64, (32,), dtype=dtype)

    def called(table: Tensor, at: Tensor) -> Tensor:
        return candidate(table, at, dtype) if candidate else table[at.int()]

    told_of = told(rows_of, called, inputs, lambda table, at: table.double()[at])
    assert "integers input 1" in told_of
    said = {name for name, outcome in told_of.items() if outcome == "wrong"}
    assert {name for name in said if name.startswith("integers")} == found


def standardised(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def by_squares(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def by_layer_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


@pytest.mark.parametrize(
    ("candidate", "found"), [(by_squares, {"far"}), (by_layer_norm, set()), (standardised, set())]
)
def test_a_mean_far_from_zero_shows_squares_that_cancel(
    candidate: Function, found: set[str]
) -> None:
    def inputs() -> tuple[Tensor]:
        return (torch.randn(8, 256),)

    told_of = told(standardised, candidate, inputs, lambda x: standardised(x.double()))
    assert "far" in told_of
    assert {name for name, outcome in told_of.items() if outcome == "wrong"} == found


@pytest.mark.parametrize(
    ("function", "dtype"), [(standardised, torch.bfloat16), (lambda x: (999 * x).sin(), None)]
)
def test_where_last_bits_decide_far_from_zero_nothing_is_asked(
    function: Function, dtype: torch.dtype | None
) -> None:
    """A coarse format keeps nothing of what lies around such a mean."""

    def run(x: Tensor) -> Tensor:
        return function(x.double()).to(x.dtype)  # type: ignore[no-any-return]

    def inputs() -> tuple[Tensor]:
        return (torch.randn(8, 256, dtype=dtype),)

    assert "far" not in told(run, run, inputs, lambda x: function(x.double()))
