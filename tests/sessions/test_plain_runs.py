"""Runs without a campaign: cases are checked; `--summary-csv` times them and writes the CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest

from ..nursery import FRESH
from .project import NO_XDIST, SERIAL, TWO_WORKERS, Project, Run
from .sources import HANG, SETTINGS, with_watchdog

GEMM_HEADER = (
    "label,B,M,N,K,Check,Forward TFLOPS,Forward TFLOPS_stddev,Backward TFLOPS,"
    "Backward TFLOPS_stddev,Forward Time (ms),Backward Time (ms),out_snr,da_snr,db_snr"
)

MATMULS = """\
import torch


def matmul(a, b):
    return a @ b


def wrong(a, b):
    out = a @ b
    out.view(-1)[5] += 1
    return out


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad @ b.T, 2 * (a.T @ grad)


def wrong_gradient(a, b):
    return _WrongGradient.apply(a, b)


def raises(a, b):
    raise RuntimeError("no such tile")


def transposed(a, b):
    return (a @ b).T.contiguous()
"""

GEMM_CASES = """\
import math

import kernels.matmul as kernels
import pytest
import torch


def case(kopt, fn, m, n, k, grad=False, **more):
    def randn(*shape):
        return torch.randn(*shape, requires_grad=grad)

    return kopt(
        fn,
        inputs=lambda: (randn(m, k), randn(k, n)),
        reference=lambda a, b: a.double() @ b.double(),
        dims={"M": m, "N": n, "K": k},
        backward=grad,
        **more,
    )


@pytest.mark.kopt(schema="gemm")
@pytest.mark.parametrize("M, N, K", [(16, 4, 8), (4, 8, 2)])
def test_forward(kopt, M, N, K):
    found = case(kopt, kernels.matmul, M, N, K, weights=(1,))
    assert kopt.device == "cpu"
    assert found.dims == {"B": 1, "M": M, "N": N, "K": K}
    assert found.backward is None and found.backward_rate is None
    assert len(found.forward.samples_ms) == 3 and found.forward.calls_per_sample == 50
    assert math.isclose(found.forward_rate, 2 * M * N * K / found.forward.mean_ms * 1e-9)


@pytest.mark.kopt(schema="gemm")
def test_backward(kopt):
    found = case(kopt, kernels.matmul, 8, 8, 8, grad=True, label="both ways", flops=(1000, 3000))
    assert found.label == "both ways"
    assert math.isclose(found.forward_rate, 1000 / found.forward.mean_ms * 1e-9)
    assert math.isclose(found.backward_rate, 3000 / found.backward.mean_ms * 1e-9)
    assert found.cells["Backward TFLOPS"] == found.backward_rate


def test_unmarked():
    assert 6 * 7 == 42


@pytest.mark.kopt(schema="gemm")
def test_wrong(kopt):
    case(kopt, kernels.wrong, 3, 4, 5)


@pytest.mark.kopt(schema="gemm")
def test_wrong_gradient(kopt):
    case(kopt, kernels.wrong_gradient, 3, 4, 6, grad=True)


@pytest.mark.kopt(schema="gemm")
def test_other_shape(kopt):
    case(kopt, kernels.transposed, 3, 4, 7)


@pytest.mark.kopt(schema="gemm")
def test_raises(kopt):
    case(kopt, kernels.raises, 3, 4, 8)


@pytest.mark.kopt(schema="gemm")
def test_reference_holds_nan(kopt):
    kopt(
        kernels.matmul,
        inputs=lambda: (torch.randn(3, 9), torch.randn(9, 4)),
        reference=lambda a, b: (a.double() @ b.double()).fill_(math.nan),
        dims={"M": 3, "N": 4, "K": 9},
    )


@pytest.mark.kopt(schema="gemm")
@pytest.mark.parametrize("M, N, K", [(3, 4, 10)])
def test_never_gets_there(kopt, M, N, K):
    raise OSError("no weights file")
"""

LABELS_AND_CHECKS = [
    ("forward B=1 M=16 N=4 K=8", "PASS"),
    ("forward B=1 M=4 N=8 K=2", "PASS"),
    ("both ways", "PASS"),
    ("wrong B=1 M=3 N=4 K=5", "FAIL"),
    ("wrong_gradient B=1 M=3 N=4 K=6", "FAIL"),
    ("other_shape B=1 M=3 N=4 K=7", "FAIL"),
    ("raises B=1 M=3 N=4 K=8", "ERROR"),
    ("reference_holds_nan B=1 M=3 N=4 K=9", "ERROR"),
    ("never_gets_there B=1 M=3 N=4 K=10", "ERROR"),
]


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV, every cell as text."""
    return list(csv.DictReader(io.StringIO(path.read_text(), newline="")))


