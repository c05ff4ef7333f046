"""Token distributions of grouped GEMMs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt import skewed_groups
from pytest_kopt.cases.skew import DISTRIBUTIONS
from pytest_kopt.errors import BadInput

from .builders import few_examples

groups = st.integers(3, 64)
tokens = st.integers(0, 4096)
seeds = st.integers(0, 2**32)


def drawn(count: int, total: int, name: str, seed: int) -> torch.Tensor:
    return skewed_groups(count, total, name, torch.Generator().manual_seed(seed))


@few_examples
@given(groups, tokens, st.sampled_from(sorted(DISTRIBUTIONS)), seeds)
def test_every_distribution(count: int, total: int, name: str, seed: int) -> None:
    sizes = drawn(count, total, name, seed)
    assert sizes.dtype == torch.int64
    assert sizes.shape == (count,)
    assert int(sizes.min()) >= 0
    assert torch.equal(sizes, drawn(count, total, name, seed)), "the generator decides"
    if name in ("uniform", "random"):
        assert int(sizes.min()) >= 1 or total < count, "no group is empty"
    else:
        assert int((sizes == 0).sum()) >= 1, "one group is empty"
    routed, factor = DISTRIBUTIONS[name]
    if factor is None:
        assert int(sizes.sum()) == total
    else:
        assert int(sizes.max()) <= math.ceil(factor * routed * total / count)
        assert int(sizes.sum()) <= routed * total


@few_examples
@given(st.integers(1, 64), tokens)
def test_uniform_differs_by_one_at_most(count: int, total: int) -> None:
    sizes = skewed_groups(count, total, "uniform")
    assert int(sizes.max() - sizes.min()) <= 1


@few_examples
@given(groups, tokens, seeds)
def test_one_expert_has_half_of_the_tokens(count: int, total: int, seed: int) -> None:
    assert 2 * int(drawn(count, total, "one_expert", seed).max()) >= total


def test_routing_is_skewed_and_drawn_anew() -> None:
    for name in ("top1_cf1.25", "random"):
        one, other = (drawn(16, 4096, name, seed) for seed in (1, 2))
        assert not torch.equal(one, other)
        kept = one[one > 0]
        assert int(kept.max()) > 2 * int(kept.min())


@pytest.mark.parametrize(
    ("count", "total", "name", "part"),
    [
        (8, 64, "zipf", "top1_cf1.25"),
        (2, 64, "one_expert", "at least 3 groups"),
        (0, 64, "uniform", "at least 1 groups"),
        (8, -1, "uniform", "0 tokens"),
    ],
)
def test_what_cannot_be_drawn(count: int, total: int, name: str, part: str) -> None:
    with pytest.raises(BadInput, match=part.replace(".", r"\.")):
        skewed_groups(count, total, name)


@few_examples
@given(groups, tokens, st.sampled_from(sorted(DISTRIBUTIONS)), seeds, st.integers(0, 500))
def test_rows_are_made_full_without_filling_an_empty_group(
    count: int, total: int, name: str, seed: int, more: int
) -> None:
    routed = drawn(count, total, name, seed)
    rows = int(routed.sum()) + (more if total else 0)
    generator = torch.Generator().manual_seed(seed)
    full = skewed_groups(count, total, name, generator, rows=rows)
    assert int(full.sum()) == rows
    assert torch.equal(full == 0, routed == 0)
    assert int((full - routed).min()) >= 0


@pytest.mark.parametrize(("total", "rows"), [(64, 10), (0, 1)])
def test_rows_that_cannot_be_made_full(total: int, rows: int) -> None:
    with pytest.raises(BadInput, match=f"{rows} rows for {total} tokens"):
        skewed_groups(8, total, "one_expert", rows=rows)
