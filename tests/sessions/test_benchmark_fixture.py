"""pytest-benchmark's `benchmark` fixture in a test marked kopt: a row, checked or not judged."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.schema.table import read_csv

from .project import KERNEL, SERIAL, TWO_WORKERS, Project
from .sources import BENCHMARKS, STORED

pytest.importorskip("pytest_benchmark")

FAST = ("--benchmark-max-time=0.02", "--benchmark-min-rounds=5")

BENCHMARKED = """\
import pytest


def work(n):
    return sum(range(n))


@pytest.mark.kopt
@pytest.mark.parametrize("n", [300, 100])
def test_called(benchmark, n):
    assert benchmark(work, n) == n * (n - 1) // 2


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("n", [200])
def test_pedantic(benchmark, n):
    assert benchmark.pedantic(work, args=(n,), rounds=4, iterations=3) == 19900


@pytest.mark.kopt
@pytest.mark.parametrize("n", [50])
def test_wrong(benchmark, n):
    assert benchmark(work, n) == -1


def test_unmarked(benchmark):
    benchmark(work, 10)
"""


@pytest.fixture
def benchmarked(empty: Project) -> Project:
    empty.write("pyproject.toml", BENCHMARKS)
    empty.write("tests/test_work.py", BENCHMARKED)
    return empty


def rows_of(project: Project) -> list[dict[str, str]]:
    return list(csv.DictReader(project.read("rows.csv").splitlines()))


def test_its_stats_become_the_row(benchmarked: Project) -> None:
    run = benchmarked.pytest(*FAST, "--summary-csv", "rows.csv", "--benchmark-json", "bench.json")
    assert run.code == 1, run.text
    assert benchmarked.read("rows.csv").startswith(
        "label,n,Check,Time (ms),Time (ms)_stddev,out_snr\n"
    )
    rows = rows_of(benchmarked)
    assert [(row["label"], row["n"], row["Check"]) for row in rows] == [
        ("called n=300", "300", "UNCHECKED"),
        ("called n=100", "100", "UNCHECKED"),
        ("pedantic n=200", "200", "UNCHECKED"),
        ("wrong n=50", "50", "ERROR"),
    ], "the test's own assertion failed: no check of ours did"
    stats = {
        bench["name"]: bench["stats"]
        for bench in json.loads(benchmarked.read("bench.json"))["benchmarks"]
    }
    names = ("test_called[300]", "test_called[100]", "test_pedantic[200]")
    for row, name in zip(rows[:3], names, strict=True):
        assert math.isclose(float(row["Time (ms)"]), stats[name]["mean"] * 1e3)
    assert rows[3]["Time (ms)"] == "nan", "a failed test has no time"
    with pytest.raises(BadInput, match="UNCHECKED"):
        read_csv(benchmarked.root / "rows.csv")
    assert re.search(r"^called n=300 +UNCHECKED", run.out, re.MULTILINE)


def test_under_xdist_the_plugin_times_the_case_and_says_so(benchmarked: Project) -> None:
    run = benchmarked.pytest(*FAST, "--summary-csv", "rows.csv", *TWO_WORKERS)
    assert run.code == 1, run.text
    rows = rows_of(benchmarked)
    assert [(row["label"], row["Check"]) for row in rows] == [
        ("called n=300", "UNCHECKED"),
        ("called n=100", "UNCHECKED"),
        ("pedantic n=200", "UNCHECKED"),
        ("wrong n=50", "ERROR"),
    ]
    assert all(float(row["Time (ms)"]) > 0 for row in rows[:3])
    assert rows[3]["Time (ms)"] == "nan"
    section = run.out.partition("= kopt =")[2]
    assert re.search(r"pytest-benchmark .*(off|disabled).*wall clock", section), section


KERNEL_TEXT = """\
def work(x):
    for _ in range(20):
        out = x * 2
    return out
"""
ZEROS = """\
import torch


def work(x):
    return torch.zeros_like(x)
"""
BOTH = """\
import pytest
import torch
from kernels.doubled import work


@pytest.mark.kopt
@pytest.mark.parametrize("n", [300, 100])
def test_work(kopt, benchmark, n):
    found = kopt.benchmark(
        benchmark,
        work,
        inputs=lambda: (torch.randn(n),) if n == 300 else {"x": torch.randn(n)},
        reference=lambda x: x.double() * 2,
        dims={"n": n},
    )
    assert found.out_snr > 100
"""
WITHOUT_REFERENCE = """\
import pytest
import torch
from kernels.doubled import work


