"""What the cases of a check cannot tell."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_kopt.cases.details import blind_spots
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult

TEST = "tests/test_it.py"


def case(n: int = 1, dtype: str | None = "float32", **more: Any) -> CaseResult:
    evidence = {"function": "kernels.k.f", "home": "kernels/k.py", "judged_by": (TEST,)} | more
    check = evidence.pop("check", "PASS")
    return CaseResult(
        f"{TEST}::test_f[{n}-{dtype}]",
        label=f"f n={n}",
        dims={"n": n},
        check=check,
        evidence=CaseEvidence(dtype=dtype, **evidence),
    )


WIDE = [case(1), case(2, "bfloat16")]


@pytest.mark.parametrize(
    ("cases", "beginnings"),
    [
        (WIDE, []),
        ([case(1), case(1, "bfloat16")], ["kernels.k.f: other shapes"]),
        ([case(1), case(2)], ["kernels.k.f: other dtypes than float32"]),
        ([case(1, None), case(2, None)], []),
        ([case(1)], ["kernels.k.f: other shapes", "kernels.k.f: other dtypes"]),
        ([*WIDE, case(check="FAIL", function="kernels.k.g")], []),
        (
            [case(1, judged_by=(TEST, "kernels/ref.py", "other/x.py")), case(2, "float16")],
            ["kernels.k.f: a mistake in kernels/ref.py of the kernel's package"],
        ),
        # A project without folders: of its files the kernel's own alone tells.
        ([case(1, home="k.py", judged_by=("ref.py", "test_it.py")), case(2, "float16")], []),
        (
            [case(1, home="k.py", judged_by=("k.py",)), case(2, "float16")],
            ["kernels.k.f: a mistake in k.py"],
        ),
        ([case(1, home=TEST), case(2, "float16", home=TEST)], []),
        ([], []),
    ],
)
def test_a_function_s_cases_are_told_what_they_leave_open(
    cases: list[CaseResult], beginnings: list[str]
) -> None:
    said = [*blind_spots(cases)]
    assert len(said) == len(beginnings)
    assert all(map(str.startswith, said, beginnings)), said
