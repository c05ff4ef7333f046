"""Documents that users write: YAML read safely, validated key by key."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pytest_kopt.errors import BadInput, text_of

#: Larger files are refused before they are parsed: no document of ours comes near it.
MAX_BYTES = 200_000
#: Deeper nesting is refused where it begins: to read it would take long, and a deep stack.
MAX_DEPTH = 50
NUL = "holds NUL, which no file name, argument or commit can"

Model = TypeVar("Model", bound=BaseModel)
#: What would be legal, by pydantic's type of the error, or by the first word of that type.
_LEGAL = {
    "string_type": "text",
    "string_too_short": "text, at least {min_length} character(s)",
    "string_too_long": "text, at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "{expected}",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "list": "a list",
    "too_short": "at least {min_length} item(s)",
    "too_long": "at most {max_length} items",
    "dict": "a mapping",
    "model": "a mapping",
    "json_invalid": "JSON: {error}",
    "missing": "this key is required",
    "extra_forbidden": "this key is unknown",
    "union_tag_invalid": "{discriminator} is {tag!r}, allowed: {expected_tags}",
    "union_tag_not_found": "the key {discriminator} is required",
    "value_error": "{error}",
}


class _Loader(yaml.SafeLoader):
    """YAML without object tags, aliases (which can blow a file up), doubled keys or great depth."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("aliases are not allowed", event)
        if (tag := getattr(event, "tag", None)) is not None:
            raise _refusal(f"tags are not allowed: {tag}", event)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refusal(f"nested more than {MAX_DEPTH} deep", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        earlier: set[str] = set()
        for key in keys:
            if not isinstance(key, str):
                raise _refusal(f"key {key!r} is no text", node)
            if key in earlier:
                raise _refusal(f"key {key!r} is given twice", node)
            earlier.add(key)
        return super().construct_mapping(node, deep)


def _refusal(what: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=at.start_mark)


# Timestamps stay text: they are written as `YYYY-MM-DD HH:MM` and compared as such.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; BadInput, with file and line, for any that is broken, or not plain."""
    return parse_yaml(load_text(path), where=str(path))


def load_text(path: Path) -> str:
    """Read a document; BadInput for a file that is missing, too large or not UTF-8."""
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise BadInput("is too large", where=str(path), legal=f"at most {MAX_BYTES} bytes")
    return text_of(path)


def sections(heading: re.Pattern[str], text: str) -> list[tuple[re.Match[str], str]]:
    """Return each heading of a Markdown text with what follows it up to the next one."""
    headings = list(heading.finditer(text))
    ends = [match.start() for match in headings[1:]] + [len(text)]
    return [(match, text[match.end() : end]) for match, end in zip(headings, ends, strict=False)]


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Parse the text of a YAML mapping; see `load_yaml`."""
    try:
        document = yaml.load(text, _Loader)  # noqa: S506 - the loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise BadInput(f"is no usable YAML{line}: {error.problem}", where=where) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"is no usable YAML: {' '.join(str(error).split())}", where=where) from None
    if _has(document, "\ud800", "\udfff"):
        raise BadInput("holds half of a character (a lone surrogate)", where=where)
    if _has(document, "\0", "\0"):
        raise BadInput(NUL, where=where)
    if not isinstance(document, dict):
        raise BadInput(f"contains {type(document).__name__}", where=where, legal="a mapping")
    return document


def _has(value: Any, first: str, last: str) -> bool:
    if isinstance(value, str):
        return any(first <= character <= last for character in value)
    if isinstance(value, dict):
        return any(_has(part, first, last) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(_has(part, first, last) for part in value)


def dump_yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def validate(model: type[Model], document: dict[str, Any], where: str) -> Model:
    """Return the model of a document; BadInput names every key that is wrong, and what is legal."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise BadInput("; ".join(_sentences(model, error, document)), where=where) from None


def usable(
    model: type[Model], document: dict[str, Any], stand_ins: dict[str, Any]
) -> tuple[Model, list[str]]:
    """Return the model of a document's legal keys, `stand_ins` for others, and what is wrong."""
    try:
        return model.model_validate(document), []
    except ValidationError as error:
        wrong = {problem["loc"][0] for problem in error.errors() if problem["loc"]}
        legal = {key: value for key, value in document.items() if key not in wrong}
        return model.model_validate(stand_ins | legal), _sentences(model, error, document)


def legal(problem: ErrorDetails) -> str:
    """Return what would be legal in the place of a problem that pydantic found, in one line."""
    kind = problem["type"]
    # int_type, int_parsing and int_from_float all ask for a whole number.
    text = _LEGAL.get(kind) or _LEGAL.get(kind.partition("_")[0], "")
    message = text.format(**problem.get("ctx", {})) if text else problem["msg"]
    # It may quote anything: what cannot be printed is escaped like in a literal.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)


def key_of(problem: ErrorDetails, document: Any) -> str:
    """Return the dotted key of a problem; the alternatives of a union, which it names, are none."""
    path = []
    for part in problem["loc"]:
        inside = isinstance(document, dict) and part in document
        if inside or (isinstance(document, list) and isinstance(part, int)):
            document = document[part]
        elif problem["type"] != "missing" or part != problem["loc"][-1]:
            continue
        path.append(str(part))
    return ".".join(path) or "document"


def _sentences(
    model: type[BaseModel], error: ValidationError, document: dict[str, Any]
) -> list[str]:
    sentences = {}
    for problem in error.errors(include_url=False):
        key = key_of(problem, document)
        if problem["type"] == "extra_forbidden":
            fields = model.model_fields.items()
            names = ", ".join(field.alias or name for name, field in fields)
            sentences[key] = f"key {key!r} is unknown (allowed: {names})"
        elif problem["type"] == "missing":
            field = model.model_fields.get(key)
            description = f" ({field.description})" if field and field.description else ""
            sentences[key] = f"key {key!r} is missing{description}"
        elif key in sentences:  # another alternative of a union
            sentences[key] = f"{sentences[key].removesuffix(')')} or {legal(problem)})"
        else:
            sentences[key] = f"key {key!r} is {problem['input']!r} (allowed: {legal(problem)})"
    # What is wrong inside of a value says more than that the value is not as a whole.
    inner = tuple(sentences)
    return [
        text
        for key, text in sentences.items()
        if not any(key_inside.startswith(f"{key}.") for key_inside in inner)
    ]