@pytest.fixture
def gemm(empty: Project) -> Project:
    empty.write("pyproject.toml", SETTINGS)
    empty.write("kernels/matmul.py", MATMULS)
    empty.write("tests/test_matmul.py", GEMM_CASES)
    return empty


@pytest.mark.parametrize("words", [SERIAL, TWO_WORKERS, NO_XDIST], ids=["serial", "n2", "no-xdist"])
def test_every_way_of_running_gives_the_same_table(gemm: Project, words: tuple[str, ...]) -> None:
    run = gemm.pytest("--summary-csv", "out/rows.csv", *words)
    assert run.code == 1, run.text

    text = gemm.read("out/rows.csv")
    assert text.splitlines()[0] == GEMM_HEADER
    assert "\r" not in text and text.endswith("\n")
    rows = rows_of(gemm.root / "out/rows.csv")
    assert [(row["label"], row["Check"]) for row in rows] == LABELS_AND_CHECKS
    assert [row["K"] for row in rows] == ["8", "2", "8", "5", "6", "7", "8", "9", "10"]

    _forward_only(rows[0])
    _both_ways(rows[2])
    for row in rows[3:]:
        assert row["Forward TFLOPS"] == row["Forward Time (ms)"] == "nan"
    assert rows[4]["Backward TFLOPS"] == "nan" and rows[3]["Backward TFLOPS"] == ""
    assert float(rows[4]["out_snr"]) > 100 > 20 > float(rows[4]["db_snr"])
    _shows_table_and_diagnosis(run)


RIGHT = """\
import pytest
from test_matmul import case, kernels


@pytest.mark.kopt(schema="gemm")
def test_right(kopt):
    assert case(kopt, kernels.matmul, 2, 3, 4).forward is None
"""


def test_a_check_times_nothing(gemm: Project) -> None:
    """Its exit code says whether all passed, and the rows have a Check and no times."""
    gemm.write("tests/test_right.py", RIGHT)
    words = ("--kopt-check-only", "--summary-csv", "out/rows.csv")
    run = gemm.pytest(*words, "tests/test_right.py")
    assert run.code == 0 and "check only: nothing is timed" in run.out, run.text
    (row,) = rows_of(gemm.root / "out/rows.csv")
    assert row["Check"] == "PASS" and float(row["out_snr"]) > 100
    assert row["Forward TFLOPS"] == row["Forward Time (ms)"] == "nan"
    assert row["Backward TFLOPS"] == ""
    run = gemm.pytest(*words, "-k", "right or wrong")
    assert run.code == 1, run.text
    checks = [row["Check"] for row in rows_of(gemm.root / "out/rows.csv")]
    assert checks == ["FAIL", "FAIL", "PASS"]


@pytest.mark.parametrize("words", [SERIAL, TWO_WORKERS], ids=["serial", "n2"])
def test_an_ordinary_run_times_nothing(gemm: Project, words: tuple[str, ...]) -> None:
    gemm.write("tests/test_right.py", RIGHT)
    run = gemm.pytest(*words, "tests/test_right.py")
    assert run.code == 0, run.text
    # A worker of xdist collects: the controller has no header of the collection.
    assert words or "kopt: cpu, check only; --summary-csv=PATH times the cases" in run.out
    assert re.search(r"^right +check +out_snr$", run.out, re.MULTILINE), run.out
    run = gemm.refuse(*words, "tests/test_right.py", "--kopt-repeats", "2")
    assert run.code == 4 and "--kopt-repeats: needs --summary-csv" in run.refusal, run.text


def _forward_only(row: dict[str, str]) -> None:
    numbers = [float(row[name]) for name in ("Forward TFLOPS", "Forward Time (ms)", "out_snr")]
    assert all(number > 0 for number in numbers)
    assert float(row["Forward TFLOPS_stddev"]) >= 0
    shortest = repr(float(row["Forward TFLOPS"]))
    assert row["Forward TFLOPS"] == shortest
    empty = ("Backward TFLOPS", "Backward TFLOPS_stddev", "Backward Time (ms)", "da_snr", "db_snr")
    assert [row[name] for name in empty] == [""] * 5


def _both_ways(row: dict[str, str]) -> None:
    for way, work in (("Forward", 1000), ("Backward", 3000)):
        expected = work / float(row[f"{way} Time (ms)"]) * 1e-9
        assert math.isclose(float(row[f"{way} TFLOPS"]), expected)
    assert float(row["da_snr"]) > 100 and float(row["db_snr"]) > 100


