"""A pull request does not choose what judges it: options, settings, and which cases there are."""

from __future__ import annotations

import re

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.trials.pull_request.own_rules import commanded

from .paired import (
    OLD,
    PLAIN,
    PLAIN_CASES,
    SAME,
    SLOWER,
    Gate,
    cases,
    kernel,
)
from .project import Project


def refusal(gate: Gate) -> str:
    """See that a slower kernel is not judged, and return why."""
    gate.project.write(PLAIN, kernel(SLOWER, "new"))
    return gate.refused()


def settings(project: Project, **lines: str) -> None:
    """Set lines of the project's settings."""
    text = project.read("pyproject.toml")
    for key, value in lines.items():
        text = re.sub(rf"^{key} = .*\n", "", text, flags=re.MULTILINE) + f"{key} = {value}\n"
    project.write("pyproject.toml", text)


CONFIGURES = """\
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    {}
"""


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("config.option.kopt_allow_removed = True", ("--kopt-allow-removed to True", "nothing")),
        ("config.option.kopt_policy = 'kernel-opt'", ("--kopt-policy to kernel-opt", "primus")),
        ("config.option.kopt_base = 'HEAD'", ("--kopt-base to HEAD", "instead of main")),
        ("config._inicache['kopt_isolation'] = 'off'", ("kopt_isolation to off", "instead of on")),
    ],
)
def test_options_that_a_conftest_file_sets(gate: Gate, line: str, named: tuple[str, str]) -> None:
    gate.project.write("tests/conftest.py", CONFIGURES.format(line))
    message = refusal(gate)
    for part in (f"tests/conftest.py sets {named[0]} instead of ", named[1], "--kopt-base"):
        assert part in message


NO_VERDICT = """\
def pytest_cmdline_main(config):
    return 0
"""


@pytest.mark.parametrize(
    "text",
    [
        CONFIGURES.format("config.option.kopt_base = None; config.option.kopt_verdict = None"),
        CONFIGURES.format("config.option.collectonly = True"),
        NO_VERDICT,
    ],
    ids=["no base", "collects only", "another main"],
)
def test_a_session_does_not_pass_without_a_verdict(gate: Gate, text: str) -> None:
    gate.project.write("conftest.py", text)
    gate.project.write(PLAIN, kernel(SLOWER, "new"))
    done = gate()
    assert done.run.code == 4 and done.verdict is None, done.run.text
    assert "there is no verdict" in done.run.refusal


def test_a_command_that_only_shows_needs_no_verdict(gate: Gate) -> None:
    assert gate("--collect-only").run.code == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ('"--kopt-allow-removed"', "pyproject.toml sets --kopt-allow-removed to True"),
        ('"--kopt-policy=loose.yaml"', "pyproject.toml sets --kopt-policy to loose.yaml"),
        ('"-o", "kopt_isolation=off"', "pyproject.toml sets kopt_isolation to off"),
        ('"--collect-only"', "there is no verdict"),
    ],
)
def test_options_that_the_settings_file_sets(gate: Gate, words: str, what: str) -> None:
    gate.project.write("loose.yaml", "name: loose\nshape_gate_pct: 99\n")
    settings(gate.project, addopts=f"[{words}]")
    assert what in refusal(gate)


def test_other_options_in_the_settings_file_are_free(gate: Gate) -> None:
    settings(gate.project, addopts='["-q", "-p", "no:cacheprovider"]', kopt_gpu_wait='"5"')
    done = gate()
    assert done.run.code == 0 and done.judged["flags"] == [], done.run.text


@pytest.mark.parametrize("way", ["removed", "another file"])
def test_what_the_bases_settings_say_is_not_dropped(gate: Gate, way: str) -> None:
    project = gate.project
    before = project.read("pyproject.toml")
    settings(project, kopt_gate='"improve"')
    project.commit_all("Gains alone")
    if way == "removed":
        project.write("pyproject.toml", before)
    else:
        project.write(
            "pytest.ini", "[pytest]\npythonpath = . tests\naddopts = -p no:cacheprovider\n"
        )
    project.write(PLAIN, kernel(SAME, "new"))
    file, message = "pyproject.toml" if way == "removed" else "pytest.ini", gate.refused()
    for part in (f"{file} sets --kopt-gate to no-regression", "instead of improve"):
        assert part in message
    if way != "removed":
        project.write(PLAIN, kernel())
        assert gate("--kopt-gate", "improve").run.code == 9, "the command decides"


