"""A verdict in Markdown: the comment on a pull request and the summary of a CI step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_kopt.decide.verdict import Decision, Shape, Verdict
from pytest_kopt.schema.table import write_atomically
from pytest_kopt.show.words import (
    bounds,
    kernel_lines,
    markdown_table,
    memory,
    one_line,
    outcome,
    together,
    versions,
    visible,
)

_SIGNS = {
    Decision.BASELINE: "⚪",
    Decision.ACCEPTED: "🟢",
    Decision.ACCEPTED_WITH_NOTE: "🟢",
    Decision.INCONCLUSIVE: "🟡",
    Decision.INCOMPLETE: "🟡",
}
#: GitHub refuses a comment of more than 65536 characters.
_MOST_ROWS = 200


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
    return "\n\n".join(_blocks(verdict)) + "\n"


def _blocks(verdict: Verdict) -> Iterator[str]:
    sign = _SIGNS.get(verdict.decision, "🔴")
    yield f"### {sign} kopt: {outcome(verdict).replace('_', ' ').lower()}"
    yield _safe(verdict.reason)
    totals = [total for total in (verdict.aggregate, *verdict.secondary) if total]
    if any(total.change_pct is not None for total in totals):
        # A gate compares times of many schemas: it has no figure of its own.
        has_figures = any(total.candidate is not None for total in totals)
        yield markdown_table(
            {
                "Geomean": _safe(each.metric),
                **(versions(each, "Before", "Now") if has_figures else {}),
                **bounds(each, "Change"),
            }
            for each in totals
        )
    for text in filter(None, (together(verdict), memory(verdict))):
        yield f"{text}."
    if verdict.shapes:
        worst = sorted(
            verdict.shapes, key=lambda shape: (shape.check == "PASS", shape.change_pct or 0.0)
        )
        yield f"<details><summary>{len(worst)} cases, the worst first</summary>"
        yield markdown_table(
            {
                "Case": _safe(shape.label),
                "Check": shape.check,
                **bounds(shape, "Change"),
                "Status": _status(shape),
            }
            for shape in worst[:_MOST_ROWS]
        )
        if len(worst) > _MOST_ROWS:
            yield f"and {len(worst) - _MOST_ROWS} more in verdict.json"
        yield "</details>"
    if verdict.same_code:
        yield f"{verdict.same_code}."
    kernels = kernel_lines(verdict)
    if kernels:
        yield f"<details><summary>what changed in {len(kernels)} kernels</summary>"
        yield "\n".join(f"- {_safe(line)}" for line in kernels[:_MOST_ROWS])
        yield "</details>"
    if verdict.flags:
        yield "\n".join(f"- flag: {_safe(flag)}" for flag in verdict.flags)
    if verdict.next_step:
        yield f"**Next:** {_safe(verdict.next_step)}"
    yield f"<sub>{_safe(_how(verdict))}</sub>"


def _how(verdict: Verdict) -> str:
    base = verdict.base or ""
    told = {
        f"policy {verdict.policy}": True,
        f"{verdict.compare} comparison": verdict.compare != "none",
        f"engine {verdict.engine}": verdict.engine,
        f"against {base if '/' in base else base[:12]}": base,
        f"campaign {verdict.campaign}, round {verdict.round}": verdict.campaign,
    }
    return ", ".join(text for text, is_known in told.items() if is_known)


def _status(shape: Shape) -> str:
    if shape.same:
        return "same code"
    is_bare = shape.check == "PASS" and shape.change_pct is None
    return "not compared" if is_bare and shape.status == "unchanged" else shape.status


def _safe(text: str) -> str:
    """Return text that GitHub shows as it is: no HTML, no links, no mentions, no emphasis."""
    text = one_line(visible(text)).replace("\\|", "|")[:1000]
    for character in "\\`*_[]~|#!":
        text = text.replace(character, f"\\{character}")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("@", "@\u2060")
