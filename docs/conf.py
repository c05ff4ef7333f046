"""Sphinx's settings: the source folder is the repository's root, as pages link to its files."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import generate_reference  # noqa: E402

project = "pytest-kopt"
author = "The pytest-kopt authors"
copyright = "the pytest-kopt authors"
release = version_of("pytest-kopt")
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    *("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "conftest_templates/*.md"),
    "pytest_kopt/.agents/skills/kopt/**.md",
    *("docs/*.md", "docs/reference/*.md", "knowledge/**.md"),
]
exclude_patterns = [".*", "agent", "docs/campaigns", "docs/_build"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_links_external_new_tab = False
#: Directions are sections of level three below the title; markers of generated parts repeat;
#: Pygments has no lexer for CSV.
suppress_warnings = ["myst.header", "myst.duplicate_def", "misc.highlighting_failure"]
#: Two hyphens are the beginning of an option, no dash.
smartquotes = False
html_theme = "furo"
html_title = "pytest-kopt"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sourcelink_suffix = ""
html_show_sphinx = False

HOME = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
#: An agent reads this before any page: the figure that it may report as a change.
DECIDES = (
    "The figure that decides is `change_pct` with its interval, measured in pairs of one session: "
    "[Which figure decides](_sources/docs/verdicts.md#which-figure-decides). `forward_ms` and the "
    "times of a CSV are the candidate alone. Never divide those of two rounds or two CSVs."
)


def setup(app: Sphinx) -> None:
    generate_reference.write(DOCS / "reference")
    app.connect("build-finished", add_entry_points)


def add_entry_points(app: Sphinx, error: Exception | None) -> None:
    """Write the root page, which leads to the home page, and `llms.txt` for agents."""
    if error is None:
        (Path(app.outdir) / "index.html").write_text(HOME)
        (Path(app.outdir) / "llms.txt").write_text(llms())


def llms() -> str:
    """Return the map of the site for agents: each page's title and first sentence, by section.

    Links lead to the Markdown sources.
    """
    home = (DOCS / "index.md").read_text()
    title, lead = home.removeprefix("# ").split("\n\n", 2)[:2]
    lines = [f"# {title}", "", f"> {' '.join(lead.split())}", "", DECIDES]
    for caption, entries in re.findall(r":caption: (.*)\n(?::.*\n)*\n((?:.+\n)+)```", home):
        lines += ["", f"## {caption}", ""]
        for page in (
            page for entry in entries.split() for page in sorted(DOCS.glob(f"{entry}.md"))
        ):
            name, first = summary(page.read_text())
            path = page.resolve().relative_to(DOCS.parent)
            lines.append(f"- [{name}](_sources/{path}): {first}")
    return "\n".join(lines) + "\n"


def summary(text: str) -> tuple[str, str]:
    """Return the title of a page, and its first sentence without links."""
    text = re.sub(r"^(```.*?^```|<!--.*?-->)$", "", text, flags=re.MULTILINE | re.DOTALL)
    title, _, body = text[text.index("# ") + 2 :].partition("\n")
    paragraphs = [" ".join(part.split()) for part in body.split("\n\n")]
    prose = [part for part in paragraphs if re.match(r"[A-Z`\[]", part)]
    sentence = re.split(r"(?<=\.)\s", prose[0] if prose else "")[0]
    return title, re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence)
