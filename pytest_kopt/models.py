"""Documents as pydantic models, and dataclasses as JSON-able data, read back by their types."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

_T = TypeVar("_T")


class Document(BaseModel):
    """A document, or a part of one: never changed once it is read, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def optional(description: str) -> Any:
    """Return the field of a key that may be null, and is unless it is given."""
    return Field(default=None, description=description)


def known(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields but for those that are None, at any depth."""
    adapter = _adapter(type(value))  # type: ignore[arg-type]
    document: dict[str, Any] = adapter.dump_python(value, exclude_none=True, warnings=False)
    return document


def read(kind: type[_T], document: object) -> _T:
    """Return the dataclass that a document holds, unknown keys aside; ValueError for none."""
    try:
        value: _T = _adapter(kind).validate_python(document)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from None
    return value


def prepare(*kinds: Any) -> None:
    """Make what reads and writes dataclasses of these kinds, for forks of this process."""
    for kind in kinds:
        _adapter(kind)


# Made once where they are asked for: that takes a millisecond each, of a large one twenty.
@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