def _shows_table_and_diagnosis(run: Run) -> None:
    assert re.search(r"^kopt: cpu, rows go to .*rows\.csv$", run.out, re.MULTILINE)
    assert re.search(r"^both ways +PASS +\S+", run.out, re.MULTILINE)
    wrong = run.out.partition("FAIL wrong B=1 M=3 N=4 K=5")[2]
    for figure in ("SNR", "max abs error", "relative error", "cosine", "worst index", "(1, 1)"):
        assert figure in wrong
    assert "8.3333 % of the elements" in wrong
    assert "grad of input 1: outside the tolerance" in run.out
    assert "has shape (4, 3), the reference (3, 4)" in run.out
    assert "RuntimeError: no such tile" in run.out
    assert "the reference returns NaN" in run.out
    assert "no weights file" in run.out


SCHEMAS = {
    "memory": """
        schema="memory"
        dims={"rows": 4, "kind": "plain"}
        more=dict(nbytes=640, backward=True)
        """,
    "attention": """
        schema="attention"
        dims=dict(D=8, causal=True, B=1, Hq=2, Hkv=1, Sq=4, Skv=4)
        more=dict(flops=640, backward=True)
        """,
    "own": """
        schema=Schema("ps", (Column("Time (us)", "forward_us", "lower"),
                             Column("err", "mismatch_share")), gate="err == 0")
        dims={"rows": 4}
        more=dict(gate=snr(10.0))
        """,
}
ONE_CASE = """\
import pytest
import torch
from pytest_kopt import Column, Schema, snr
{settings}

@pytest.mark.kopt(schema=schema)
def test_case(kopt):
    kopt(
        lambda x: x * 2,
        inputs=lambda: (torch.randn(4, 8, requires_grad=True),),
        reference=lambda x: 2 * x.double(),
        dims=dims,
        **more,
    )


@pytest.mark.kopt(schema=schema)
def test_rough_case(kopt):
    kopt(
        lambda x: x * 1.7,
        inputs=lambda: (torch.randn(4, 8, requires_grad=True),),
        reference=lambda x: 2 * x.double(),
        dims={{**dims, list(dims)[0]: 6}},
        **more,
    )
"""


@pytest.mark.parametrize(
    ("name", "header", "dims"),
    [
        (
            "memory",
            "label,rows,kind,Check,Forward GB/s,Forward GB/s_stddev,Backward GB/s,"
            "Backward GB/s_stddev,Forward Time (ms),Backward Time (ms),out_snr,grad_snr",
            ["4", "plain"],
        ),
        (
            "attention",
            "label,B,Hq,Hkv,Sq,Skv,D,causal,Check,Forward TFLOPS,Forward TFLOPS_stddev,"
            "Backward TFLOPS,Backward TFLOPS_stddev,Forward Time (ms),Backward Time (ms),"
            "out_snr,dq_snr,dk_snr,dv_snr",
            ["1", "2", "1", "4", "4", "8", "True"],
        ),
        ("own", "label,rows,Check,Time (us),err", ["4"]),
    ],
)
def test_a_schema_says_what_a_row_holds(
    empty: Project, name: str, header: str, dims: list[str]
) -> None:
    settings = "\n".join(line.strip() for line in SCHEMAS[name].splitlines())
    empty.write("pyproject.toml", SETTINGS)
    empty.write("tests/test_case.py", ONE_CASE.format(settings=settings))
    run = empty.pytest("--summary-csv", "rows.csv")
    assert run.code == 1, run.text
    assert empty.read("rows.csv").splitlines()[0] == header
    row, rough = rows_of(empty.root / "rows.csv")
    columns = header.split(",")
    assert [row[column] for column in columns[1 : columns.index("Check")]] == dims
    assert (row["Check"], rough["Check"]) == ("PASS", "FAIL")
    if name == "own":
        # The SNR gate holds for both; the schema's own gate column is what tells them apart.
        assert row["err"] == "0.0" and float(rough["err"]) > 0
        assert float(row["Time (us)"]) > 0
        assert "err == 0" in run.out
        assert rough["Time (us)"] == "nan", "a case that fails its check has no metrics"


DEADLY_CASES = f"""\
import ctypes

import pytest
import torch


def doubled(x):
    if x.shape[0] == 4:
        {HANG}
    return x * 2


@pytest.mark.kopt
@pytest.mark.parametrize("rows, columns", [(2, 8)])
def test_segfault(kopt, rows, columns):
    ctypes.string_at(0)


@pytest.mark.kopt
@pytest.mark.parametrize("size", [(4, 8), (6, 8)], ids=str)
def test_doubled(kopt, size):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(size),),
        reference=lambda x: x.double() * 2,
        dims={{"rows": size[0], "columns": size[1]}},
    )


def test_unmarked():
    with open("unmarked.log", "a") as log:
        log.write("ran\\n")
"""


