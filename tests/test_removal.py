"""`kopt remove`: a campaign goes, and a tarball with all of it stays."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from git import Repo

from pytest_kopt.campaign.layout import Layout, campaigns
from pytest_kopt.campaign.running import hold, remove
from pytest_kopt.cli.main import main
from pytest_kopt.errors import BadInput


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A campaign as far as it is files."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    monkeypatch.chdir(tmp_path)
    layout = Layout(tmp_path / "agent/workspace/one")
    layout.verdict(1).parent.mkdir(parents=True)
    layout.manifest.write_text("{}")
    layout.verdict(1).write_text("a verdict")
    return layout


def test_everything_is_in_the_tarball(layout: Layout) -> None:
    kept = remove(layout)
    assert kept.parent == layout.workspace and not layout.directory.exists()
    with tarfile.open(kept) as tarball:
        assert {"one/manifest.yaml", "one/rounds/round-1/verdict.json"} <= {*tarball.getnames()}
    assert campaigns(layout.workspace) == []
    assert [path.name for path in layout.workspace.iterdir()] == [kept.name]


def test_one_that_is_in_use_stays(layout: Layout) -> None:
    with hold(layout), pytest.raises(BadInput, match="in use by process"):
        remove(layout)
    assert layout.verdict(1).exists()


class Terminal(io.StringIO):
    """What somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "code", "is_left"),
    [(Terminal("n\n"), 4, True), (Terminal(""), 4, True), (io.StringIO("y\n"), 4, True),
     (Terminal("y\n"), 0, False)],
)  # fmt: skip
def test_it_asks(
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
    typed: io.StringIO,
    code: int,
    is_left: bool,
) -> None:
    """Where nobody can be asked it wants an option."""
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["remove", "one"]) == code
    assert layout.manifest.exists() == is_left


def test_an_option_says_yes(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["remove", "one", "--yes"]) == 0
    assert "kept as" in capsys.readouterr().out
    assert main(["remove", "one", "--yes"]) == 4


def test_the_command_that_deletes_the_branch_leaves_it_first(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repo.init(layout.workspace.parents[1], initial_branch="main")
    repository.index.commit("Start")
    repository.git.switch("--create", "optimize/one")
    assert main(["remove", "one", "--yes"]) == 0
    command = capsys.readouterr().out.split("is left: ")[1].removesuffix(" deletes it\n")
    for part in command.split(" && "):
        subprocess.run(part.split(), check=True, capture_output=True)
    assert [head.name for head in repository.heads] == ["main"]
