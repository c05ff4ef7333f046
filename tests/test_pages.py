"""What README, pages and docstrings may say: sourced figures, short sentences, no claim for AMD."""

from __future__ import annotations

import ast
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.pictures import kept_lines
from pytest_kopt.bundled import SKILL

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_kopt"
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/campaigns/**/*.md")),
    *sorted(ROOT.glob("docs/campaigns/*/report.html")),
    *sorted(ROOT.glob("docs/pictures/*.svg")),
    *sorted(ROOT.glob("knowledge/**/*.md")),
    *sorted(ROOT.glob("conftest_templates/*.md")),
]
#: What people wrote for people.
DOCUMENTS = [
    *("README.md", "CONTRIBUTING.md", "conftest_templates/README.md"),
    "AGENTS.md",
    *sorted(p.relative_to(ROOT).as_posix() for p in (PACKAGE / SKILL).rglob("*.md")),
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")),
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("knowledge/**/*.md")),
]
#: A measured figure: a time, a share, a rate, or a count of trials.
FIGURE = re.compile(
    r"\d (s|ms|µs|GB/s|TB/s|TFLOPS)\b|\d %|\b(\d+|none|one) of \d+|\d×|×\d|\| \d+(\.\d+)? \|"
)
DEVICE = re.compile(r"\b(H100|H200|CPU)\b")
SOURCE = re.compile(r"`(python|pytest|kopt) |\(docs/(campaigns|results)/|The last command")
#: A sentence that begins so hides who acts.
INVERTED = re.compile(r"(What|Where|Who|Whoever|Whatever|Whose|Of|Such)\b")
ARCHAIC = re.compile(
    r"\b(anew|mend(s|ed)?|whoever|beside|nobody's|multiprocessors?)\b"
    r"|\b(so many|in company|hold against)\b",
    re.IGNORECASE,
)
#: Code of Python that kopt writes.
GENERATED = re.compile(r"^(def|import) \w+", re.MULTILINE)
INDEX_HOSTS = re.compile(r"pypi\.org|pythonhosted|download\.pytorch|registry\.npmjs|deb\.debian")


def passages(text: str) -> list[str]:
    """Return the paragraphs, list items and table rows of a page without its code blocks."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [part for part in re.split(r"\n\s*\n|\n(?=[-|])", text) if part.strip()]


def sentences(text: str) -> list[str]:
    """Return the sentences, list items, headings and table cells of a page, code as one word."""
    text = re.sub(r"```.*?```|`[^`]*`|<[^>]*>|\]\([^)]*\)", "x", text, flags=re.DOTALL)
    blocks = re.split(r"\n\s*\n|\n(?=[-*|#\d])|\|", text)
    plain = [" ".join(block.split()).strip("-*#> ") for block in blocks]
    return [part for block in plain for part in re.split(r"(?<=[.!?])\s+", block) if part]


def hard_to_read(parts: list[str]) -> Iterator[str]:
    """Yield the sentences that are long, hide who acts, or hold a word that nobody says."""
    for part in parts:
        words = len(part.split())
        if words > 30 or (words > 3 and INVERTED.match(part)) or ARCHAIC.search(part):
            yield part


@pytest.mark.parametrize("page", DOCUMENTS)
def test_a_sentence_is_short_and_begins_with_the_noun_that_acts(page: str) -> None:
    # Footnotes are titles and addresses.
    text = re.sub(r"^\[\^.*$", "", (ROOT / page).read_text(), flags=re.MULTILINE)
    parts = sentences(text)
    assert parts and [*hard_to_read(parts)] == []


#: Those of the package; "." has the files that lie in none.
FOLDERS = [".", *sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))]


def files_of(folder: str) -> list[Path]:
    return [*(PACKAGE.glob("*.py") if folder == "." else (PACKAGE / folder).rglob("*.py"))]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and its statements, without a look into expressions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements(child)


@pytest.mark.parametrize("folder", FOLDERS)
def test_so_does_a_sentence_of_a_docstring(folder: str) -> None:
    texts = [
        (file, text)
        for file in files_of(folder)
        for node in statements(ast.parse(file.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and (text := ast.get_docstring(node))
    ]
    hard = [(file.name, part) for file, text in texts for part in hard_to_read(sentences(text))]
    assert texts and hard == []


def messages(node: ast.AST) -> Iterator[str]:
    """Yield the strings in a tree that are no docstrings, each expression in one as a word."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            parts = child.values
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else "x" for p in parts)
            for part in parts:
                yield from messages(part)
        elif not isinstance(child, ast.Constant):
            yield from messages(child)
        elif isinstance(child.value, str) and not isinstance(node, ast.Expr):
            yield child.value


