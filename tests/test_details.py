"""What a verdict holds of each case: node id, times, and the diagnosis as figures."""

from __future__ import annotations

from dataclasses import replace

import torch

from pytest_kopt.cases.details import place_of, with_details
from pytest_kopt.cases.evidence import CaseEvidence, Failure
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.hard_gates import checked_shape
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
    known = told(first).model_copy(
        update={"shapes": judging.shapes(both, {c.nodeid for c in both})}
    )
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