@pytest.mark.parametrize("words", [SERIAL, ("-n", "1")], ids=["serial", "n1"])
def test_a_hang_and_a_crash_are_error_rows(empty: Project, words: tuple[str, ...]) -> None:
    """Also where only the case itself could tell its dims: it did so before it hung."""
    empty.write("pyproject.toml", SETTINGS)
    empty.write("tests/test_deadly.py", DEADLY_CASES)
    run = empty.pytest("--summary-csv", "rows.csv", *words, **with_watchdog(empty))
    assert run.code == 1 and "INTERNALERROR" not in run.text, run.text
    rows = rows_of(empty.root / "rows.csv")
    assert [(row["rows"], row["columns"], row["Check"]) for row in rows] == [
        ("2", "8", "ERROR"),
        ("4", "8", "ERROR"),
        ("6", "8", "PASS"),
    ]
    assert [row["Time (ms)"] for row in rows[:2]] == ["nan", "nan"]
    segfault, hang, _ = json.loads(empty.read("rows.csv.evidence.json"))
    assert "SIGSEGV" in segfault["diagnosis"]
    assert "--kopt-timeout" in hang["diagnosis"] and "in doubled" in hang["diagnosis"]
    assert "2 failed, 2 passed" in run.out
    assert empty.read("unmarked.log") == "ran\n", "no other test is run again"


ASKS_WHERE_IT_IS = """\
import os


def test_it(worker_id, testrun_uid, request):
    own = request.config.workerinput
    assert worker_id == own["workerid"] == os.environ["PYTEST_XDIST_WORKER"] == "gw0"
    assert testrun_uid == own["testrunuid"] == os.environ["PYTEST_XDIST_TESTRUNUID"]
    assert own["workercount"] == 1 and own["database"] == "first"
"""
GIVES_TO_WORKERS = """\
def pytest_configure_node(node):
    node.workerinput["database"] = "first"
"""


def test_a_test_finds_what_a_worker_of_xdist_would_say(empty: Project) -> None:
    """And what the project gave to that, by xdist's fixtures and by its interface."""
    empty.write("pyproject.toml", SETTINGS)
    empty.write("conftest.py", GIVES_TO_WORKERS)
    empty.write("tests/test_it.py", ASKS_WHERE_IT_IS)
    run = empty.pytest("--summary-csv", "rows.csv", "-n", "1")
    assert run.code == 0 and "1 passed" in run.out, run.text


def test_a_file_that_does_not_import_stops_the_session_as_ever(gemm: Project) -> None:
    gemm.write("tests/test_broken.py", "import no_such_module\n")
    run = gemm.pytest("--summary-csv", "rows.csv")
    assert run.code == 2 and "1 error during collection" in run.out, run.text
    assert "no_such_module" in run.out and not (gemm.root / "rows.csv").exists()


def test_a_session_without_cases_does_not_load_torch(empty: Project) -> None:
    empty.write("pyproject.toml", SETTINGS)
    empty.write("tests/test_it.py", "import sys\ndef test_it(): assert 'torch' not in sys.modules")
    run = empty.pytest("--summary-csv", "rows.csv", **FRESH)
    assert run.code == 0 and not (empty.root / "rows.csv").exists(), run.text


SKIPS = """\
import pytest


@pytest.mark.parametrize("number", range(4))
def test_it(number, opened):
    if number == 1:
        pytest.skip("not here")
"""
OPENS_ONCE = """\
import os
import pytest


@pytest.fixture(scope="session")
def opened():
    with open(f"opened-{os.getpid()}", "x"):
        yield
"""


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_a_skip_is_told_and_a_session_fixture_is_set_up_once(
    empty: Project, words: tuple[str, ...]
) -> None:
    empty.write("pyproject.toml", SETTINGS)
    empty.write("conftest.py", OPENS_ONCE)
    empty.write("tests/test_it.py", SKIPS)
    run = empty.pytest("--summary-csv", "rows.csv", "-v", "-rs", "--junitxml", "all.xml", *words)
    assert run.code == 0 and "3 passed, 1 skipped" in run.out, run.text
    assert "not here" in run.out and "not here" in empty.read("all.xml")


def test_ids_that_differ_between_lanes_are_refused(empty: Project) -> None:
    drawn = "import uuid\nimport pytest\n\nIDS = [uuid.uuid4().hex, uuid.uuid4().hex]\n\n\n"
    test = "@pytest.mark.parametrize('x', IDS, ids=IDS)\ndef test_it(x):\n    pass\n"
    empty.write("pyproject.toml", SETTINGS)
    empty.write("tests/test_it.py", drawn + test)
    run = empty.pytest("--summary-csv", "rows.csv", "-n", "2")
    assert run.code == 4 and "test ids differ between two processes" in run.text, run.text
