"""Content that is new at every timed call, and what of a tensor stays as it is."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from itertools import combinations
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_kopt.cases.case import declare
from pytest_kopt.cases.order import WEIGHT_BITS, Bench
from pytest_kopt.cases.running.run_case import run_case
from pytest_kopt.cases.running.spot_checks import Spotted, recorded, wrong_results
from pytest_kopt.cases.running.timed_calls import Backward, Content, Forward, input_sets
from pytest_kopt.cases.running.timing import prepare_blocks
from pytest_kopt.honesty.inputs import RestoredArguments
from pytest_kopt.honesty.renewal import Renewal
from pytest_kopt.measure.cold import InputPool
from pytest_kopt.measure.wall import WallBlock, WallEngine

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


def content(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(torch.uint8).flatten().tolist())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_content_comes_twice(dtype: torch.dtype) -> None:
    tensor = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    renewal = Renewal([tensor])
    seen = {content(tensor)}
    for number in range(300):
        renewal.write(number)
        seen.add(content(tensor))
        assert len(seen) == number + 2


def test_nothing_drifts_away_and_no_content_is_a_multiple_of_another() -> None:
    before = torch.linspace(1, 3, 32)
    tensor = before.clone().requires_grad_()
    renewal = Renewal([tensor])
    last = before
    for seed in range(1000):
        renewal.write(seed)
        ratios = tensor.detach() / last
        assert float(ratios.max() - ratios.min()) > 1e-3
        last = tensor.detach().clone()
    assert 0.87 < float(tensor.detach().min()) <= float(tensor.detach().max()) < 3.38


def test_integers_stay_and_an_expanded_tensor_changes_as_one() -> None:
    index, wide = torch.arange(8), torch.ones(1, 4).expand(8, 4)
    Renewal([index, wide]).write(3)
    assert torch.equal(index, torch.arange(8))
    assert float(wide.min()) == float(wide.max()) != 1.0


def test_zeros_and_what_is_said_twice_keep_their_places() -> None:
    """On a diagonal a zero of the other triangle divides by zero; kernels read half a table."""
    triangle = torch.tril(torch.rand(32, 32) + 1)
    table, plain = torch.rand(16, 16).repeat(1, 2), torch.rand(16, 32)
    kept = plain.clone()
    renewals = [Renewal([triangle, table]), Renewal([kept], in_order=True)]
    before = triangle.clone()
    for seed in range(30):
        for renewal in renewals:
            renewal.write(seed)
        assert torch.equal(triangle == 0, before == 0)
        assert torch.equal(table[:, :16], table[:, 16:])
    assert (triangle / before)[before != 0].std() > 1e-3
    assert float((kept / plain).std()) < 1e-6


#: Sets of a block, each for one call.
SETS = 9


def watched(
    function: Callable[[torch.Tensor], torch.Tensor],
    inputs: Callable[[], tuple[torch.Tensor]],
    reference: Callable[[torch.Tensor], torch.Tensor],
    *,
    is_scaled: bool = True,
) -> Spotted:
    """A block of calls of a case, each on new content: drawn, or scaled as where that is long."""
    case = declare(
        "t.py::test_it",
        "single",
        function,
        inputs=inputs,
        reference=reference,
        dims={"n": 64},
    )
    sets = dict(enumerate(input_sets([case], 0, range(SETS))))
    content = Content([case], sets, 1 << 20 if is_scaled else SETS)
    calls = [Forward(case, function, RestoredArguments(held, ())) for held in sets.values()]
    recorders = recorded(calls, says_where=True)
    return Spotted(WallBlock(recorders, SETS), recorders, content)


@pytest.mark.parametrize("calls", [SETS // 2, SETS, 3 * SETS])
def test_a_look_keeps_any_of_the_repeated_calls_on_content_that_was_not_there_before(
    calls: int,
) -> None:
    seen: list[bytes] = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        seen.append(content(x))
        return x.clone()

    case = declare(
        "t.py::test_it",
        "single",
        noting,
        inputs=lambda: (torch.randn(64),),
        reference=torch.clone,
        dims={"n": 64},
    )
    sets = dict(enumerate(input_sets([case], 0, range(SETS))))
    held = [Forward(case, noting, RestoredArguments(given, ())) for given in sets.values()]
    recorders = recorded(held)
    block = WallBlock(recorders, calls)
    spotted = Spotted(block, recorders, Content([case], sets, SETS), own_sets=SETS)
    for seed in range(60):
        spotted.run_written()
        known = {*seen}
        seen.clear()
        spotted.look(seed)
        assert not known & {*seen}
    spots = [spot for _, spot in spotted.spots()]
    assert {spot.number for spot in spots} == {*range(min(calls, SETS))}
    assert wrong_results([spotted], {}) == []
    for spot in spots:
        torch.testing.assert_close(spot.results["out"], spot.inputs[0])


def blocks_on(spotted: Spotted, *seeds: int) -> None:
    """Run a block on the content of each seed, and keep a call of each."""
    dice = random.Random(3)
    for place, seed in enumerate(seeds):
        spotted.write(seed)
        spotted.run_written()
        spotted.keep(place, dice.randrange(SETS))


def test_what_is_wrong_on_timed_content_whether_timed_or_not_is_no_finding() -> None:
    """It is scaled, and no test has said that the kernel can work with that."""
    seen: list[bytes] = []

    def whole(x: torch.Tensor) -> torch.Tensor:
        seen.append(content(x))
        return torch.where(x == x.round(), x, torch.nan)

    spotted = watched(whole, lambda: (torch.randint(1, 9, (64,)).float(),), lambda x: x)
    blocks_on(spotted, *range(4))
    assert len(set(seen)) == len(seen) == 4 * spotted.calls
    assert wrong_results([spotted], {}) == []


def test_a_wrong_result_at_any_call_is_seen() -> None:
    def wrong_when_timed(x: torch.Tensor) -> torch.Tensor:
        return -x if "run_written" in {frame.function for frame in inspect.stack(0)} else 2 * x

    spotted = watched(wrong_when_timed, lambda: (torch.randn(64),), lambda x: 2 * x)
    next(spotted.drawn_runs(random.Random(5), 1))
    assert [found.check for found in wrong_results([spotted], {})] == ["timed-result"]


@pytest.mark.parametrize(("wrong", "is_seen"), [(4, False), (8, True), (1000, True)])
def test_integers_in_a_block_are_as_exact_as_in_a_check(wrong: int, is_seen: bool) -> None:
    """By their SNR they are nearly right, and few of them may be ties."""

    def counted(x: torch.Tensor) -> torch.Tensor:
        counts = (1000 + 100 * x).int()
        if "run_written" in {frame.function for frame in inspect.stack(0)}:
            counts[:wrong] += 1
        return counts

    spotted = watched(counted, lambda: (torch.rand(1000),), lambda x: (1000 + 100 * x).int())
    next(spotted.drawn_runs(random.Random(5), 1))
    found = wrong_results([spotted], {})
    assert [one.check for one in found] == ["timed-result"] * is_seen


def test_no_content_of_a_block_is_a_multiple_of_another() -> None:
    """Of a product the answer to a multiple is known."""
    seen: list[torch.Tensor] = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.clone())
        return x.clone()

    blocks_on(watched(noting, lambda: (torch.rand(64) + 1,), lambda x: x), 7, 8)
    assert len(seen) == 2 * SETS
    for one, other in combinations(seen, 2):
        assert float((one / other).std()) > 1e-3


def test_a_block_meets_what_its_seed_says_whatever_was_before() -> None:
    """So a judge can draw it anew, and nobody knows it before the order comes."""
    seen: list[bytes] = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        seen.append(content(x))
        return x.clone()

    spotted = watched(noting, lambda: (torch.randn(64),), lambda x: x)
    blocks: list[list[bytes]] = []
    for place, seed in enumerate((7, 8, 7, 8)):
        seen.clear()
        spotted.write(seed)
        spotted.run_written()
        spotted.keep(place, place % SETS)
        blocks.append(list(seen))
    assert blocks[0] == blocks[2]
    assert blocks[1] == blocks[3]
    assert not {*blocks[0]} & {*blocks[1]}
    for (_, spot), block in zip(spotted.spots(), blocks, strict=True):
        assert content(spot.inputs[0]) == block[spot.number]
        assert content(spot.results["out"]) == block[spot.number]
    assert wrong_results([spotted], {}) == []


def test_any_call_of_a_block_may_be_the_one_that_is_kept() -> None:
    spotted = watched(torch.clone, lambda: (torch.randn(64),), lambda x: x)
    blocks_on(spotted, *range(200))
    assert {spot.number for _, spot in spotted.spots()} == {*range(spotted.calls)}


def test_content_that_is_not_scaled_is_drawn_for_every_call() -> None:
    seen: list[bytes] = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        seen.append(content(x))
        return x.clone()

    spotted = watched(noting, lambda: (torch.randint(1 << 30, (64,)),), lambda x: x)
    blocks_on(spotted, 7, 8, 7)
    assert len({*seen}) == 2 * SETS and seen[:SETS] == seen[-SETS:]


def test_a_call_that_did_not_run_is_wrong() -> None:
    spotted = watched(torch.clone, lambda: (torch.randn(64),), lambda x: x)
    spotted.write(7)
    spotted.keep(0, 0)
    assert [found.check for found in wrong_results([spotted], {})] == ["timed-result"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_answer_to_the_content_before_is_wrong_in_any_dtype(dtype: torch.dtype) -> None:
    """It is a few percent off, which is far more than the function is on its own content."""
    answers: list[torch.Tensor] = []

    def stale(x: torch.Tensor) -> torch.Tensor:
        if "run_written" not in {frame.function for frame in inspect.stack(0)}:
            return 2 * x
        answers.append(2 * x)
        return answers[-2] if answers[1:] else answers[0]

    spotted = watched(stale, lambda: (torch.randn(64).to(dtype),), lambda x: 2 * x.double())
    blocks_on(spotted, *range(4))
    assert "timed-result" in {found.check for found in wrong_results([spotted], {})}


def test_no_operator_of_torchs_meets_the_content_of_a_timed_call() -> None:
    """Who is told of each could compute the answer before the clock starts."""
    x = torch.randn(64, 64)
    seen: list[torch.Tensor] = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            seen.append(x.clone())
            return result

    renewal = Renewal([x])
    for seed in range(3):
        seen.clear()
        with Listening():  # type: ignore[no-untyped-call]
            renewal.write(seed)
        assert seen and not any(torch.equal(x, known) for known in seen)


@pytest.mark.parametrize("domain", ["", "declared order"])
def test_a_function_of_sorted_rows_is_timed_where_the_case_says_so(domain: str) -> None:
    """A Cholesky factorisation could not be timed: what is exchanged is not positive definite."""

    def among(x: torch.Tensor) -> torch.Tensor:
        if bool((x.diff() < 0).any()):
            raise ValueError("rows are not sorted")
        return x * torch.searchsorted(x, x.mean(-1, keepdim=True))

    case = declare(
        "t.py::test_it",
        "single",
        among,
        inputs=lambda: (torch.rand(1024, 512).sort(-1).values,),
        reference=lambda x: among(x.double()),
        dims={"n": 32},
        domain=domain,
    )
    result, _, _ = run_case(case, Bench("cpu", "auto", 1, cpu=WallEngine(block_seconds=0.005)))
    assert result.check == ("PASS" if domain else "ERROR"), result.diagnosis
    assert ("domain='declared order'" in result.diagnosis) == (not domain)


class Numbered(torch.autograd.Function):
    """The identity; its backward multiplies by how many forwards there had been at its own."""

    forwards = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Numbered.forwards += 1
        ctx.number = Numbered.forwards
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.number


def numbered_blocks() -> list[Spotted]:
    """Return the block of a forward that is numbered, and that of its backward."""
    case = declare(
        "t.py::test_it",
        "memory",
        Numbered.apply,
        inputs=lambda: (torch.randn(8, requires_grad=True),),
        reference=Numbered.apply,
        dims={"n": 8},
        backward=True,
        nbytes=64,
    )
    bench = Bench("cpu", "auto", 1)
    pool = InputPool(input_sets([case], 1, range(SETS)), 1, 0)
    versions = {"": Numbered.apply}
    (blocks,) = prepare_blocks(versions, [case], pool, bench, 1, engines=["auto"]).values()
    return blocks


def test_a_backward_goes_over_the_graph_of_the_forward_that_was_timed_before_it() -> None:
    """A forward that is not timed could do the backward's work."""
    forward, backward = numbered_blocks()
    forward.write(5)
    before = Numbered.forwards
    forward.run_written()
    backward.write(5)
    calls = [cast("Backward", recorder.call) for recorder in backward._recorders]
    incoming = [call.changing[0].clone() for call in calls]
    backward.run_written()
    assert Numbered.forwards == before + SETS, "no forward but those that were timed"
    for number, recorder in enumerate(backward._recorders):
        assert torch.equal(recorder.result[0], incoming[number] * (before + number + 1))


