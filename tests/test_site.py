"""The site: its map, and the pages that are generated from the package."""

from __future__ import annotations

import ast
import json
import re
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
sys.path[:0] = [str(DOCS), str(DOCS.parent / "benchmarks")]

import conf  # noqa: E402
import generate_reference  # noqa: E402
import start_here_pages  # noqa: E402


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


def test_the_reference_holds_no_address_of_the_build(reference: dict[str, str]) -> None:
    assert [name for name, text in reference.items() if re.search(r"\b0x\w{6}", text)] == []


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


def test_the_knowledge_pages_have_the_measured_figures_and_the_kernels_code() -> None:
    """Otherwise: `python benchmarks/start_here_pages.py`."""
    for page, parts in start_here_pages.texts().items():
        assert page.read_text() == start_here_pages.written(page, parts), page


def test_the_gemm_template_is_as_fast_as_the_library() -> None:
    ops = json.loads(start_here_pages.RESULTS.read_text())["ops"]
    rows = {name: op["rows"][-1] for name, op in ops.items() if name.startswith("gemm")}
    assert len(rows) == 6
    assert all(row["of_library_pct"] >= 90 for row in rows.values()), rows
    hopper = {key: rows["gemm_bf16"]["config"][key] for key in gemm_bf16_tiles("HOPPER")}
    assert hopper == gemm_bf16_tiles("HOPPER"), "what was measured is what the template has"
    few = rows["gemm_bf16_few_tiles"]["config"]
    assert few == gemm_bf16_tiles("HOPPER_FEW_TILES")


def gemm_bf16_tiles(constant: str) -> dict[str, int]:
    """Return a configuration of the template without an import of Triton."""
    text = (DOCS.parent / "conftest_templates/kernels/gemm_bf16.py").read_text()
    found = re.search(rf"^{constant} = (.*)$", text, re.MULTILINE)
    assert found
    return dict(ast.literal_eval(found[1]))
