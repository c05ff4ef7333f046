"""Documents for people as Jinja2 templates, the files next to this module."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_kopt.figures import changed, figure, thousandths, within
from pytest_kopt.show.words import compared, html_table, markdown_table, visible


def rendered(template: str, **values: Any) -> str:
    """Return the text of a document, which ends with one line end unless it is HTML.

    Values are escaped in HTML only; one that is missing raises.
    """
    text = str(_environment().get_template(template).render(**values))
    return text if template.endswith(".html.j2") else text.rstrip("\n") + "\n"


@functools.cache
def _environment() -> Any:
    # Imported when a document is written: a run without a campaign does not wait for it.
    jinja2 = import_module("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=jinja2.pass_eval_context(_shown),
    )
    environment.filters |= {
        "changed": changed,
        "compared": compared,
        "figure": figure,
        "thousandths": thousandths,
        "within": within,
        "table": markdown_table,
        "html_table": html_table,
        "first_line": lambda text: text.splitlines()[0],
        "listed": _listed,
        "mean": lambda numbers: sum(numbers) / len(numbers) if numbers else None,
        "json": functools.partial(json.dumps, ensure_ascii=False, default=str),
    }
    return environment


def _shown(context: Any, value: Any) -> Any:
    """Return a value as a template shows it: in HTML with every character of a text visible."""
    return visible(value) if context.autoescape and type(value) is str else value


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "TBD"
