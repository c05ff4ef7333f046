"""Grouped GEMMs: group sizes are found among the inputs, and drawn anew in every check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.groups import (
    Groups,
    find_groups,
    redrawn,
    uneven_cases,
    with_steady_groups,
)
from pytest_kopt.cases.order import CANDIDATE, UNEVEN, ArmsOrder, Bench
from pytest_kopt.cases.running.check import CheckedCase, check_case
from pytest_kopt.cases.running.execution import make_inputs
from pytest_kopt.cases.running.timed_calls import input_set, input_sets
from pytest_kopt.cases.running.timed_versions import serve_arms
from pytest_kopt.cases.skew import DISTRIBUTIONS, skewed_groups
from pytest_kopt.errors import BadInput
from pytest_kopt.measure.wall import WallEngine
from tests.builders import a_bench
from tests.fake_ends import TwoBlocks

G, M, N, K = 4, 64, 24, 16
UNIFORM = [M // G] * G


def by_sizes(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    parts = x.split(torch.as_tensor(sizes).tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, w, strict=True)])


def reference(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    return by_sizes(x.double(), w.double(), sizes)


def equal_shares(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    """The shortcut that S0 and S1 forbid."""
    return torch.bmm(x.view(G, -1, K), w).view(-1, N)


def inputs(sizes: Callable[[], Any], rows: int = M) -> Callable[[], tuple[Any, ...]]:
    def made() -> tuple[Any, ...]:
        x, w = torch.randn(rows, K), torch.randn(G, K, N)
        return x.requires_grad_(), w.requires_grad_(), sizes()

    return made


def case_of(function: Callable[..., Any], **changes: Any) -> Case:
    given: dict[str, Any] = {
        "inputs": inputs(lambda: torch.tensor(UNIFORM)),
        "reference": reference,
        "dims": {"G": G, "M": M, "N": N, "K": K, "distribution": "uniform"},
        "backward": True,
        "weights": (1,),
        "flops": 2 * M * N * K,
    }
    return declare("tests/test_g.py::test_g", "grouped_gemm", function, **(given | changes))


def check(function: Callable[..., Any], **changes: Any) -> CheckedCase:
    case = case_of(function, **changes)
    return check_case(case, a_bench(case))


def refused(report: CheckedCase) -> set[str]:
    return {found.check for found in report.findings if found.rejects}


# --- where the sizes are ------------------------------------------------------------------------


def found(*last: Any, rows: int = M, **changes: Any) -> Groups:
    given = (torch.randn(rows, K), torch.randn(G, K, N), *last)
    groups = find_groups(case_of(by_sizes, **changes), given)
    again = groups.replaced(given, [0, 5, 30, 1])
    for item, other in zip(given, again, strict=True):
        assert type(item) is type(other)
        if isinstance(item, Tensor):
            assert (item.shape, item.dtype) == (other.shape, other.dtype)
    return groups


@pytest.mark.parametrize(
    ("said", "layout", "again"),
    [
        (torch.tensor([16, 0, 40, 8]), "sizes", [0, 5, 30, 1]),
        (torch.tensor([16, 0, 40, 8], dtype=torch.int32), "sizes", [0, 5, 30, 1]),
        (torch.tensor([[16], [0], [40], [8]]), "sizes", [[0], [5], [30], [1]]),
        ([16, 0, 40, 8], "sizes", [0, 5, 30, 1]),
        ((16, 0, 40, 8), "sizes", (0, 5, 30, 1)),
        (torch.tensor([0, 16, 16, 56, 64]), "offsets", [0, 0, 5, 35, 36]),
        (torch.tensor([16, 16, 56, 64], dtype=torch.int32), "ends", [0, 5, 35, 36]),
        (torch.tensor([0, 16, 16, 56]), "starts", [0, 0, 5, 35]),
    ],
    ids=str,
)
def test_sizes_are_found_however_they_are_said(said: Any, layout: str, again: Any) -> None:
    groups = found(said)
    assert groups.layouts == {2: layout}
    assert groups.sizes == (16, 0, 40, 8)
    drawn = groups.replaced([None, None, said], [0, 5, 30, 1])[2]
    assert (drawn.tolist() if isinstance(drawn, Tensor) else drawn) == again


def test_inputs_that_say_the_same_are_drawn_together() -> None:
    groups = found(torch.tensor([16, 0, 40, 8]), [0, 16, 16, 56, 64])
    assert groups.layouts == {2: "sizes", 3: "offsets"}


@pytest.mark.parametrize("rows", [M, 80])
def test_rows_that_belong_to_no_group_stay_so(rows: int) -> None:
    """A router dropped some, or a buffer has more than there are tokens."""
    groups = found(torch.tensor([16, 0, 30, 8]), rows=rows)
    assert groups.sizes == (16, 0, 30, 8)
    assert all(sum(groups.drawn(name)) == 54 for name in DISTRIBUTIONS)


def test_where_two_inputs_could_be_sizes_the_case_names_one() -> None:
    others = torch.tensor([16, 0, 40, 8]), torch.tensor([1, 1, 61, 1])
    with pytest.raises(BadInput, match=r"inputs 2, 3 can all be group sizes.*groups=POSITION"):
        found(*others)
    assert found(*others, groups=3).sizes == (1, 1, 61, 1)


@pytest.mark.parametrize(
    ("last", "groups", "part"),
    [
        (None, None, "no input holds the sizes of 4 groups"),
        (torch.ones(G), None, "no input holds"),
        (torch.zeros(G, dtype=torch.int64), None, "no input holds"),
        (torch.tensor([-1, 1, 32, 32]), None, "no input holds"),
        (torch.arange(M) // 16, None, "no input holds"),
        (torch.tensor(UNIFORM), 0, "input 0 does not hold"),
        (torch.tensor(UNIFORM), 3, "groups is 3"),
    ],
    ids=str,
)
def test_a_case_whose_sizes_are_not_found_is_not_judged(
    last: Any, groups: int | None, part: str
) -> None:
    case = case_of(lambda x, w, _: by_sizes(x, w, torch.tensor(UNIFORM)), groups=groups)
    given = (torch.randn(M, K), torch.randn(G, K, N), last)
    with pytest.raises(BadInput, match=part) as refusal:
        find_groups(case, given)
    assert ". Fix: " in str(refusal.value) or "(allowed: 0 to 2)" in str(refusal.value)


@pytest.mark.parametrize(
    "changes", [{"groups": -1}, {"groups": "2"}, {"group_multiple": 0}, {"group_multiple": 1.5}]
)
def test_what_cannot_be_declared(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(changes))} is"):
        case_of(by_sizes, **changes)


def test_a_case_of_another_schema_names_its_sizes() -> None:
    case = case_of(by_sizes)
    memory: dict[str, Any] = {
        **dict.fromkeys(("label", "flops", "gate")),
        "reference": reference,
        "inputs": case.inputs,
        "backward": True,
        "weights": (),
        "nbytes": 8,
    }
    plain = declare("t.py::t", "memory", by_sizes, dims={"rows": M}, **memory)
    assert not plain.is_grouped
    named = declare("t.py::t", "memory", by_sizes, dims={"G": G}, groups=2, **memory)
    assert named.is_grouped and find_groups(named, make_inputs(named, 1)).layouts
    unclear = declare("t.py::t", "memory", by_sizes, dims={"rows": M}, groups=2, **memory)
    with pytest.raises(BadInput, match="dim G is None"):
        find_groups(unclear, make_inputs(unclear, 1))


@pytest.mark.parametrize("count", [1, 2, 3, 64])
@pytest.mark.parametrize("rows", [0, 1, 5, 4096])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_any_groups_and_rows_can_be_drawn(count: int, rows: int, name: str) -> None:
    sizes = Groups({}, (rows, *[0] * (count - 1)), 1).drawn(name)
    assert (len(sizes), sum(sizes)) == (count, rows)
    if name not in ("uniform", "random") and count > 1:
        assert 0 in sizes
    if name == "one_expert":
        assert 2 * max(sizes) >= rows
    assert all(size % 8 == 0 for size in Groups({}, (64, 8), 8).drawn(name))


def test_timed_sets_have_sizes_with_and_without_an_empty_group() -> None:
    """A kernel that knows patterns by their empty group is fast for no other sizes."""
    cases = uneven_cases(case_of(by_sizes, inputs=inputs(lambda: torch.tensor([16] * 4))))
    for seed in range(9):
        sizes = [arguments[2] for arguments in input_sets(cases, seed, range(4))]
        assert sum(int(each.min()) > 0 for each in sizes) == 2
    firsts = {int(input_set(cases, seed, 0)[2].min()) > 0 for seed in range(9)}
    assert firsts == {True, False}


def test_a_timed_set_keeps_its_sizes() -> None:
    case = redrawn(with_steady_groups(case_of(by_sizes)), "one_expert")
    assert case.weights == (1, 2), "nothing new is written there"
    one, other = (make_inputs(case, seed) for seed in (1, 2))
    assert 2 * int(one[2].max()) >= M
    assert not torch.equal(one[2], other[2])
    assert torch.equal(one[2], make_inputs(case, 1)[2])


# --- what a check makes of it -------------------------------------------------------------------


def test_a_kernel_that_ignores_the_sizes_is_refused() -> None:
    report = check(equal_shares)
    assert (report.check, refused(report)) == ("FAIL", {"uneven-groups"})
    (finding,) = report.findings
    assert "rows, top2_cf1.0" in str(finding) and "group_multiple=N" in str(finding)
    assert "groups of 0 to 24 rows, top2_cf1.0" in report.diagnosis
    assert (report.evidence.groups or {}).keys() == {"uniform"}


def _for_many_rows(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    return equal_shares(x, w, sizes) if len(x) >= M else by_sizes(x, w, sizes)


def _with_room_for_twice_the_share(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    parts = x.split(sizes.tolist())
    most = 5 * len(x) // (4 * len(sizes))
    pieces = [
        torch.cat([part[:most] @ matrix, part.new_zeros(max(0, len(part) - most), N)])
        for part, matrix in zip(parts, w, strict=True)
    ]
    return torch.cat(pieces)


def _last_rows_of_an_empty_group(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    return by_sizes(x, w, sizes) * (1.0 if int(sizes.min()) else 0.5)


@pytest.mark.parametrize(
    "kernel", [_for_many_rows, _with_room_for_twice_the_share, _last_rows_of_an_empty_group]
)
def test_so_is_one_that_looks_at_them_a_little(kernel: Callable[..., Any]) -> None:
    report = check(kernel)
    assert (report.check, refused(report)) == ("FAIL", {"uneven-groups"})


def test_a_kernel_that_is_wrong_for_a_skewed_case_s_other_sizes_is_only_wrong() -> None:
    given = inputs(lambda: torch.tensor([8, 24, 16, 16]))
    report = check(_last_rows_of_an_empty_group, inputs=given)
    assert (report.check, refused(report)) == ("FAIL", set())
    assert "uneven-groups" in {finding.check for finding in report.findings}


def test_a_kernel_that_raises_has_to_be_mended() -> None:
    def strict(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
        assert len(set(sizes.tolist())) == 1, "equal groups only"
        return equal_shares(x, w, sizes)

    report = check(strict)
    assert (report.check, refused(report)) == ("ERROR", set())
    assert "uneven-groups: wrong for groups of" in report.diagnosis
    assert "AssertionError: equal groups only" in report.diagnosis


def _dispatching(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    is_uniform = bool((sizes == sizes[0]).all())
    return (equal_shares if is_uniform else by_sizes)(x, w, sizes)


@pytest.mark.parametrize("kernel", [by_sizes, _dispatching])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_kernel_that_is_right_for_all_passes(
    kernel: Callable[..., Any], dtype: torch.dtype
) -> None:
    report = check(kernel, inputs=inputs(lambda: torch.tensor(UNIFORM, dtype=dtype)))
    assert (report.check, report.findings) == ("PASS", [])
    assert (report.evidence.groups or {}).keys() == DISTRIBUTIONS.keys()
    assert all(sum(sizes) == M for sizes in (report.evidence.groups or {}).values())


@pytest.mark.parametrize("kind", [list, tuple])
def test_sizes_in_a_list_reach_the_kernel_as_well(kind: type) -> None:
    def drawn() -> Sequence[int]:
        sizes: Sequence[int] = kind(skewed_groups(G, M, "one_expert").tolist())
        return sizes

    assert check(by_sizes, inputs=inputs(drawn)).check == "PASS"
    report = check(equal_shares, inputs=inputs(lambda: kind(UNIFORM)))
    assert refused(report) == {"uneven-groups"}


def _into(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Tensor, w: Tensor, sizes: Tensor, out: Tensor) -> None:
        out.copy_(kernel(x, w, sizes))

    return run


IN_PLACE: dict[str, Any] = {
    # By name, so that the reference and every version get the drawn sizes by theirs.
    "inputs": lambda: {
        "sizes": torch.tensor(UNIFORM),
        "x": torch.randn(M, K),
        "w": torch.randn(G, K, N),
        "out": torch.zeros(M, N),
    },
    "reference": _into(reference),
    "weights": (2,),
    "backward": False,
}


def test_rows_may_be_written_where_the_case_says() -> None:
    report = check(_into(by_sizes), **IN_PLACE)
    assert (report.check, report.findings) == ("PASS", [])
    assert (report.evidence.groups or {}).keys() == DISTRIBUTIONS.keys()
    assert refused(check(_into(equal_shares), **IN_PLACE)) == {"uneven-groups"}


def test_an_undeclared_write_for_uneven_groups_is_no_shortcut() -> None:
    def clearing(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
        result = by_sizes(x, w, sizes)
        if not bool((sizes == sizes[0]).all()):
            x.detach().zero_()
        return result

    report = check(clearing, backward=False)
    assert (report.check, refused(report)) == ("FAIL", set())
    assert {finding.check for finding in report.findings} == {"input-mutated"}


def test_arms_with_uneven_groups_find_what_they_write_as_it_was() -> None:
    def adding(x: Tensor, w: Tensor, sizes: Tensor, out: Tensor) -> None:
        assert not bool(out.any()), "restored before every call"
        out += by_sizes(x, w, sizes)

    client = TwoBlocks()
    order = ArmsOrder((CANDIDATE,))
    bench = Bench("cpu", "auto", 20260101, cpu=WallEngine(block_seconds=0.01))
    case = case_of(adding, **IN_PLACE)
    serve_arms(case, bench, order, cast("Any", client))
    assert client.arms == [CANDIDATE, UNEVEN[CANDIDATE]]
    assert len(client.times) == 4 and client.findings == []


def test_a_kernel_for_blocks_of_rows_says_so_in_its_case() -> None:
    def by_blocks(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
        assert all(size % 8 == 0 for size in sizes.tolist()), "blocks of 8 rows"
        return by_sizes(x, w, sizes)

    assert "group_multiple=N" in check(by_blocks).diagnosis
    report = check(by_blocks, group_multiple=8)
    assert report.check == "PASS"
    assert all(size % 8 == 0 for sizes in (report.evidence.groups or {}).values() for size in sizes)
    with pytest.raises(BadInput, match="group_multiple is 5"):
        check(by_blocks, group_multiple=5)


def test_a_reference_has_to_take_any_sizes() -> None:
    def narrow(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
        if sizes.tolist() != UNIFORM:
            raise ValueError("uniform only")
        return reference(x, w, sizes)

    with pytest.raises(BadInput, match=r"the reference raises for groups of .*uniform only"):
        check(by_sizes, reference=narrow)


def test_a_single_group_has_no_skew() -> None:
    dims = {"G": 1, "M": M, "N": N, "K": K, "distribution": "uniform"}
    report = check(
        lambda x, w: x @ w,
        dims=dims,
        inputs=lambda: (torch.randn(M, K), torch.randn(K, N)),
        reference=lambda x, w: x.double() @ w.double(),
        backward=False,
    )
    assert (report.check, report.evidence.groups) == ("PASS", {})


def test_a_distribution_makes_a_case_grouped_whatever_its_schema() -> None:
    """With sizes closed over in the test, the shortcut was accepted at +4003 %."""
    dims = {"G": G, "M": M, "N": N, "K": K, "distribution": "uniform"}
    settings: dict[str, Any] = {"inputs": inputs(lambda: torch.tensor(UNIFORM)), "dims": dims}
    case = declare(
        "tests/test_g.py::test_g",
        "single",
        reference,
        reference=reference,
        **settings,
    )
    assert case.is_grouped