@pytest.mark.parametrize("path", ["loose.yaml", "agent/workspace/noise/cpu.json"])
def test_files_that_judge_are_not_edited(gate: Gate, path: str) -> None:
    gate.project.write(path, "name: loose\nshape_gate_pct: 4\n")
    settings(gate.project, kopt_policy='"loose.yaml"')
    if path != "loose.yaml":
        gate.project.write("loose.yaml", "name: loose\nshape_gate_pct: 4\n")
    gate.project.commit_all("A policy")
    gate.project.write(path, "name: loose\nshape_gate_pct: 99\n")
    assert f"the change edits {path}, which judges it" in refusal(gate)


@pytest.mark.parametrize(
    ("section", "words", "expected"),
    [
        ({}, [], ""),
        ({"addopts": "-q"}, [], ""),
        ({"addopts": ["--kopt-policy", "loose.yaml"]}, [], "loose.yaml"),
        ({"addopts": "--kopt-policy=loose.yaml -x"}, ["--kopt-policy=mine"], "mine"),
        ({"kopt_policy": "loose.yaml"}, ["-k", "some"], "loose.yaml"),
        ({"kopt_policy": "loose.yaml"}, ["-o", "kopt_policy=mine"], "mine"),
        ({"addopts": "-o kopt_policy=loose.yaml"}, [], "loose.yaml"),
        ({"addopts": "--kopt-policy=loose.yaml"}, ["-o", "addopts="], ""),
        ({"addopts": "--kopt-policy=loose.yaml"}, ["-o", "addopts=--kopt-policy=mine"], "mine"),
    ],
)
def test_what_a_command_says(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    section: dict[str, object],
    words: list[str],
    expected: str,
) -> None:
    """The command comes before the environment, and that before the settings."""
    config = pytester.parseconfig(*words)
    assert commanded(config, section)["kopt_policy"] == (expected or "primus")
    if "--kopt-policy" not in str(words):
        monkeypatch.setenv("PYTEST_ADDOPTS", "--kopt-policy='of the environment'")
        assert commanded(config, section)["kopt_policy"] == "of the environment"


def test_settings_that_no_session_accepts_are_refused(pytester: pytest.Pytester) -> None:
    with pytest.raises(BadInput, match="invalid choice"):
        commanded(pytester.parseconfig(), {"addopts": "--kopt-gate=faster"})


# Which cases there are is not the pull request's choice either.


def several(project: Project) -> None:
    project.write("kernels/other.py", kernel(OLD, "other", name="other"))
    project.write("tests/test_other.py", cases(("kernels.other", "other")))
    project.commit_all("Two kernels")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(
            "conftest.py",
            CONFIGURES.format("config.args[:] = ['tests/test_other.py::test_other']"),
            marks=pytest.mark.long,
        ),
        ("conftest.py", CONFIGURES.format("config.option.keyword = 'other'")),
        pytest.param(
            "pyproject.toml", 'testpaths = ["tests/test_other.py"]', marks=pytest.mark.long
        ),
        pytest.param("pyproject.toml", 'python_files = ["test_other.py"]', marks=pytest.mark.long),
        (
            "pyproject.toml",
            'addopts = ["--deselect=tests/test_plain.py", "-p", "no:cacheprovider"]',
        ),
    ],
    ids=["arguments", "-k", "testpaths", "python_files", "--deselect"],
)
def test_a_case_that_is_not_collected_any_more_is_gone(gate: Gate, path: str, text: str) -> None:
    several(gate.project)
    if path == "pyproject.toml":
        key, _, value = text.partition(" = ")
        settings(gate.project, **{key: value})
    else:
        gate.project.write(path, text)
    gate.project.write(PLAIN, kernel(SLOWER, "new"))
    done = gate()
    assert done.run.code == 8, done.run.text
    assert done.judged["removed"] == ["tests/test_plain.py::test_plain"]


def test_a_module_that_is_gone_from_a_named_package(gate: Gate) -> None:
    several(gate.project)
    for name in ("plain", "other"):
        gate.project.write(f"tests/{name}/__init__.py", "")
        gate.project.git("mv", f"tests/test_{name}.py", f"tests/{name}")
    gate.project.write("tests/__init__.py", "")
    gate.project.commit_all("Packages")
    gate.project.git("rm", "--quiet", "-r", "tests/plain/test_plain.py")
    gate.project.write("tests/plain/test_more.py", cases(("kernels.other", "other")))
    done = gate("--pyargs", "tests.plain")
    assert done.run.code == 8, done.run.text
    assert done.judged["removed"] == ["tests/plain/test_plain.py::test_plain"]