@pytest.mark.kopt
def test_work(benchmark):
    open("ran.log", "w").close()
    benchmark(work, torch.ones(2))
"""
LEFT_OUT = WITHOUT_REFERENCE.replace("(benchmark)", "(kopt, benchmark)").replace(
    '    open("ran.log", "w").close()\n', ""
)


@pytest.fixture
def campaign(empty: Project) -> Project:
    """A campaign of cases that have both, before its baseline."""
    empty.write("pyproject.toml", BENCHMARKS + STORED)
    empty.write(KERNEL, KERNEL_TEXT)
    empty.write("tests/test_work.py", BOTH)
    empty.write(".gitignore", "__pycache__/\n.benchmarks/\n")
    empty.commit_all()
    run = empty.init()
    assert run.code == 0, run.text
    return empty


def test_with_a_reference_a_test_has_both(campaign: Project) -> None:
    """A row of the plugin's that was checked, and pytest-benchmark's own report."""
    words = ("--summary-csv", "rows.csv", "--benchmark-json", "bench.json")
    run = campaign.pytest(*FAST, *words)
    assert run.code == 0, run.text
    rows = rows_of(campaign)
    assert [(row["n"], row["Check"]) for row in rows] == [("300", "PASS"), ("100", "PASS")]
    assert all(float(row["Time (ms)"]) > 0 and float(row["out_snr"]) > 100 for row in rows)
    benchmarks = json.loads(campaign.read("bench.json"))["benchmarks"]
    assert [bench["name"] for bench in benchmarks] == ["test_work[300]", "test_work[100]"]

    campaign.write(KERNEL, ZEROS)
    run = campaign.pytest(*FAST, "--summary-csv", "rows.csv")
    assert run.code == 1, run.text
    assert [(row["Check"], row["Time (ms)"]) for row in rows_of(campaign)] == [("FAIL", "nan")] * 2


def test_a_campaign_may_consist_of_such_cases(campaign: Project, mode: tuple[str, ...]) -> None:
    run = campaign.round(1, *FAST, *mode)
    assert run.code == 0, run.text
    assert campaign.verdict(1)["decision"] == "BASELINE"
    head = campaign.head()
    campaign.write(KERNEL, ZEROS)
    run = campaign.round(2, *FAST, *mode)
    assert run.code == 1, run.text
    assert campaign.verdict(2)["decision"] == "REPAIR"
    assert campaign.head() == head, "a kernel of zeros is fast, and is not committed"


@pytest.mark.parametrize(
    "words", [SERIAL, pytest.param(TWO_WORKERS, marks=pytest.mark.long)], ids=["serial", "n2"]
)
def test_a_campaign_never_decides_without_a_reference(
    campaign: Project, words: tuple[str, ...]
) -> None:
    campaign.write("tests/test_work.py", WITHOUT_REFERENCE)
    before = campaign.contents()
    run = campaign.round(1, *FAST, *words)
    assert run.code == 4, run.text
    assert "test_work.py::test_work" in run.refusal and "nothing is checked" in run.refusal
    assert "kopt.benchmark(" in run.refusal, "it says what to write instead"
    assert campaign.contents() == before, "and nothing ran"


def test_a_test_that_leaves_its_reference_out_is_refused_when_it_runs(campaign: Project) -> None:
    campaign.write("tests/test_work.py", LEFT_OUT)
    run = campaign.round(1, *FAST)
    assert run.code == 4, run.text
    assert "nothing is checked" in run.refusal
    assert not (campaign.campaign / "rounds/round-1/verdict.json").exists()


WITHOUT = """\
import pytest
import torch


@pytest.mark.kopt
@pytest.mark.parametrize("n", [2])
def test_ours(kopt, n):
    kopt(torch.neg, inputs=lambda: (torch.ones(2),), reference=lambda x: -x, dims={"n": n})


@pytest.mark.kopt
@pytest.mark.parametrize("n", [3])
def test_theirs(benchmark, n):
    benchmark(len, "abc")
"""


def test_everything_else_works_where_pytest_benchmark_is_absent(empty: Project) -> None:
    """A case that asks for the fixture is an ERROR row; the others do not notice."""
    empty.write("pyproject.toml", BENCHMARKS)
    empty.write("tests/test_work.py", WITHOUT)
    run = empty.pytest("-p", "no:benchmark", "--summary-csv", "rows.csv")
    assert run.code == 1, run.text
    assert [(row["n"], row["Check"]) for row in rows_of(empty)] == [("2", "PASS"), ("3", "ERROR")]
    assert "fixture 'benchmark' not found" in run.out
