"""Projects with settings, conftest files and plugins of their own: a round is what it is."""

from __future__ import annotations

import re
import sys

import pytest

from .. import nursery
from .project import CAMPAIGN, CASES, INIT, KERNEL, Project
from .test_isolation import needs_landlock

#: Settings that open a file, end a session early, or make an error of a warning.
SETTINGS = """
[pytest]
addopts = -x --debug=debug.log
log_file = tests.log
filterwarnings = error
"""

LONG = pytest.mark.long
#: What the confinement refuses, and in which file.
REFUSED = {
    "fixture": (
        "conftest.py",
        "import pytest\n@pytest.fixture(autouse=True, scope='session')\ndef note():\n"
        "    open('note.txt', 'w').close()\n",
    ),
    "configure": ("conftest.py", "def pytest_configure():\n    open('note.txt', 'w').close()\n"),
    "import": ("conftest.py", "open('note.txt', 'w').close()\n"),
    "socket": (
        "conftest.py",
        "import pytest, socket\n@pytest.fixture(autouse=True)\ndef ring():\n"
        "    with socket.socket() as s:\n        s.bind(('127.0.0.1', 0))\n        yield\n",
    ),
    "test": (CASES, "\ndef teardown_function():\n    open('note.txt', 'w').close()\n"),
}


def test_settings_of_the_project_do_not_reach_a_verdict(fresh: Project) -> None:
    fresh.write("pytest.ini", SETTINGS)
    run = fresh.round(1)
    assert run.code == 0 and "BASELINE" in run.out, run.text
    fresh.replace(KERNEL, "FACTOR * x", "3 * x")
    run = fresh.round(2, "-W", "error")
    assert run.code == 1 and "round 2, attempt 1: REPAIR" in run.out, run.text


@needs_landlock
@pytest.mark.parametrize(
    "kind",
    ["fixture", "socket", "test", *(pytest.param(k, marks=LONG) for k in ("configure", "import"))],
)
def test_a_refusal_that_is_no_kernel_s_doing_is_named(fresh: Project, kind: str) -> None:
    """It is exit code 4 with the place and the way on, and no attempt of the round."""
    path, source = REFUSED[kind]
    before = fresh.read(path) if (fresh.root / path).exists() else ""
    fresh.write(path, before + source)
    run = fresh.round(1)
    assert run.code == 4, run.text
    assert re.search(rf"{re.escape(path)}:\d+: kopt refused it", run.refusal), run.text
    assert "kopt_isolation = off" in run.refusal
    assert "REPAIR" not in run.text and "INCOMPLETE" not in run.text


CASES_WITH = """\
import pytest
import torch
from kernels.doubled import doubled


class Shape:
    def __init__(self, n):
        self.n = n


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("shape", [Shape(64), Shape(128)], ids={ids})
def test_doubled(kopt, shape):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(shape.n),),
        reference=lambda x: x.double() * 2,
        dims={{"n": shape.n}},
        nbytes=8 * shape.n,
    )
"""


def with_ids(project: Project, ids: str) -> Project:
    project.write(KERNEL, "def doubled(x):\n    return x * 2\n")
    project.write(CASES, CASES_WITH.format(ids=ids))
    project.write("pyproject.toml", "[tool.pytest.ini_options]\npythonpath = ['.']\n")
    project.write(".gitignore", "__pycache__/\n")
    project.commit_all()
    run = project.kopt(*INIT)
    assert run.code == 0, run.text
    return project


def test_ids_that_another_process_makes_otherwise_are_not_frozen(empty: Project) -> None:
    project = with_ids(empty, "lambda shape: f'{shape.n} in {__import__(\"os\").getpid()}'")
    run = project.pytest("--kopt-campaign", CAMPAIGN, "--kopt-round", "1")
    assert run.code == 4 and "ids differ between two processes" in run.refusal, run.text
    assert "ids=" in run.refusal


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        ("repr", ["at 0x1>]", "at 0x2>]"]),
        ("map(repr, [Shape(1), Shape(1)])", None),
        ("[repr(Shape), 'load at 0x10']", ["Shape'>]", "load at 0x10]"]),
        ("['object at 0x7f57d9675a90', 'view of 0x7f57d9675a90']", ["at 0x1]", "0x7f57d9675a90]"]),
    ],
    ids=["made", "drawn one by one", "constant", "listed"],
)
def test_addresses_in_ids_are_numbered(empty: Project, ids: str, names: list[str] | None) -> None:
    empty.write(KERNEL, "def doubled(x):\n    return x * 2\n")
    given = CASES_WITH.replace(
        '"shape", [Shape(64), Shape(128)], ids=',
        'argnames="shape", argvalues=[Shape(64), Shape(128)], ids=',
    )
    empty.write(CASES, given.format(ids=ids))
    run = empty.pytest("--collect-only", "-q", "-o", "pythonpath=.")
    assert run.code == 0, run.text
    found = [line for line in run.out.splitlines() if "::test_doubled[" in line]
    assert len(found) == 2 and len({*found}) == 2, run.text
    for line, end in zip(found, names or (), strict=bool(names)):
        assert line.endswith(end), found


def test_a_round_from_a_folder_of_the_project_has_all_its_cases(empty: Project) -> None:
    project = with_ids(empty, "['a', 'b']")
    below = Project(project.root / "kernels")
    run = below.pytest("--kopt-round", "1")
    assert run.code == 0 and "2 case(s) PASS" in run.out, run.text
    project.replace(KERNEL, "x * 2", "x * 3")
    run = below.pytest("--kopt-round", "next")
    assert run.code == 1 and "2 of 2 case(s) are FAIL" in run.out, run.text


def test_an_option_of_the_project_comes_before_our_short_one(empty: Project) -> None:
    """Whether it takes a value or none; ours keeps the name with the prefix."""
    empty.write("test_own.py", "def test_it(request): assert request.config.option.summary_csv\n")
    for attributes, words in (("action='store_true'", ()), ("type=str", ("rows.txt",))):
        empty.write(
            "conftest.py",
            f"def pytest_addoption(parser):\n    parser.addoption('--summary-csv', {attributes})\n",
        )
        run = empty.pytest("--summary-csv", *words, "-p", "no:cacheprovider")
        assert run.code == 0 and "1 passed" in run.out, run.text
    assert not (empty.root / "rows.txt").exists()


def test_letters_in_a_file_set_no_variable(empty: Project) -> None:
    empty.write(
        "test_own.py",
        "import os\nlinkopts = ['-lm']\n"
        "def test_it():\n    assert 'TRITON_INTERPRET' not in os.environ\n",
    )
    run = empty.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", **nursery.FRESH)
    assert run.code == 0 and "1 passed" in run.out, run.text
