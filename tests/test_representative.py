"""Which cases are proposed to stand for all (C3), as a pure rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.campaign.levels import propose
from pytest_kopt.schema.table import Table, make_row
from tests.builders import few_examples

HEADER = ("label", "G", "M", "distribution", "Check", "Forward TFLOPS", "Forward TFLOPS_stddev")


def table(*cases: dict[str, Any]) -> Table:
    """Cases of growing M; what is not given is uniform, PASS and steady."""
    usual = {"G": 4, "distribution": "uniform", "Check": "PASS", "spread": 0.0}
    rows = []
    for i, case in enumerate(cases, start=1):
        found = {"label": f"case{i}", "M": 64 * i, **usual, **case}
        values = {"Forward TFLOPS": 100.0, "Forward TFLOPS_stddev": found.pop("spread")}
        rows.append(make_row(HEADER, {**found, **values}))
    return Table(HEADER, tuple(rows))


def chosen(*cases: dict[str, Any]) -> list[int]:
    """The numbers of the proposed cases."""
    return [int(row.label.removeprefix("case")) for row in propose(table(*cases))]


STEADY: list[dict[str, Any]] = [{} for _ in range(9)]


@pytest.mark.parametrize(
    ("count", "proposed"), [(0, 0), (1, 1), (3, 3), (6, 3), (15, 3), (16, 4), (20, 5), (119, 5)]
)
def test_three_to_five_stand_for_all(count: int, proposed: int) -> None:
    assert len(chosen(*({} for _ in range(count)))) == proposed


def test_steady_cases_give_the_smallest_and_the_largest() -> None:
    assert chosen(*STEADY) == [1, 6, 9]


def test_of_cases_of_a_size_the_one_that_varies_most_is_taken() -> None:
    varying = [*STEADY]
    varying[1], varying[2] = {"spread": 3.0}, {"spread": 1.0}
    varying[4], varying[7] = {"spread": 0.1}, {"spread": 9.0}
    assert chosen(*varying) == [2, 5, 8]


def test_size_is_not_the_order_of_declaration() -> None:
    sizes = [512, 64, 256, 128, 1024, 32]
    assert chosen(*({"M": size} for size in sizes)) == [3, 5, 6], "256, 1024 and 32"


def test_only_passing_cases_are_proposed() -> None:
    first: list[dict[str, Any]] = [{"Check": "FAIL", "spread": 50.0}, {"Check": "ERROR"}]
    assert chosen(*first, *STEADY[2:]) == [3, 6, 9]


def test_a_skewed_distribution_takes_the_place_of_its_bands_uniform_one() -> None:
    skewed = [*STEADY]
    skewed[4] = {"distribution": "one_expert"}
    skewed[5] = {"spread": 5.0}
    assert chosen(*skewed) == [1, 5, 9]
    skewed[8] = {"distribution": "top2_cf1.0"}
    assert chosen(*skewed) == [1, 6, 9], "one is there already"


def test_a_spread_that_cannot_be_told_counts_as_none() -> None:
    odd = [*STEADY]
    odd[1] = {"spread": float("nan")}
    assert chosen(*odd) == [1, 6, 9]


CASES = st.lists(
    st.fixed_dictionaries(
        {
            "Check": st.sampled_from(["PASS", "PASS", "PASS", "FAIL", "ERROR"]),
            "spread": st.sampled_from([0.0, 0.5, 2.0, 40.0]),
            "distribution": st.sampled_from(["uniform", "uniform", "one_expert"]),
        }
    ),
    max_size=40,
)


@few_examples
@given(CASES, st.randoms(use_true_random=False))
def test_whatever_the_cases(cases: list[dict[str, Any]], order: Any) -> None:
    """Also in a shuffled table: it covers small and large, and skew where there is any."""
    rows = list(table(*cases).rows)
    order.shuffle(rows)
    proposed = propose(Table(HEADER, tuple(rows)))
    passing = [row for row in rows if row.check == "PASS"]
    assert [row for row in rows if row in proposed] == list(proposed), "in the table's order"
    assert all(row.check == "PASS" for row in proposed)
    assert min(3, len(passing)) <= len(proposed) <= 5
    sizes = sorted(int(row.dims["M"]) for row in passing)
    found = [int(row.dims["M"]) for row in proposed]
    if len(sizes) >= 3:
        third = -(-len(sizes) // 3)
        assert min(found) <= sizes[third - 1] and max(found) >= sizes[-third]
    if any(row.dims["distribution"] != "uniform" for row in passing):
        assert any(row.dims["distribution"] != "uniform" for row in proposed)