def hard_messages(source: str) -> list[str]:
    """Return what is hard to read in the strings of a module, without code and short names."""
    texts = [text for text in messages(ast.parse(source)) if len(text.split()) >= 5]
    plain = [text for text in texts if not GENERATED.search(text)]
    return [hard for text in plain for hard in hard_to_read(sentences(text))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_so_does_a_sentence_of_a_message(folder: str) -> None:
    files = files_of(folder)
    assert [(file.name, hard) for file in files if (hard := hard_messages(file.read_text()))] == []


@pytest.mark.parametrize(
    "template", sorted(p.name for p in PACKAGE.rglob("*.j2") if ".json" not in p.suffixes)
)
def test_so_does_a_sentence_of_a_template(template: str) -> None:
    text = (PACKAGE / "show/templates" / template).read_text()
    text = re.sub(r"\{#.*?#\}|\{%.*?%\}", "\n\n", text, flags=re.DOTALL)
    assert [*hard_to_read(sentences(re.sub(r"\{\{.*?\}\}", "x", text, flags=re.DOTALL)))] == []


@pytest.mark.parametrize(
    ("source", "hard"),
    [
        (
            "say('Both of the versions ' 'are loaded anew')",
            ["Both of the versions are loaded anew"],
        ),
        ("say(f'Where {a} is, {b} is too.')", ["Where x is, x is too."]),
        ("say(f\"{1 if a else 'the files to mend by hand'}\")", ["the files to mend by hand"]),
        (f"say('{'very ' * 30}long.')", [f"{'very ' * 30}long."]),
        (f"say('{'very ' * 15}long. {'very ' * 15}long.')", []),
        ("act('mend')", []),
        ("'Where the docstring of a module is.'", []),
    ],
)
def test_a_message_that_is_hard_to_read_is_found(source: str, hard: list[str]) -> None:
    assert hard_messages(source) == hard


def slug(heading: str) -> str:
    """Return the anchor of a heading as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page as GitHub makes them, and those that it writes itself."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {*map(slug, headings), *re.findall(r'<a id="([^"]+)"', text)}


def test_every_link_to_a_heading_finds_it() -> None:
    links = 0
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]:
        for file, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text()):
            target = page.parent / file if file else page
            assert anchor in anchors(target), f"{page.name}: {file}#{anchor}"
            links += 1
    assert links > 20, "the pattern finds the links that are there"


@pytest.mark.parametrize("page", DOCUMENTS)
def test_a_link_to_a_page_says_what_the_page_is_about(page: str) -> None:
    plain = r"```.*?```|`[^`]*`|\]\([^)]*\)"
    text = re.sub(plain, "", (ROOT / page).read_text(), flags=re.DOTALL)
    assert re.findall(r"[\w/.-]+\.md\b", text) == []


def test_troubleshooting_quotes_messages_that_the_package_has() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text().partition("## By message\n")[2]
    quoted = re.findall(r"^\| `([^`]+)` \|", page.partition("\n## ")[0], re.MULTILINE)
    sources = [path.read_text() for path in (ROOT / "pytest_kopt").rglob("*.py")]
    assert len(quoted) > 10
    assert [part for part in quoted if not any(part in text for text in sources)] == []


def test_a_figure_of_the_readme_names_device_date_and_command() -> None:
    text = (ROOT / "README.md").read_text()
    figures = [part for part in passages(text) if FIGURE.search(part)]
    assert len(figures) >= 4, "the pattern finds the figures that are there"
    for part in figures:
        assert DEVICE.search(part) and re.search(r"2026-\d\d-\d\d", part), part
        assert SOURCE.search(part), part


@pytest.mark.parametrize(
    ("record", "key", "kinds"),
    [
        ("gpu_rounds_h100_five", "wall s", {"cases": "five forward", "round": "baseline"}),
        ("gpu_rounds_h200_near", "wall s", {"cases": "five forward", "round": "the same"}),
        ("gpu_rounds_h200_near", "wall s", {"cases": "five forward", "round": "a clear loss"}),
        ("gpu_rounds_h200_near", "wall s", {"cases": "five forward", "round": "a clear gain"}),
        ("honesty_cost_h100", "seconds", {"kind": "checked"}),
    ],
)
def test_the_seconds_of_the_readme_are_those_that_were_measured(
    record: str, key: str, kinds: dict[str, str]
) -> None:
    recorded = json.loads((ROOT / f"docs/results/{record}.json").read_text())
    walls = [entry[key] for entry in recorded["rounds"] if kinds.items() <= entry.items()]
    day = recorded["machine"]["time"].partition(" ")[0]
    device = "H200" if "h200" in record else "H100"
    row = f"| {statistics.median(walls):.1f} | {device}, torch 2.11, Triton 3.6, {day}, "
    assert f"{row}median of {len(walls)} |" in (ROOT / "README.md").read_text()


def test_the_readme_quotes_a_kept_session() -> None:
    text = (ROOT / "README.md").read_text()
    found = re.search(r"<!-- shown: softmax round (\d+) -->\n```text\n(.*?)\n```", text, re.DOTALL)
    assert found is not None
    printed = list(kept_lines(int(found[1]), 1))
    for line in found[2].splitlines():
        assert line in printed, line


def test_a_script_that_is_named_is_there() -> None:
    """A record keeps the command of a script that is gone, and the commit that has it."""
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("knowledge/**/*.*")]
    texts += [
        path
        for folder in ("pytest_kopt", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named = {
        (path.relative_to(ROOT).as_posix(), script)
        for path in texts
        for script in re.findall(r"(?<!:)benchmarks/\w+\.py", path.read_text())
    }
    assert len(named) > 20
    assert [place for place in sorted(named) if not (ROOT / place[1]).is_file()] == []


def test_the_corpus_is_as_large_as_the_page_says() -> None:
    text = " ".join((ROOT / "docs/honesty-evidence.md").read_text().split())
    words = {6: "six", 11: "eleven"}
    for folder, kernels in (("cheats", "cheats"), ("honest", "honest kernels")):
        texts = [path.read_text() for path in (ROOT / "tests/corpus" / folder).glob("*__*.py")]
        on_gpu = sum("NEEDS = 'cuda'" in text or 'NEEDS = "cuda"' in text for text in texts)
        assert f"{len(texts)} {kernels}, {words[on_gpu]} of which need a GPU" in text


def test_no_page_says_that_evidence_is_gone() -> None:
    for page in PAGES:
        assert "evidence is gone" not in page.read_text(), page


def test_a_page_that_names_amd_says_that_it_was_never_run() -> None:
    """The knowledge pages are about the hardware, not about what kopt did on it."""
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]:
        text = page.read_text()
        if re.search(r"\b(AMD|ROCm|HIP|MI300X?|rocprofv3|hipcc)\b", text):
            assert "implemented, never run on hardware" in text, page


def test_no_file_names_a_host_of_a_package_index() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, tracked.split("\0")):
        path = ROOT / name
        if path == Path(__file__) or not path.is_file() or path.suffix == ".png":
            continue
        assert not INDEX_HOSTS.search(path.read_text(errors="replace")), name