def test_what_the_command_selects_is_no_case_that_is_gone(gate: Gate) -> None:
    several(gate.project)
    gate.project.write("README.md", "Another text.\n")
    for words in (("-k", "other"), ("tests/test_other.py",)):
        done = gate(*words)
        assert done.run.code == 0 and done.judged["flags"] == [], done.run.text


# Nor is what runs around its cases while they are timed.

PATCHES = "import kernels.other\nkernels.other.COST_MS = {cost}\n"
FIXTURE = """\
import pytest


@pytest.fixture(autouse=True)
def around(monkeypatch):
    monkeypatch.setattr("kernels.plain.COST_MS", {cost})
"""
SETS_VARIABLE = 'import os\n\nos.environ["FAST"] = "1"\n'


def slowed(project: Project, name: str, cost: float | str = SLOWER, imports: str = "") -> None:
    project.write(f"kernels/{name}.py", kernel(cost, f"new {name}", name=name, imports=imports))


def test_what_surrounds_a_case_is_timed_as_at_the_base(gate: Gate) -> None:
    """A fixture, a variable that a conftest file sets, and what a test's file does."""
    project = gate.project
    names = ("plain", "other", "third")
    for rows, name in enumerate(names, start=1):
        project.write(f"kernels/{name}.py", kernel(who=f"old {name}", name=name))
        text = cases((f"kernels.{name}", name)).replace("ones(1, 8)", f"ones({rows}, 8)")
        project.write(f"tests/test_{name}.py", text.replace('"rows": 1', f'"rows": {rows}'))
    project.commit_all("Three kernels")
    project.write("conftest.py", SETS_VARIABLE + FIXTURE.format(cost=OLD))
    project.write(
        "tests/test_other.py", PATCHES.format(cost=OLD) + project.read("tests/test_other.py")
    )
    for name in names[:2]:
        slowed(project, name)
    cost = f'{SLOWER} - {SLOWER - OLD} * ("FAST" in os.environ)'
    slowed(project, "third", cost, "import os")
    done = gate()
    assert done.run.code == 8, done.run.text
    for rows, name in enumerate(names, start=1):
        slower = pytest.approx(100 * (OLD / SLOWER - 1))
        assert done.shapes[rows]["change_pct"] == slower, name
        versions = {f"old {name}", f"new {name}"}
        assert any(versions <= ran for ran in done.processes.values()), "in one process"


@pytest.mark.long
def test_what_a_plugin_of_the_tests_does_is_timed_as_at_the_base(gate: Gate) -> None:
    gate.project.write("tests/helper.py", FIXTURE.format(cost=OLD))
    settings(gate.project, addopts='["-p", "helper", "-p", "no:cacheprovider"]')
    slowed(gate.project, "plain")
    done = gate()
    assert done.run.code == 8, done.run.text
    assert {"old", "new plain"} in done.processes.values(), "in one process"


def test_a_fixture_and_a_case_that_are_new_are_judged(gate: Gate) -> None:
    """What the base has is timed as it was there, and what it has not is checked."""
    project = gate.project
    selects = f"import kernels.plain\nimport pytest\n\nkernels.plain.COST_MS = {SLOWER}\n"
    project.write("conftest.py", f"{selects}\n\n@pytest.fixture\ndef rows():\n    return 2\n")
    more = PLAIN_CASES.partition("\n\n\n")[2].replace("test_plain(kopt)", "test_rows(kopt, rows)")
    more = more.replace("ones(1, 8)", "ones(rows, 8)").replace('"rows": 1', '"rows": rows')
    project.write("tests/test_plain.py", f"{PLAIN_CASES}\n\n{more}")
    project.write(PLAIN, kernel(2 * SLOWER, "new"))
    done = gate()
    assert done.run.code == 8, done.run.text
    assert {rows: shape["change_pct"] for rows, shape in done.shapes.items()} == {
        1: pytest.approx(100 * (OLD / SLOWER / 2 - 1)),
        2: None,
    }
    assert done.judged["flags"] == [
        "new case, not compared: tests/test_plain.py::test_rows",
        "the cases run with the base's conftest.py: what only the changed ones select is not timed",
    ]


def test_what_the_bases_conftest_file_sets_is_the_bases(gate: Gate) -> None:
    text = CONFIGURES.format("config.option.kopt_timeout = 100.0")
    gate.project.write("conftest.py", text)
    gate.project.commit_all("A time limit")
    gate.project.write("README.md", "Another text.\n")
    assert gate().run.code == 0
    gate.project.write("conftest.py", f"{text}\n\nMORE = 1\n")
    assert "conftest.py sets --kopt-timeout to 100.0" in refusal(gate)
