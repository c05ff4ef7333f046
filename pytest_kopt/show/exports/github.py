"""GitHub Actions: the summary of a step, and annotations on the lines of a change."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import within
from pytest_kopt.show.exports.comment import comment
from pytest_kopt.show.words import visible

#: Where a flag says it was found: `… (kernels/gemm.py:12) …`.
_PLACE = re.compile(r"\(([^()\s:][^():\n]*):(\d+)\)")


@pytest.hookimpl(tryfirst=True)
def pytest_kopt_verdict(verdict: Verdict, results: Sequence[CaseResult]) -> Iterator[str]:
    """Append to the step's summary, and annotate, where a GitHub runner asks for it."""
    try:
        append_summary(os.environ, comment(verdict))
    except OSError as error:
        yield f"GITHUB_STEP_SUMMARY could not be written: {error}"
    yield from annotation_lines(os.environ, verdict, results)


def append_summary(environ: Mapping[str, str], markdown: str) -> None:
    """Append to the step's summary where a GitHub runner offers one; OSError when it cannot."""
    path = environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with open(Path(path), "a", encoding="utf-8") as stream:
            stream.write(markdown + "\n")


def annotation_lines(
    environ: Mapping[str, str], verdict: Verdict, results: Sequence[CaseResult]
) -> Iterator[str]:
    """Yield a runner's annotations: of flags on the lines they name, of cases on their tests."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    level = "error" if verdict.decision is Decision.REJECTED_OVERFIT else "warning"
    for flag in verdict.flags:
        if place := _PLACE.search(flag):
            yield _command(level, flag, file=place[1], line=place[2], title="kopt")
    files = {result.label: result.nodeid.partition("::")[0] for result in results}
    for result in results:
        if result.check != "PASS":
            first = result.diagnosis.strip().splitlines()[:1]
            text = f"{result.label}: {result.check} {''.join(first)}".rstrip()
            yield _command("error", text, file=files[result.label], title="kopt check")
    for shape in verdict.shapes:
        if shape.status == "regressed":
            text = f"{shape.label}: {within(shape)}"
            yield _command("error", text, file=files.get(shape.label, ""), title="kopt slower")


def _command(level: str, message: str, **properties: str) -> str:
    pairs = ",".join(
        f"{name}={_escaped(value, ':,')}" for name, value in properties.items() if value
    )
    return f"::{level} {pairs}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    """Return text that stays inside its command: what GitHub's toolkit calls escapeData."""
    text = visible(text.replace("\r\n", "\n").replace("\r", "\n"))
    for character in "%\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
