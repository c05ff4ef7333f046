"""Projects to run pytest in."""

from __future__ import annotations

from pathlib import Path

import pytest

from .once import made_once
from .paired import Gate, project_at
from .project import Project, Stage
from .sources import write_doubled
from .story import MODES, Story, told


@pytest.fixture(params=["serial", pytest.param("n2", marks=pytest.mark.long)])
def mode(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The words that make a run serial or distributed; distributed in the long suite.

    Where the two go ways of their own, a test asks for both itself.
    """
    return MODES[request.param]


@pytest.fixture
def empty(tmp_path: Path) -> Project:
    """A project without a file."""
    root = tmp_path / "project"
    root.mkdir()
    return Project(root)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """The gate in a project whose first commit is the base."""
    return Gate(project_at(tmp_path / "project"))


def _make_fresh(directory: Path) -> None:
    project = Project(directory / "project")
    write_doubled(project)
    project.commit_all()
    run = project.init()
    assert run.code == 0, run.text


def _make_started(fresh: Project, directory: Path) -> None:
    project = fresh.copy(directory / "working")
    run = project.round(1)
    Stage(project, run).keep(directory / "project")


@pytest.fixture(scope="session")
def fresh_template(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(made_once(tmp_path_factory, "fresh", {"fresh": _make_fresh}) / "project")


@pytest.fixture(scope="session")
def baseline_stage(tmp_path_factory: pytest.TempPathFactory, fresh_template: Project) -> Stage:
    """A campaign after a serial baseline; to be read, not changed."""
    recipes = {"started": lambda path: _make_started(fresh_template, path)}
    made = made_once(tmp_path_factory, "started", recipes)
    return Stage.kept(made / "project")


@pytest.fixture
def fresh(fresh_template: Project, tmp_path: Path) -> Project:
    """A project with a campaign that has no baseline yet."""
    return fresh_template.copy(tmp_path / "project")


@pytest.fixture(scope="session")
def started_template(baseline_stage: Stage) -> Project:
    assert baseline_stage.run.code == 0, baseline_stage.run.text
    return baseline_stage.project


@pytest.fixture
def started(started_template: Project, tmp_path: Path) -> Project:
    """A project with a campaign whose baseline is decided."""
    project = started_template.copy(tmp_path / "project")
    project.forget_measuring()
    return project


@pytest.fixture(scope="session", params=MODES)
def story(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    fresh_template: Project,
) -> Story:
    return told(tmp_path_factory, fresh_template, request.param)


@pytest.fixture(scope="session")
def serial_story(tmp_path_factory: pytest.TempPathFactory, fresh_template: Project) -> Story:
    return told(tmp_path_factory, fresh_template, "serial")
