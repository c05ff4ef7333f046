"""No figure without device, versions, date and command, or a link to where it stands with them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from tests.test_pages import DOCUMENTS, ROOT, slug

_AMOUNT = (
    r"(?:[−+±-]?\d[\d.]*(?: (?:to|and|or|in) [−+-]?\d[\d.]*)?"
    r" (?:ms|µs|s|seconds|minutes|GB/s|TB/s|TFLOPS|W|MHz|%)(?![\w/])|\d[\d.]*×(?! ?\d))"
)
#: What may be a measured figure of any page: a time, a rate, a share, a factor, a count of trials.
AMOUNT = re.compile(
    rf"{_AMOUNT}|(?<=\| )\d+\.\d+(?= )"
    r"|\b(?:\d+|[Nn]one|[Oo]ne|[Tt]wo|[Tt]hree|[Ff]our|[Ff]ive|[Aa]ll) of \d+\b"
)
#: A rule of kopt has such words around its figure.
RULE = re.compile(
    r"\b(?:(?:limit|target)(?: is| of|:)?|at (?:most|least)|[Bb]elow(?: a hit rate of)?|above"
    rf"|beyond|less than|more than|within|over|after|every)(?: an?| another)? {_AMOUNT}"
    rf"|{_AMOUNT} (?:by default|or more|or longer|of CPU time|a block|a case|of what their)"
    rf"|[≥≤±] ?\d[\d.]* ?%"
)
#: Where and how it was measured, in the section or above the first one.
CONDITIONS = {
    "device": re.compile(r"\b(H100s?|H200s?|CPU|cores?)\b"),
    "versions": re.compile(r"torch \d|versions not recorded"),
    "date": re.compile(r"\b20\d\d-\d\d-\d\d"),
    # A record names the command that made it.
    "command": re.compile(r"`[^`]*(python|pytest|kopt|benchmarks/)[^`]*`|results/\w+\.json"),
}
#: Others measured what stands beside an address or a footnote, vendors state what a spec has.
OTHERS = re.compile(r"https://|\[\^|spec\.yaml")
#: Stands for a place whose figures need no conditions on a page: a file of results, rules of kopt.
RECORD = "a record"
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)")
#: Pages whose top has the conditions of all figures below it.
ALL_OF_ONE = {
    *("docs/first-gpu-round.md", "docs/gpu.md", "docs/performance.md"),
    "docs/real-kernels-evidence.md",
}
#: Sections whose figures are rules of kopt or examples, not measurements.
RULES = {
    ("docs/cases.md", "Samplers and dropout"),
    ("docs/honesty-evidence.md", "How often a kernel is called"),
    ("docs/honesty.md", "Known limits: kernels that could still pass"),
    ("docs/operating-points.md", ""),
    ("docs/operating-points.md", "How a case is measured"),
    ("docs/operating-points.md", "When the other point is measured"),
    ("docs/paired.md", "Method"),
    ("docs/pull-requests.md", ""),
    ("docs/pull-requests.md", "Every night"),
    ("docs/timing.md", "On a GPU"),
    ("docs/verdicts.md", "The policy"),
    ("docs/verdicts.md", "The regression limit"),
    ("docs/verdicts.md", "The whole"),
    ("docs/verdicts.md", "Config classes"),
    ("docs/what-next.md", ""),
}


def sections(text: str) -> list[tuple[str, str]]:
    """Return titles and texts of a page's sections without code, what is above as the first."""
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    above, *rest = re.split(r"^##+ ", text, flags=re.MULTILINE)
    return [("", above), *((title, body) for title, _, body in (s.partition("\n") for s in rest))]


def linked(page: str, text: str) -> Iterator[str]:
    """Yield the sections that a text of a page links to, RECORD for a record or for rules."""
    for file, anchor in LINK.findall(text):
        target = (ROOT / page).parent / file if file else ROOT / page
        if target.is_file() and target.suffix in (".json", ".html"):
            yield RECORD
        elif target.is_file():
            name = target.resolve().relative_to(ROOT).as_posix()
            above, *rest = sections(target.read_text())
            if name in ALL_OF_ONE or not anchor:
                yield above[1]
            for title, body in rest:
                if not anchor or slug(title) == anchor:
                    yield RECORD if anchor and (name, title) in RULES else body


def stands_in(figure: str, text: str) -> bool:
    """Tell whether a text has all numbers of a figure, maybe with more digits."""
    there = [float(number) for number in re.findall(r"(?<![\d.])\d+(?:\.\d+)?(?!\d|\.\d)", text)]
    return all(
        any(round(one, len(number.partition(".")[2])) == float(number) for one in there)
        for number in re.findall(r"\d+(?:\.\d+)?", figure)
    )


