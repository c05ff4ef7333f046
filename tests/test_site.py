"""The site: its map, and the pages that are generated from the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pytest_kopt
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.cli.main import _COMMANDS
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options import declare
from tests.test_pages import ARCHAIC, INVERTED, sentences

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

import conf  # noqa: E402
import generate_reference  # noqa: E402


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("docs") / "reference"
    folder.mkdir()
    (folder / "of-before.md").touch()
    generate_reference.write(folder)
    return {path.stem: path.read_text() for path in folder.iterdir()}


def test_the_reference_has_every_name_that_a_user_types(reference: dict[str, str]) -> None:
    for names, _ in declare.options():
        assert all(f"`{name}`" in reference["options"] for name in names)
    assert all(f"`{key}`" in reference["options"] for key in declare.settings_keys())
    assert all(f"## kopt {command.name}\n" in reference["commands"] for command in _COMMANDS)
    keys = {field.alias or name for name, field in Manifest.model_fields.items()}
    assert all(f"`{key}`" in reference["manifest"] for key in keys - {"schema"})
    assert all(f"## {name}\n" in reference["python"] for name in pytest_kopt.__all__)
    assert all(f"| `{int(code)}` | {code.name} |" in reference["exit-codes"] for code in ExitCode)


@pytest.mark.parametrize(
    "page", ["options", "exit-codes", "columns", "manifest", "policy", "python"]
)
def test_a_generated_page_has_short_sentences_too(page: str, reference: dict[str, str]) -> None:
    parts = sentences(reference[page])
    assert [part for part in parts if len(part.split()) > 30] == []
    assert [part for part in parts if INVERTED.match(part) and len(part.split()) > 3] == []
    assert [part for part in parts if ARCHAIC.search(part)] == []


def test_the_reference_has_no_page_of_before(reference: dict[str, str]) -> None:
    assert "of-before" not in reference


def test_every_page_is_in_the_navigation(reference: dict[str, str]) -> None:
    home = (DOCS / "index.md").read_text()
    entries = {line for line in home.splitlines() if line and " " not in line}
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert pages <= entries, pages - entries
    assert {f"reference/{name}" for name in reference} <= entries


def test_the_map_for_agents_has_a_sentence_for_every_page() -> None:
    lines = conf.llms().splitlines()
    entries = [line for line in lines if line.startswith("- ")]
    assert len(entries) > 60
    for line in entries:
        title, _, rest = line.partition("](_sources/")
        path, _, sentence = rest.partition("): ")
        assert title.startswith("- [") and len(title) > 4, line
        assert (DOCS.parent / path).exists() or path.startswith("docs/reference/"), line
        assert sentence.strip(), f"{path} begins with no sentence"
