"""A verdict in Markdown: the comment on a pull request and the summary of a CI step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.schema.table import write_atomically
from pytest_kopt.show.templates import rendered
from pytest_kopt.show.terminal import colour
from pytest_kopt.show.words import (
    CANDIDATE,
    CASE_STATUS,
    CHANGE,
    CHECK,
    INCUMBENT,
    INTERVAL,
    LABEL,
    TextColumn,
    kernel_lines,
    one_line,
    outcome,
    remarks,
    rows,
    visible,
)

_SIGNS = {"green": "🟢", "yellow": "🟡", "red": "🔴"}
#: GitHub refuses a comment of more than 65536 characters.
_MOST_ROWS = 200
_BEFORE, _NOW = INCUMBENT._replace(heading="Before"), CANDIDATE._replace(heading="Now")


@pytest.hookimpl(tryfirst=True)
def pytest_kopt_verdict(config: pytest.Config, verdict: Verdict) -> Iterator[str]:
    if config.option.kopt_comment is None:
        return
    path = config.invocation_params.dir / config.option.kopt_comment
    try:
        write_atomically(path, comment(verdict))
    except OSError as error:
        yield f"--kopt-comment could not be written: {error}"


def comment(verdict: Verdict) -> str:
    """Return the Markdown; text from the session can neither be markup nor mention anyone."""
    totals = verdict.totals
    is_compared = any(total.change_pct is not None for total in totals)
    # A gate compares times of many schemas: it has no figure of its own.
    has_figures = any(total.candidate is not None for total in totals)
    columns = [_METRIC, *((_BEFORE, _NOW) if has_figures else ()), CHANGE, INTERVAL]
    worst = sorted(verdict.shapes, key=lambda case: (case.check == "PASS", case.change_pct or 0.0))
    return rendered(
        "comment.md.j2",
        plain=_plain,
        sign="⚪" if verdict.decision is Decision.BASELINE else _SIGNS[colour(verdict)],
        outcome=outcome(verdict).replace("_", " ").lower(),
        verdict=verdict,
        totals=rows(totals if is_compared else (), *columns),
        remarks=[_plain(text) for text in remarks(verdict)[:_MOST_ROWS]],
        cases=rows(worst[:_MOST_ROWS], *_CASES),
        kernels=kernel_lines(verdict),
        most_rows=_MOST_ROWS,
        base=verdict.base or "",
    )


def _plain(text: str) -> str:
    """Return text that GitHub shows as it is: no HTML, no links, no mentions, no emphasis."""
    text = one_line(visible(text)).replace("\\|", "|")[:1000]
    for character in "\\`*_[]~|#!":
        text = text.replace(character, f"\\{character}")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("@", "@\u2060")


_METRIC = TextColumn("Metric", "metric", _plain)
_CASES = (LABEL._replace(written=_plain), CHECK, CHANGE, INTERVAL, CASE_STATUS)
