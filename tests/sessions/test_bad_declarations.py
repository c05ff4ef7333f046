"""Cases that cannot be: exit 4, every one named, and no CSV."""

from __future__ import annotations

import json

import pytest

from .project import SERIAL, TWO_WORKERS, Project
from .sources import SETTINGS

BAD_DECLARATIONS = """\
import pytest
import torch


def call(kopt, dims=None, **more):
    given = dict(
        inputs=lambda: (torch.ones(2),), reference=lambda x: x.double(), dims=dims or {}
    )
    return kopt(lambda x: x, **{**given, **more})


@pytest.mark.kopt(schema="gemm")
def test_misfitting_dims(kopt):
    call(kopt, {"M": 1, "N": 2, "K": 3, "depth": 4})


@pytest.mark.kopt(schema="gemm")
def test_missing_dims(kopt):
    call(kopt, {"M": 1, "N": 2})


@pytest.mark.kopt(schema="gem")
def test_unknown_schema(kopt):
    call(kopt)


@pytest.mark.kopt("gemm")
def test_positional_marker(kopt):
    call(kopt)


@pytest.mark.kopt(shema="gemm")
def test_misspelt_marker(kopt):
    call(kopt)


@pytest.mark.kopt(schema="memory")
def test_no_work(kopt):
    call(kopt, {"n": 3})


@pytest.mark.kopt
def test_no_gate(kopt):
    call(kopt, {"n": 4}, gate="e4m3")


@pytest.mark.kopt(schema="memory")
def test_no_gradient(kopt):
    call(kopt, {"n": 5}, nbytes=8, backward=True)


@pytest.mark.kopt(schema="grouped_gemm")
def test_no_group_sizes(kopt):
    call(kopt, {"G": 2, "M": 2, "N": 1, "K": 1, "distribution": "uniform"}, flops=4)


@pytest.mark.kopt
def test_no_reference(kopt):
    kopt(torch.neg, inputs=lambda: (torch.ones(2),), dims={"n": 7})


@pytest.mark.kopt
def test_its_own_reference(kopt):
    kopt(torch.neg, inputs=lambda: (torch.ones(2),), reference=torch.neg, dims={"n": 9})


@pytest.mark.kopt(schema="memory")
def test_work_as_text(kopt):
    call(kopt, {"n": 10}, nbytes="4 MB")


@pytest.mark.kopt
def test_no_dims(kopt):
    kopt(torch.neg, inputs=lambda: (torch.ones(2),), reference=torch.neg)


@pytest.mark.kopt
def test_no_inputs(kopt):
    kopt(torch.neg, reference=torch.neg, dims={"n": 8})


@pytest.mark.kopt
def test_unknown_dtype(kopt):
    call(kopt, {"n": 6}, inputs=lambda: (torch.ones(2, dtype=torch.complex64),))
"""

COMPLAINTS = {
    "test_misfitting_dims": ("'depth'", "B, M, N, K"),
    "test_missing_dims": ("'K'", "B, M, N, K"),
    "test_unknown_schema": ("'gem'", "gemm, memory, attention, grouped_gemm, single"),
    "test_positional_marker": ("'gemm'", "schema="),
    "test_misspelt_marker": ("shema", "schema="),
    "test_no_work": ("nbytes", "a pair (forward, backward)"),
    "test_no_gate": ("gate is 'e4m3'", "snr("),
    "test_no_gradient": ("no input requires grad", "requires_grad=True"),
    "test_no_group_sizes": ("no input holds the sizes of 2 groups", "groups=POSITION"),
    "test_no_reference": ("reference is missing", "in higher precision"),
    "test_its_own_reference": ("reference is the function itself", "none of the kernel's code"),
    "test_work_as_text": ("nbytes is '4 MB'", "a pair of them"),
    "test_no_dims": ("dims is missing", "{'n': 4096}"),
    "test_no_inputs": ("inputs is missing", "lambda: (torch.randn"),
    "test_unknown_dtype": ("a tensor is complex", "torch.view_as_real(tensor)"),
}


def test_bad_declarations_are_named_and_nothing_is_written(
    empty: Project, mode: tuple[str, ...]
) -> None:
    empty.write("pyproject.toml", SETTINGS)
    empty.write("tests/test_bad.py", BAD_DECLARATIONS)
    run = empty.pytest("--summary-csv", "rows/", *mode)
    assert run.code == 4, run.text
    assert not (empty.root / "rows").exists()
    for test, parts in COMPLAINTS.items():
        assert f"test_bad.py::{test}" in run.refusal
        assert all(part in run.refusal for part in parts), (test, run.refusal)
    assert run.text.count("reference is the function itself") == 1
    assert run.text.count("a pair (forward, backward)") == 1


