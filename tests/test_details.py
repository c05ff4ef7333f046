"""What a verdict holds of each case: node id, times, and the diagnosis as figures."""

from __future__ import annotations

from dataclasses import replace

import torch

from pytest_kopt.cases.details import place_of, with_details
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.gates import checked_shape
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.numerics.compare import compare
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


def test_a_failed_check_has_the_worst_element_as_figures() -> None:
    wrong = torch.ones(2, 3)
    wrong[1, 2] = 5.0
    found = compare(torch.ones(2, 3), wrong)
    failed = replace(
        a_case(0),
        check="FAIL",
        diagnosis=found.diagnosis(),
        evidence={"failed": [found.to_document()]},
    )
    (shape,) = told(failed).shapes
    diagnosis = shape.diagnosis
    assert diagnosis is not None
    assert (diagnosis.output, diagnosis.reason) == ("out", "outside the gate")
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
