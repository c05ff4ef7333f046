"""Somebody's whole package as the project: a src layout, plugins, options and tests of its own."""

from __future__ import annotations

import importlib.util

import pytest

from .project import Project

KERNEL = "src/acme/ops/scale.py"
SLOW = """\
import torch

from acme.ops.config import FACTOR


def scaled(x):
    return torch.stack([row * FACTOR for row in x])
"""
FAST = """\
from acme.ops.config import FACTOR


def scaled(x):
    return x * FACTOR
"""
#: `acme` is a namespace package: it has no __init__.py.
FILES = {
    "src/acme/ops/__init__.py": "from acme.ops.scale import scaled\n",
    "src/acme/ops/config.py": "FACTOR = 3\n",
    KERNEL: SLOW,
    "conftest.py": """\
import pytest

pytest_plugins = ["tools.plugin"]


@pytest.fixture(scope="session", autouse=True)
def machine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machine")
    (folder / "state").write_text("on")
    yield folder


@pytest.fixture(autouse=True)
def counted(machine, request):
    request.node.user_properties.append(("machine", (machine / "state").read_text()))
    yield
""",
    "tools/__init__.py": "",
    "tools/plugin.py": """\
import pytest


def pytest_addoption(parser):
    parser.addoption("--acme-size", type=int, default=64)


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.acme)
    items.sort(key=lambda item: item.name)


@pytest.fixture(scope="session")
def size(request):
    return request.config.getoption("--acme-size")
""",
    "tests/unit/test_scale.py": """\
import pytest
import torch
from acme.ops import scaled


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("rows", [64, 256])
def test_scaled(kopt, size, rows):
    kopt(
        scaled,
        inputs=lambda: (torch.randn(rows, size, device=kopt.device),),
        reference=lambda x: x.double() * 3,
        dims={"rows": rows, "columns": size},
        nbytes=8 * rows * size,
    )


def test_of_their_own():
    assert scaled(torch.ones(2, 2)).sum() == 12


def test_speed_of_their_own(benchmark):
    benchmark(scaled, torch.ones(8, 8))
""",
}
SETTINGS = """\
[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["src", "."]
markers = ["acme: their own"]
addopts = ["--strict-markers", "--import-mode=importlib", "-p", "no:cacheprovider", {more}]
"""


@pytest.fixture
def big(empty: Project, request: pytest.FixtureRequest) -> Project:
    more = ", ".join(f'"{word}"' for word in request.param)
    empty.write("pyproject.toml", SETTINGS.format(more=more))
    for path, text in FILES.items():
        empty.write(path, text)
    empty.write(".gitignore", "__pycache__/\n.coverage*\n.benchmarks/\n")
    empty.git("init", "--quiet", "--initial-branch", "main")
    empty.commit_all()
    return empty


@pytest.mark.long
@pytest.mark.parametrize(
    "big",
    [
        pytest.param(["--acme-size=128", "--benchmark-disable"], id="an option of their own"),
        pytest.param(["-n", "2"], id="workers"),
        pytest.param(
            ["--cov=acme", "--cov-fail-under=100"],
            id="coverage",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("pytest_cov") is None, reason="needs pytest-cov"
            ),
        ),
    ],
    indirect=True,
)
def test_a_round_in_somebodys_package(big: Project) -> None:
    run = big.kopt(
        *("init", "c", "--op", "scale", "--kernel", KERNEL, "--backend", "TORCH"),
        *("--gpu", "cpu", "--metric", "Forward GB/s"),
    )
    assert run.code == 0, run.text
    run = big.pytest("--kopt-campaign", "c", "--kopt-round", "1")
    assert run.code == 0, run.text
    big.write(KERNEL, FAST)
    run = big.pytest("--kopt-campaign", "c", "--kopt-round", "2")
    assert run.code == 0, run.text
    assert "ACCEPTED" in run.out and "two processes" not in run.out, run.text
    assert big.read(KERNEL) == FAST and "acme/ops/scale" in big.git("show", "--stat", "HEAD")


@pytest.mark.parametrize("big", [["--benchmark-skip"]], indirect=True)
def test_a_check_in_somebodys_package(big: Project) -> None:
    run = big.pytest("--kopt-check-only", "--summary-csv", "rows.csv")
    assert run.code == 0, run.text
    assert big.read("rows.csv").count("PASS") == 2 and "1 skipped" in run.out


UNTRACED = """\
import sys


def test_untraced():
    assert sys.gettrace() is None and "coverage" not in sys.modules
"""


@pytest.mark.parametrize(
    "big", [["-W", "error", "--cov=acme", "--cov-fail-under=100"]], indirect=True
)
@pytest.mark.skipif(importlib.util.find_spec("pytest_cov") is None, reason="needs pytest-cov")
def test_what_is_timed_is_not_traced_and_a_loaded_plugin_is_no_error(big: Project) -> None:
    big.write("tests/test_untraced.py", UNTRACED)
    run = big.pytest("--summary-csv", "rows.csv", "--kopt-repeats", "2")
    assert run.code == 0 and "coverage" not in run.text, run.text
    assert big.read("rows.csv").count("PASS") == 2
