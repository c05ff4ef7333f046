"""Write the generated pages of the reference: options, commands, keys, columns, functions, schemas.

`docs/conf.py` calls `write` before Sphinx reads the pages.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest_kopt
from pytest_kopt import policies
from pytest_kopt.bundled import bundled
from pytest_kopt.cli import manifest_options
from pytest_kopt.cli.command_line import CommandParser
from pytest_kopt.cli.main import _COMMANDS
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options import declare
from pytest_kopt.schema.columns import BUILT_IN

SCHEMAS = Path(pytest_kopt.__file__).parent / "schemas"
#: Ends the first sentence of a page.
MADE = "(generated from the package).\n"


def write(folder: Path) -> None:
    """Write every page into a folder, which then holds nothing else.

    A page that is as it was keeps its time, so that Sphinx does not read it again.
    """
    folder.mkdir(exist_ok=True)
    pages = {
        "options": options(),
        "commands": commands(),
        "manifest": manifest(),
        "policy": policy(),
        "exit-codes": exit_codes(),
        "columns": columns(),
        "python": functions(),
        "verdict-json": schema("verdict", "verdict.json"),
        "status-json": schema("status", "kopt status --json"),
    }
    for name, parts in pages.items():
        text = "\n".join(parts).rstrip() + "\n"
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in folder.iterdir():
        if path.stem not in pages:
            path.unlink()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", r"\|") for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def prose(text: str) -> str:
    """Return help as Markdown: argparse's percent signs single, options and angles as code."""
    text = text.replace("%%", "%").replace("*", r"\*")
    return re.sub(r"(?<![`\w])(--[\w-]+(=\w+)?|<[^<>`]+>)", r"`\1`", text)


def options() -> Iterator[str]:
    yield from (
        "# Options of pytest and ini keys",
        "",
        f"The options that kopt adds to pytest, and the keys of its settings {MADE}",
    )
    yield from ("## Options", "", "`pytest --help` lists them in the group `kopt`.", "")
    yield from table(
        ("option", "value", "meaning"),
        (
            (
                " ".join(map(code, names)),
                code("|".join(known.get("choices", ())) or known.get("metavar", "")),
                prose(known["help"]),
            )
            for names, known in declare.options()
        ),
    )
    yield from (
        "## Ini keys",
        "",
        "Keys of pytest's settings, for example in `pyproject.toml`.",
        "",
    )
    own = ((code(name), prose(text)) for name, text in declare._INI.items())
    twins = (
        (code(f"kopt_{name}"), f"as `--kopt-{name.replace('_', '-')}`") for name in declare._TWINS
    )
    yield from table(("key", "meaning"), (*own, *twins))


def commands() -> Iterator[str]:
    yield from ("# Commands", "", f"Every command of `kopt` with its arguments {MADE}")
    parser = CommandParser(prog="kopt")
    below = parser.add_subparsers()
    for command in _COMMANDS:
        command.add_to(below)
        yield from described(f"kopt {command.name}", below.choices[command.name], "##")


