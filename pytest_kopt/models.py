"""What all our documents have in common as pydantic models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A document, or a part of one: never changed once it is read, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