def test_the_first_calls_of_a_block_run_alone_on_content_of_their_own() -> None:
    forward, backward = numbered_blocks()
    inputs = [recorder.call.inputs[0] for recorder in forward._recorders]
    for seed, calls in ((5, 0), (6, 1), (7, 2), (8, 0)):
        before, met = Numbered.forwards, [content(x) for x in inputs]
        forward.write(seed, calls)
        forward.run_written()
        ran = calls or SETS
        new = [content(x) != old for x, old in zip(inputs, met, strict=True)]
        assert new == [True] * ran + [False] * (SETS - ran)
        assert Numbered.forwards == before + ran
        backward.write(seed, calls)
        backward.run_written()
        for recorders in (forward._recorders, backward._recorders):
            assert [recorder.has_run for recorder in recorders] == new
        assert Numbered.forwards == before + ran, "each backward goes over its forward's graph"


@pytest.mark.parametrize("domain", [(), ("moderate values",)])
def test_weights_are_new_in_each_block_and_the_same_for_its_calls(domain: tuple[str, ...]) -> None:
    """What tells them by their address, by samples or by the sum of their bits has old ones."""
    table = torch.linspace(1, 2, 64)

    def inputs() -> tuple[torch.Tensor, ...]:
        return torch.randn(64), torch.randn(64, 4), table.clone(), torch.randperm(64)

    case = declare(
        *("t.py::test_it", "single", torch.add),
        inputs=inputs,
        reference=torch.add,
        dims={"n": 64},
        weights=(1, 2, 3),
        domain=domain,
    )
    sets = dict(enumerate(input_sets([case], 0, range(SETS))))
    drawn = [weight.clone() for weight in sets[0][1:]]
    block = Content([case], sets, SETS)
    seen, sums, version = set[bytes](), set[int](), -1
    for step in range(16):
        block.write(step << WEIGHT_BITS, "candidate")
        _, weight, *kept = sets[0]
        assert all(arguments[1] is weight for arguments in sets.values())
        assert [*map(content, kept)] == [*map(content, drawn[1:])]
        assert (weight._version > version) or (domain and step)
        version = weight._version
        seen.add(content(weight))
        sums.add(int(weight.view(torch.int64).sum()))
    block.write((15 << WEIGHT_BITS) + 1, "candidate")
    assert weight._version == version, "a single call keeps the weights of the block before"
    assert (len(seen), len(sums)) == ((1, 1) if domain else (16, 2))


@pytest.mark.parametrize("size", [64, 1 << 17])
def test_numbers_that_a_case_draws_are_new_in_every_call(size: int) -> None:
    """A memo by the seed of a mask would answer in each block after the first."""
    seen: list[tuple[int, float]] = []

    def noting(x: torch.Tensor, seed: int, scale: float) -> torch.Tensor:
        seen.append((seed, scale))
        return x * scale + seed % 7

    case = declare(
        "t.py::test_it",
        "single",
        noting,
        inputs=lambda: (torch.randn(size), int(torch.randint(1 << 40, ())), 0.5),
        reference=lambda x, seed, scale: x.double() * scale + seed % 7,
        dims={"n": size},
    )
    pool = InputPool(input_sets([case], 1, range(SETS)), 1, 0)
    bench = Bench("cpu", "auto", 1)
    ((block,),) = prepare_blocks({"": noting}, [case], pool, bench, 1, engines=["auto"]).values()
    seen.clear()
    blocks_on(block, 5, 6, 5)
    assert len({seed for seed, _ in seen}) == 2 * SETS and seen[:SETS] == seen[-SETS:]
    assert {scale for _, scale in seen} == {0.5}
    assert wrong_results([block], {}) == []