def described(name: str, parser: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    yield from (f"{heading} {name}", "", prose(parser.description or ""), "")
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    lines = textwrap.wrap(usage, 84, subsequent_indent="    ", break_on_hyphens=False)
    yield from ("```text", *lines, "```", "")
    rows, actions = [], {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            actions = action.choices
        elif action.help != argparse.SUPPRESS and action.dest != "help":
            names = ", ".join(map(code, action.option_strings)) or code(
                action.metavar or action.dest
            )
            rows.append((names, prose(action.help or "")))
    if rows:
        yield from table(("argument", "meaning"), rows)
    example = (parser.epilog or "").removeprefix("example:").strip()
    if example:
        yield from ("Example:", "", "```text", *textwrap.wrap(example, 84), "```", "")
    for action_name, action_parser in actions.items():
        yield from described(f"{name} {action_name}", action_parser, heading + "#")


def manifest() -> Iterator[str]:
    yield from ("# Keys of manifest.yaml", "", f"The keys of a campaign's manifest {MADE}")
    yield "`kopt init` writes `agent/workspace/NAME/manifest.yaml`; options have the keys' names."
    yield ""
    text = (bundled("conftest_templates") / "manifest.yaml").read_text()
    rows = []
    for key, value, comment in re.findall(
        r"^(\w+): *(.*?) *(?:#\s*(.*))?$", text, flags=re.MULTILINE
    ):
        meaning = comment or manifest_options._HELP.get(key, "")
        rows.append((code(key), code(value), prose(meaning)))
    yield from table(("key", "in the template", "meaning"), rows)


def policy() -> Iterator[str]:
    yield from (
        "# Keys of a policy",
        "",
        f"The thresholds of a decision, and the values of the presets {MADE}",
        prose(inspect.getdoc(Policy) or ""),
        "",
    )
    known = [policies.load(name).model_dump(mode="json") for name in policies.names()]
    yield from table(
        ("key", *map(code, policies.names())),
        (
            (code(key), *(code(json.dumps(values[key])) for values in known))
            for key in Policy.model_fields
        ),
    )


def exit_codes() -> Iterator[str]:
    yield from (
        "# Exit codes",
        "",
        f"The exit codes of a session, and the decisions that lead to them {MADE}",
        inspect.getdoc(ExitCode) or "",
        "",
    )
    rows = []
    for member in ExitCode:
        decisions = [code(d.value) for d in Decision if d.exit_code == member]
        rows.append((code(int(member)), member.name, ", ".join(decisions)))
    yield from table(("code", "name", "decisions that end with it"), rows)
    yield "[Troubleshooting](../troubleshooting.md#by-exit-code) says what to do for each code."


def columns() -> Iterator[str]:
    yield from ("# Columns of the CSV", "", f"The columns of each built-in schema {MADE}")
    yield "Every row has `label` and `Check` too. A schema without dims takes those of the case."
    yield "The figures of a row are the candidate's alone, in one measurement: "
    yield "[another figure decides](../verdicts.md#which-figure-decides)."
    for built_in in BUILT_IN.values():
        yield from ("", f"## {built_in.name}", "")
        dims = ", ".join(map(code, built_in.dims)) if built_in.dims else "those of the case"
        yield f"Dims: {dims}. A case declares its work as `{built_in.work or 'nothing'}`."
        yield ""
        yield from table(
            ("column", "quantity", "better"),
            ((code(c.name), code(c.quantity), c.better or "") for c in built_in.columns),
        )


def functions() -> Iterator[str]:
    yield from (
        "# Python functions and classes",
        "",
        f"The public functions and classes of `pytest_kopt` {MADE}",
    )
    for name in pytest_kopt.__all__:
        value = getattr(pytest_kopt, name)
        yield from (f"## {name}", "", "```python", *signature(name, value), "```", "")
        yield docstring(value)
        yield ""
        members = vars(value).items() if inspect.isclass(value) else ()
        for member, function in members:
            if (member == "__call__" or not member.startswith("_")) and inspect.isfunction(
                function
            ):
                title = name.lower() if member == "__call__" else f"{name}.{member}"
                yield from (f"### {title}()", "", "```python", *signature(title, function))
                yield from ("```", "", docstring(function), "")


def signature(name: str, value: Any) -> list[str]:
    if inspect.isclass(value) and issubclass(value, Exception):
        # Programs catch it. Python names no arguments of some exceptions.
        return [f"class {name}(Exception)"]
    text = re.sub(r"pytest_kopt(\.\w+)*\.", "", str(inspect.signature(value)))
    # Annotations are strings in files that import them from the future.
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    one = f"{name}{text}"
    if len(one) <= 92:
        return [one]
    inner, result = one[len(name) + 1 :].rsplit(")", 1)
    parts = re.split(r", (?=\*|[a-z_]+(?::|=|$|,))", inner)
    return [f"{name}(", *(f"    {part}," for part in parts), f"){result}"]


def docstring(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    return re.sub(r"(?<!`)<(?=\w)", r"\\<", text)


def schema(name: str, title: str) -> Iterator[str]:
    document = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    yield from (f"# {title}", "", f"The keys of this JSON document {MADE}")
    yield f"Its JSON Schema is `pytest_kopt/schemas/{name}.schema.json`."
    yield from ("", *_object(document))
    for kind, definition in document["$defs"].items():
        if "properties" in definition:
            yield from (f"## {kind}", "", definition.get("description", ""), "")
            yield from _object(definition)


def _object(definition: dict[str, Any]) -> Iterator[str]:
    yield from table(
        ("key", "type", "meaning"),
        (
            (code(key), code(_type(known)), known.get("description", ""))
            for key, known in definition["properties"].items()
        ),
    )


def _type(known: dict[str, Any]) -> str:
    if "$ref" in known:
        return str(known["$ref"]).rpartition("/")[2]
    if "anyOf" in known:
        return " or ".join(_type(choice) for choice in known["anyOf"])
    if "enum" in known:
        return " or ".join(json.dumps(value) for value in known["enum"])
    if "const" in known:
        return json.dumps(known["const"])
    if known.get("type") == "array":
        return f"list of {_type(known['items'])}" if "items" in known else "list"
    return str(known.get("type", "any"))