MIXED = """\
import pytest
import torch


@pytest.mark.kopt(schema="{schema}")
@pytest.mark.parametrize("n", [1, 2])
def test_{schema}(kopt, n):
    kopt(
        torch.neg,
        inputs=lambda: (torch.ones(2),),
        reference=lambda x: -x.double(),
        dims={{"n": {dims}}},
        nbytes=16,
    )
"""


@pytest.fixture
def mixed(empty: Project) -> Project:
    """Cases of two schemas, and a trace of every case that runs."""
    empty.write("pyproject.toml", SETTINGS)
    trace = "open('ran.log', 'a').close() or torch.ones(2)"
    for schema in ("memory", "single"):
        text = MIXED.format(schema=schema, dims="n").replace("torch.ones(2)", trace)
        empty.write(f"tests/test_{schema}.py", text)
    return empty


@pytest.mark.parametrize("words", [SERIAL, TWO_WORKERS], ids=["serial", "n2"])
def test_one_csv_has_one_schema_and_that_is_known_at_collection(
    mixed: Project, words: tuple[str, ...]
) -> None:
    run = mixed.pytest("--summary-csv", "rows.csv", *words)
    assert run.code == 4, run.text
    for named in ("test_memory.py::test_memory[1]", "'memory'", "'single'", "--summary-csv=DIR/"):
        assert named in run.refusal
    assert "test_single.py::test_single[1]" in run.refusal
    left = {path.name for path in mixed.root.iterdir()}
    assert not {"ran.log", "rows.csv"} & left, "nothing ran and nothing was written"


def test_a_campaign_has_one_schema(mixed: Project) -> None:
    mixed.write("kernels/neg.py", "from torch import neg\n")
    mixed.commit_all()
    assert (
        mixed.kopt(
            *("init", "neg", "--op", "neg", "--kernel", "kernels/neg.py"),
            *("--backend", "TORCH", "--gpu", "cpu"),
        ).code
        == 0
    )
    run = mixed.pytest("--kopt-campaign", "neg", "--kopt-round", "1")
    assert run.code == 4, run.text
    assert "'memory'" in run.refusal and "'single'" in run.refusal
    assert not (mixed.root / "ran.log").exists()


def test_a_directory_gets_one_csv_for_each_test(mixed: Project, mode: tuple[str, ...]) -> None:
    """Also for tests of one schema with other dims, and for those of one name."""
    mixed.write(
        "tests/test_other.py",
        MIXED.format(schema="memory", dims="n").replace("dims={", 'dims={"m": 1, '),
    )
    run = mixed.pytest("--summary-csv", "rows/", *mode)
    assert run.code == 0, run.text
    found = sorted((mixed.root / "rows").glob("*.csv"))
    heads = {path.name: path.read_text().partition(",Check,")[0] for path in found}
    assert heads == {
        "single.csv": "label,n",
        "tests-test_memory.py-test_memory.csv": "label,n",
        "tests-test_other.py-test_memory.csv": "label,m,n",
    }
    assert (mixed.root / "rows/single.csv.evidence.json").exists()


def test_one_version_of_several_functions_is_timed(mixed: Project) -> None:
    """No CSV was asked for: neither other columns nor equal dims are a reason to refuse it."""
    mixed.write("kernels/neg.py", "from torch import neg\n")
    for schema, dims in (("memory", "n"), ("single", "7")):
        text = MIXED.format(schema=schema, dims=dims).replace("torch.neg", "kernels.neg.neg")
        mixed.write(f"tests/test_{schema}.py", f"import kernels.neg\n{text}")
    run = mixed.kopt("time", "kernels/neg.py", "--json")
    assert run.code == 0, run.text
    rows = json.loads(run.out)["rows"]
    assert [row["label"] for row in rows][:2] == ["memory n=1", "memory n=2"] and len(rows) == 4


def test_two_cases_of_a_campaign_with_the_same_dims_are_refused(mixed: Project) -> None:
    mixed.write("tests/test_memory.py", MIXED.format(schema="memory", dims="7"))
    mixed.write("kernels/neg.py", "from torch import neg\n")
    mixed.commit_all()
    words = ("--op", "neg", "--kernel", "kernels/neg.py", "--backend", "TORCH", "--gpu", "cpu")
    assert mixed.kopt("init", "neg", *words, "--tests", "tests/test_memory.py").code == 0
    run = mixed.pytest("--kopt-campaign", "neg", "--kopt-round", "1")
    assert run.code == 4, run.text
    assert "duplicate case" in run.refusal and "n=7" in run.refusal
