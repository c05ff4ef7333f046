from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import get_args

import pytest
import yaml

from pytest_kopt.bundled import PACKAGE, SKILL, bundled
from pytest_kopt.decide.verdict import ActionWord, Decision, Verdict
from pytest_kopt.exit_codes import ExitCode

REPOSITORY = Path(__file__).parents[1]


def test_a_source_tree_has_the_folder_beside_the_package() -> None:
    assert bundled("knowledge") == REPOSITORY / "knowledge"


def test_an_installation_has_it_inside_the_package(tmp_path: Path) -> None:
    inside = tmp_path / "pytest_kopt" / "bundled" / "knowledge"
    inside.mkdir(parents=True)
    (tmp_path / "knowledge").mkdir()
    assert bundled("knowledge", tmp_path / "pytest_kopt") == inside


def test_a_folder_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder 'recipes'"):
        bundled("recipes", tmp_path)


@pytest.mark.long
def test_an_installed_wheel_answers_from_its_own_copy(tmp_path: Path) -> None:
    """The dependencies are this environment's; the package is the wheel's alone."""
    pip = [sys.executable, "-m", "pip"]
    wheels = tmp_path / "wheels"
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", wheels, REPOSITORY], check=True)
    (wheel,) = wheels.glob("*.whl")
    venv.create(tmp_path / "venv", system_site_packages=False, with_pip=False)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", site, wheel], check=True)
    # Hidden folders drop out of globs.
    skill = {path.relative_to(PACKAGE) for path in (PACKAGE / SKILL).rglob("*.*")}
    assert len(skill) == 5 and all((site / "pytest_kopt" / path).is_file() for path in skill)
    code = (
        "import pytest_kopt; from pytest_kopt.knowledge.facts import fact_of; "
        "print(pytest_kopt.__file__); "
        "print(fact_of('hbm_bandwidth', 'sm_90', 'H200').citation())"
    )
    paths = [entry for entry in sys.path if entry and Path(entry).resolve() != REPOSITORY]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {[str(site), *paths]!r}; {code}"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    where, citation = done.stdout.splitlines()
    assert Path(where).is_relative_to(site)
    assert citation.startswith("hbm_bandwidth: 4.8 TB/s <- ")


def test_the_skill_has_the_layout_by_which_agents_find_one() -> None:
    """That of agentskills.io: the limits of its specification."""
    folder = PACKAGE / SKILL
    text = (folder / "SKILL.md").read_text()
    _, head, body = text.split("---\n", 2)
    about = yaml.safe_load(head)
    assert set(about) == {"name", "description"}
    assert about["name"] == folder.name and re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", folder.name)
    assert 0 < len(about["description"]) <= 1024 and " Use when " in about["description"]
    assert len(body.splitlines()) < 500
    links = set(re.findall(r"\]\((?!http)([^)#]+)", text))
    assert links == {f"references/{path.name}" for path in (folder / "references").iterdir()}
    evals = json.loads((folder / "evals/evals.json").read_text())
    assert evals["skill_name"] == folder.name and len(evals["evals"]) == 3
    assert all(task["prompt"] and task["expected_output"] for task in evals["evals"])


def test_the_skill_names_every_exit_code_action_and_decision() -> None:
    pages = {path.stem: path.read_text() for path in (PACKAGE / SKILL / "references").iterdir()}
    codes = re.findall(r"^\| (\d+) \|", pages["exit-codes"], re.MULTILINE)
    assert set(map(int, codes)) == {*map(int, ExitCode), int(pytest.ExitCode.INTERRUPTED)}
    _, *words = re.findall(r"^\| `(\w+)` \|", pages["loop"], re.MULTILINE)
    assert [*get_args(ActionWord)] == words[: len(get_args(ActionWord))]
    assert all(str(decision) in pages["verdict"] for decision in Decision)
    _, *keys = re.findall(r"^\| `?(\w+)", pages["verdict"], re.MULTILINE)
    assert len(keys) > 8 and set(keys) <= set(Verdict.model_fields)


def test_the_registry_of_mcp_servers_takes_server_json() -> None:
    """The limits of its schema of 2025-12-11, and how it knows that the package is ours."""
    server = json.loads((REPOSITORY / "server.json").read_text())
    settings = (REPOSITORY / "pyproject.toml").read_text().partition("[tool.")[0]
    named = dict(re.findall(r'^(name|version|pytest-kopt) = "(.+)"$', settings, re.MULTILINE))
    assert server["$schema"].endswith("/schemas/2025-12-11/server.schema.json")
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", server["name"])
    assert len(server["name"]) <= 200 and 0 < len(server["title"]) <= 100
    assert 0 < len(server["description"]) <= 100
    (package,) = server["packages"]
    assert {"registryType", "identifier", "transport"} <= set(package)
    assert (package["registryType"], package["transport"]) == ("pypi", {"type": "stdio"})
    assert package["identifier"] == named["name"] == "pytest-kopt"
    assert package["version"] == server["version"] == named["version"]
    for argument in (*package["runtimeArguments"], *package["packageArguments"]):
        assert argument["type"] in ("named", "positional") and argument["value"]
        assert ("name" in argument) == (argument["type"] == "named")
    # The registry reads the README that PyPI shows, and wants an end behind the name.
    readme = (REPOSITORY / "README.md").read_text()
    assert re.search(rf"mcp-name: {re.escape(server['name'])}\s", readme)
    assert "pytest-kopt" in named, "uvx runs the command of the package's name"


def test_the_page_for_agents_that_change_this_project_is_short() -> None:
    page = REPOSITORY / "AGENTS.md"
    assert len(page.read_text().splitlines()) < 100
    assert (REPOSITORY / "CLAUDE.md").readlink() == Path(page.name)
    paths = re.findall(r"\]\(([^)#]+)\)|`([\w./]+/)`", page.read_text())
    assert len(paths) > 5 and all((REPOSITORY / (link or path)).exists() for link, path in paths)
