"""What only the author of a round knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_kopt.documents import load_yaml, validate
from pytest_kopt.honesty.transfer import Claim

Text = Annotated[str, Field(max_length=20_000)]
Milliseconds = Annotated[float, Field(gt=0)]


class Notes(BaseModel):
    """The keys of a notes file; all optional, later notes add to earlier ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    summary: Text | None = None
    hypothesis: Text | None = None
    change: Text | None = None
    details: Text | None = None
    expected: Text | None = None
    evidence: Text | None = None
    bucket: Literal["K1", "K2", "K3", "K4", "W1", "W2", "W3"] | None = None
    cache_key: Text | None = None
    target_class: Text | None = None
    attribution: Text | None = None
    key_finding: Text | None = None
    root_cause: Text | None = None
    lesson: Text | None = None
    next: Text | None = None
    tip: Text | None = None
    extra_benefit: Text | None = None
    w1_quant_ms: Milliseconds | None = None
    step_ms: Milliseconds | None = None

    def given(self) -> dict[str, str | float]:
        """Return the keys that hold something."""
        return {key: value for key, value in self.model_dump().items() if value is not None}

    @property
    def claim(self) -> Claim:
        """What these notes say of the gain."""
        return Claim(self.bucket, self.cache_key, self.w1_quant_ms, self.step_ms)

    def plus(self, later: Notes) -> Notes:
        """Return these notes with the later ones' keys on top."""
        return self.model_copy(update=later.given())


def load(path: Path) -> Notes:
    """Read a notes file; BadInput names the key, its value and what is legal."""
    return validate(Notes, load_yaml(path), where=str(path))
