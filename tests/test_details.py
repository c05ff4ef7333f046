"""What a verdict holds of each case, and what the cases of a check cannot tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_kopt.cases.details import blind_spots, place_of, with_details
from pytest_kopt.cases.evidence import CaseEvidence, Failure
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.grounds import checked_shape
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.numerics.compare import compare
from pytest_kopt.trials import judging
from tests.test_terminal import a_case

RAISED = """\
Traceback (most recent call last):
  File "/p/tests/test_gemm.py", line 9, in test_gemm
    kopt(matmul)
  File "/p/kernels/gemm.py", line 12, in matmul
    return a @ b.T
RuntimeError: shapes do not fit
"""
NOT_IMPORTED = """\
tests/test_gemm.py:4: in <module>
    from kernels.gemm import matmul
kernels/gemm.py:3: in <module>
    import tritn
E   ModuleNotFoundError: No module named 'tritn'
"""


def told(*results: CaseResult) -> Verdict:
    shapes = [checked_shape(result.row()) for result in results]
    verdict = Verdict(
        decision=Decision.REPAIR, reason="wrong", compare="none", policy="primus", shapes=shapes
    )
    return with_details(verdict, results)


def test_a_case_has_its_node_id_and_its_times() -> None:
    (shape,) = told(a_case(0, 1.5)).shapes
    assert (shape.nodeid, shape.forward_ms, shape.backward_ms) == ("t.py::test[0]", 1.5, 1.5)
    assert shape.diagnosis is None


def test_two_functions_with_the_same_dims_are_two_cases() -> None:
    """A pull request has cases of several functions; one once stood with the other's figures."""
    first = a_case(0, 1.5)
    other = replace(a_case(0, 2.5), nodeid="u.py::test[0]", label="other B=1")
    same_label = replace(a_case(0, 3.5), nodeid="v.py::test[0]")
    for results in ([first, other], [other, first]):
        verdict = told(*results)
        assert [(s.nodeid, s.forward_ms) for s in verdict.shapes] == [
            (case.nodeid, case.cells["Forward Time (ms)"]) for case in results
        ]
    both = [first, same_label]
    known = told(first).model_copy(update={"shapes": judging.shapes(both)})
    assert [s.forward_ms for s in with_details(known, both).shapes] == [1.5, 3.5]


def test_a_failed_check_has_the_worst_element_as_figures() -> None:
    wrong = torch.ones(2, 3)
    wrong[1, 2] = 5.0
    found = compare(torch.ones(2, 3), wrong)
    failed = replace(
        a_case(0),
        check="FAIL",
        diagnosis=found.diagnosis(),
        evidence=CaseEvidence(failed=(Failure.of(found),)),
    )
    (shape,) = told(failed).shapes
    diagnosis = shape.diagnosis
    assert diagnosis is not None
    assert (diagnosis.output, diagnosis.reason) == ("out", "outside the tolerance")
    assert (diagnosis.worst_index, diagnosis.worst_reference, diagnosis.worst_output) == (
        *([1, 2], 1.0, 5.0),
    )
    assert diagnosis.snr_db is not None and diagnosis.snr_db < 0
    assert (diagnosis.file, diagnosis.line) == (None, None)


def test_a_case_that_raised_has_file_and_line() -> None:
    (shape,) = told(replace(a_case(0), check="ERROR", diagnosis=RAISED)).shapes
    assert shape.diagnosis is not None
    assert (shape.diagnosis.file, shape.diagnosis.line) == ("/p/kernels/gemm.py", 12)


def test_an_import_that_failed_has_file_and_line() -> None:
    assert place_of(NOT_IMPORTED) == ("kernels/gemm.py", 3)
    assert place_of("nothing to see") is None


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