def unsourced(page: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the figures of a page with what they lack: conditions, or a link to where they stand.

    A section has the conditions, or the top of a page for all of it, or a paragraph or row links to
    them. What stands above a table counts for each row.
    """
    all_sections = sections(text)
    for title, body in all_sections:
        above = all_sections[0][1] if page in ALL_OF_ONE else ""
        around = " ".join(f"{above} {body}".split())
        missing = {name for name, known in CONDITIONS.items() if not known.search(around)}
        if not missing or (page, title) in RULES:
            continue
        lead = ""
        for part in re.split(r"\n\s*\n|\n(?=[-|*]|\d+\. )", body):
            plain = " ".join(part.split())
            lead = lead if plain.startswith("|") else plain
            prose = RULE.sub("", re.sub(r"`[^`]*`", "x", plain))
            figures = [found[0] for found in AMOUNT.finditer(prose)]
            if not figures or OTHERS.search(plain):
                continue
            places = [*linked(page, f"{plain} {lead}")]
            if "measured below" in plain:
                places += [other for name, other in all_sections if name != title]
            known = " ".join(" ".join([around, *places]).split())
            lacks = ", ".join(sorted(n for n in missing if not CONDITIONS[n].search(known)))
            if RECORD not in places:
                there = "".join(places)
                yield from ((f, lacks) for f in figures if lacks or not stands_in(f, there))


@pytest.mark.parametrize("page", ["CHANGELOG.md", *DOCUMENTS])
def test_a_measured_figure_says_where_and_how_or_links_there(page: str) -> None:
    assert [*unsourced(page, (ROOT / page).read_text())] == []


@pytest.mark.parametrize("page", sorted({"CHANGELOG.md", *DOCUMENTS} - ALL_OF_ONE))
def test_a_new_section_with_a_figure_alone_is_found(page: str) -> None:
    text = (ROOT / page).read_text() + "\n\n## New\n\nA round took 12.3 s."
    assert ("12.3 s", "command, date, device, versions") in unsourced(page, text)


@pytest.mark.parametrize("section", sorted(RULES))
def test_a_section_of_rules_has_figures_that_look_measured(
    monkeypatch: pytest.MonkeyPatch, section: tuple[str, str]
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "RULES", RULES - {section})
    assert [*unsourced(section[0], (ROOT / section[0]).read_text())]


MEASURED_ON = "(H100, torch 2.11, 2026-11-27, `python benchmarks/paired_gpu.py OUT`)"
IDENTICAL = "([identical code](paired-evidence.md#identical-code))"


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("A round took 12.3 s.", ["12.3 s"]),
        ("It took 13 to 30 seconds.", ["13 to 30 seconds"]),
        ("A call takes 12.3 ms, 1.74× as long.", ["12.3 ms", "1.74×"]),
        ("It reaches 89 % of cuBLAS.", ["89 %"]),
        ("It gains +0.5 %.", ["+0.5 %"]),
        ("It reaches 412 TFLOPS.", ["412 TFLOPS"]),
        ("kopt found 90 of 100.", ["90 of 100"]),
        ("None of 60 histories named one.", ["None of 60"]),
        ("| tiles | µs |\n| --- | --- |\n| large | 12.3 |", ["12.3"]),
        ("| tiles | µs |\n| --- | --- |\n| large | 12 µs |", ["12 µs"]),
        # Conditions of another section, a link elsewhere, and a page without figures are no source.
        (f"## Here\nIt took 12.3 s.\n## There\nAnother took 12.4 s {MEASURED_ON}.", ["12.3 s"]),
        (f"It took 12.3 s.\n\nThere is evidence {IDENTICAL}.", ["12.3 s"]),
        ("It took 12.3 s ([judge](judge.md)).", ["12.3 s"]),
        ("It took 12.3 s (H100, torch 2.11, 2026-11-27).", ["12.3 s"]),
        (f"kopt accepted identical code in 4321 of 9876 rounds {IDENTICAL}.", ["4321 of 9876"]),
        # These are sourced, or nobody measured them.
        (f"It took 12.3 s {MEASURED_ON}.", []),
        (f"kopt accepted identical code in 1 of 250 rounds {IDENTICAL}.", []),
        ("It took 12.3 s ([JSON](results/device_h100.json)).", []),
        ("An H100 has 3.35 TB/s ([NVIDIA](https://www.nvidia.com/h100)).", []),
        ("The regression limit is 5 %, a loss of at most 3 % is noted.", []),
        ("A line such as `12.3 ms` follows, for 2 × 4 tiles.", []),
    ],
)
def test_a_figure_without_a_source_is_found(text: str, figures: list[str]) -> None:
    assert [figure for figure, _ in unsourced("docs/report.md", text)] == figures
