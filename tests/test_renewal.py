"""Content that is new at every timed call, and what of a tensor stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_kopt.cases.case import declare
from pytest_kopt.cases.running.execution import make_inputs
from pytest_kopt.cases.running.spot_checks import Forward, Looks, Recorder, Spotted, wrong_results
from pytest_kopt.honesty.inputs import Held
from pytest_kopt.honesty.renewal import Renewal
from pytest_kopt.measure.wall import WallEngine

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


def content(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(torch.uint8).flatten().tolist())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_content_comes_twice(dtype: torch.dtype) -> None:
    tensor = torch.randn(16, 16).to(dtype)
    renewal = Renewal([tensor], 1)
    seen = {content(tensor)}
    for number in range(300):
        renewal()
        seen.add(content(tensor))
        assert len(seen) == number + 2


def test_nothing_drifts_away_and_no_content_is_a_multiple_of_another() -> None:
    before = torch.linspace(1, 3, 32)
    tensor = before.clone().requires_grad_()
    renewal = Renewal([tensor], 2)
    last = before
    for _ in range(1000):
        renewal()
        ratios = tensor.detach() / last
        assert float(ratios.max() - ratios.min()) > 1e-3
        last = tensor.detach().clone()
    assert 0.87 < float(tensor.detach().min()) <= float(tensor.detach().max()) < 3.38


def test_integers_stay_and_an_expanded_tensor_changes_as_one() -> None:
    index, wide = torch.arange(8), torch.ones(1, 4).expand(8, 4)
    Renewal([index, wide], 3)()
    assert torch.equal(index, torch.arange(8))
    assert float(wide.min()) == float(wide.max()) != 1.0


def watched(
    function: Callable[[torch.Tensor], torch.Tensor],
    inputs: Callable[[], tuple[torch.Tensor]],
    reference: Callable[[torch.Tensor], torch.Tensor],
    looks: Looks | None,
) -> Spotted:
    """A block of nine calls of a case, each on new content."""
    case = declare(
        "t.py::test_it",
        "single",
        function,
        inputs=inputs,
        reference=reference,
        dims={"n": 64},
    )
    call = Forward(function, Held(make_inputs(case, 0), ()), ())
    recorder = Recorder(call, "cpu")
    renewal = Renewal(call.changing, 4, restores=True)
    block = WallEngine(iterations=9).prepare([recorder], renewal)
    return Spotted(block, case, [recorder], looks, renewal)


def test_a_call_that_is_looked_at_gets_content_of_the_cases_own() -> None:
    """Any other content is scaled, and no test has said that the kernel can work with that."""
    seen: list[bytes] = []

    def whole(x: torch.Tensor) -> torch.Tensor:
        seen.append(content(x))
        return torch.where(x == x.round(), x, torch.nan)

    spotted = watched(
        whole, lambda: (torch.randint(1, 9, (64,)).float(),), lambda x: x, Looks(4, 4, 5)
    )
    seen.clear()
    for _ in range(4):
        spotted.run()
    assert wrong_results([spotted], {}) == []
    assert len(set(seen)) == len(seen) == 4 * spotted.calls


def test_a_wrong_result_at_any_call_is_seen() -> None:
    spotted = watched(lambda x: -x, lambda: (torch.randn(64),), lambda x: 2 * x, Looks(1, 1, 5))
    spotted.run()
    assert [found.check for found in wrong_results([spotted], {})] == ["timed-result"]


def test_a_block_meets_what_its_seed_says_whatever_was_before() -> None:
    """So both arms of a pair meet the same, and nobody knows it before the order comes."""
    seen: list[bytes] = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        seen.append(content(x))
        return x.clone()

    spotted = watched(noting, lambda: (torch.randn(64),), lambda x: x, None)
    blocks = []
    for seed, is_looked_at in ((7, True), (8, False), (7, True), (8, True), (8, False)):
        seen.clear()
        spotted.run_on(seed, is_looked_at=is_looked_at)
        blocks.append(list(seen))
    assert blocks[0] == blocks[2]
    assert blocks[1] == blocks[4]
    # A block is looked at with the same calls: one of them has content of its own.
    assert sum(a != b for a, b in zip(blocks[1], blocks[3], strict=True)) >= 1
    assert not {*blocks[0]} & {*blocks[1]}
    assert wrong_results([spotted], {}) == []
