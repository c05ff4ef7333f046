"""pytest-benchmark's `benchmark` fixture in a case marked kopt fills a row of schema `single`."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest

from .project import KERNEL, TWO_WORKERS, Project
from .sources import SETTINGS, STORED

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
    empty.write("pyproject.toml", SETTINGS)
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
        ("n300", "300", "PASS"),
        ("n100", "100", "PASS"),
        ("n200", "200", "PASS"),
        ("n50", "50", "ERROR"),
    ], "the test's own assertion failed: no check of ours did"
    stats = {
        bench["name"]: bench["stats"]
        for bench in json.loads(benchmarked.read("bench.json"))["benchmarks"]
    }
    names = ("test_called[300]", "test_called[100]", "test_pedantic[200]")
    for row, name in zip(rows[:3], names, strict=True):
        assert math.isclose(float(row["Time (ms)"]), stats[name]["mean"] * 1e3)
    assert rows[3]["Time (ms)"] == "nan", "a failed test has no time"
    assert re.search(r"^n300 +PASS", run.out, re.MULTILINE)


def test_under_xdist_the_plugin_times_the_case_and_says_so(benchmarked: Project) -> None:
    run = benchmarked.pytest(*FAST, "--summary-csv", "rows.csv", *TWO_WORKERS)
    assert run.code == 1, run.text
    rows = rows_of(benchmarked)
    assert [(row["label"], row["Check"]) for row in rows] == [
        ("n300", "PASS"),
        ("n100", "PASS"),
        ("n200", "PASS"),
        ("n50", "ERROR"),
    ]
    assert all(float(row["Time (ms)"]) > 0 for row in rows[:3])
    assert rows[3]["Time (ms)"] == "nan"
    section = run.out.partition("= kopt =")[2]
    assert re.search(r"pytest-benchmark .*(off|disabled).*wall clock", section), section


KERNEL_TEXT = """\
def work(n):
    for _ in range({times}):
        total = sum(range(n))
    return total
"""
KERNEL_CASES = """\
import pytest
from kernels.doubled import work


@pytest.mark.kopt
@pytest.mark.parametrize("n", [300, 100])
def test_work(benchmark, n):
    assert benchmark(work, n) == n * (n - 1) // 2
"""


@pytest.fixture
def campaign(empty: Project) -> Project:
    """A campaign of such cases, before its baseline."""
    empty.write("pyproject.toml", SETTINGS + STORED)
    empty.write(KERNEL, KERNEL_TEXT.format(times=20))
    empty.write("tests/test_work.py", KERNEL_CASES)
    empty.write(".gitignore", "__pycache__/\n.benchmarks/\n")
    empty.commit_all()
    run = empty.init()
    assert run.code == 0, run.text
    return empty


def test_a_campaign_may_consist_of_such_cases(campaign: Project, mode: tuple[str, ...]) -> None:
    run = campaign.round(1, *FAST, *mode)
    assert run.code == 0, run.text
    assert campaign.verdict(1)["decision"] == "BASELINE"

    campaign.write(KERNEL, KERNEL_TEXT.format(times=2))
    run = campaign.round(2, *FAST, *mode)
    assert run.code == 0, run.text
    verdict = campaign.verdict(2)
    assert verdict["decision"] == "ACCEPTED"
    assert verdict["aggregate"]["metric"] == "Time (ms)"
    assert verdict["aggregate"]["change_pct"] > 100, "less time is better"


def test_what_cannot_be_compared_is_not_compared(campaign: Project) -> None:
    """Two clocks never; two versions side by side only where the plugin itself calls them."""
    assert campaign.round(1, *FAST).code == 0
    campaign.write(KERNEL, KERNEL_TEXT.format(times=2))
    before = campaign.contents()
    run = campaign.round(2, *FAST, *TWO_WORKERS)
    assert run.code == 4, run.text
    assert "pytest-benchmark" in run.refusal and "wall" in run.refusal
    assert campaign.contents() == before
    run = campaign.round(2, *FAST, "--kopt-compare", "auto")
    assert run.code == 4, run.text
    assert "stored" in run.refusal
    assert campaign.contents() == before


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
    empty.write("pyproject.toml", SETTINGS)
    empty.write("tests/test_work.py", WITHOUT)
    run = empty.pytest("-p", "no:benchmark", "--summary-csv", "rows.csv")
    assert run.code == 1, run.text
    assert [(row["n"], row["Check"]) for row in rows_of(empty)] == [("2", "PASS"), ("3", "ERROR")]
    assert "fixture 'benchmark' not found" in run.out
