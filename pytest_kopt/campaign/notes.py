"""The notes of a round's author, as a YAML mapping or as Markdown sections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pytest_kopt.documents import NUL, load_text, parse_yaml, sections, validate
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.transfer import NO_CACHE_KEY, UNSTATED, Claim
from pytest_kopt.models import Document

Text = Annotated[str, Field(max_length=20_000)]
Milliseconds = Annotated[float, Field(gt=0)]
Bucket = Literal["K1", "K2", "K3", "K4", "W1", "W2", "W3"]

#: Names in summary.md that are not their key's own words.
_KEYS = {"single_change": "change", "next_direction": "next"}
#: Sections of summary.md whose lines are `- Name: text`.
_LISTS = ("rollback_analysis", "real_training_transfer_check")
#: What the plugin writes into summary.md itself.
_OURS = {
    *("results", "decision", "actual", "id_audit", "4_step_trace_hit_rate", "benchmark_gain"),
    *("workload_distribution_robustness", "estimated_real_training_gain"),
}
_SECTION = re.compile(r"^## +(.+?)[ \t#]*$", re.MULTILINE)
_LINE = re.compile(r"^- (.+?): ?", re.MULTILINE)
_FENCED = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)


class Notes(Document):
    """The keys of a notes file, all optional; with `anti_pattern` the tip says what not to do."""

    summary: Text | None = None
    hypothesis: Text | None = None
    change: Text | None = None
    details: Text | None = None
    expected: Text | None = None
    evidence: Text | None = None
    bucket: Bucket | None = None
    cache_key: Text | None = None
    target_class: Text | None = None
    attribution: Text | None = None
    key_finding: Text | None = None
    root_cause: Text | None = None
    lesson: Text | None = None
    next: Text | None = None
    tip: Text | None = None
    anti_pattern: bool | None = None
    extra_benefit: Text | None = None
    w1_quant_ms: Milliseconds | None = None
    step_ms: Milliseconds | None = None

    def given(self) -> dict[str, str | float]:
        return {key: value for key, value in self.model_dump().items() if value is not None}

    @property
    def title(self) -> str | None:
        """The line that names the round, None where its author wrote none."""
        return self.summary or self.change or self.hypothesis

    @property
    def tried(self) -> str | None:
        """The change that was tried in the round, None likewise."""
        return self.change or self.summary or self.hypothesis

    @property
    def claim(self) -> Claim:
        return Claim(self.bucket, self.cache_key, self.w1_quant_ms, self.step_ms)

    def plus(self, later: Notes) -> Notes:
        """Return these notes with the later ones' keys on top; a mark belongs to its tip."""
        unmarked = {} if later.tip is None else {"anti_pattern": None}
        return self.model_copy(update=unmarked | later.given())


NO_NOTES = Notes()


def load(path: Path) -> Notes:
    """Read a notes file, Markdown where its name ends in .md, else YAML; or BadInput."""
    text, where = load_text(path), str(path)
    read = _sections if path.suffix.lower() in (".md", ".markdown") else parse_yaml
    return validate(Notes, read(text, where), where=where)


def _sections(text: str, where: str) -> dict[str, str]:
    """Return the keys in sections of summary.md, but for what is ours or was never stated."""
    if "\0" in text:
        raise BadInput(NUL, where=where)
    keys: dict[str, str] = {}
    pairs = []
    for title, body in _split(_SECTION, text.replace("\r\n", "\n")):
        lines = _split(_LINE, body) if _key(title) in _LISTS else [(title, body)]
        if body and not lines:
            raise BadInput(f"section {title!r} holds no line '- Name: text'", where=where)
        pairs += lines
    for title, body in pairs:
        key = _KEYS.get(_key(title), _key(title))
        if key in _OURS or body in ("", UNSTATED, NO_CACHE_KEY):
            continue
        if key not in Notes.model_fields:
            legal = ["Single change", "Next direction", *Notes.model_fields]
            raise BadInput(f"section {title!r} is unknown", where=where, legal=legal)
        if keys.setdefault(key, body) != body:
            raise BadInput(f"{key} is given twice", where=where)
    if not keys:
        fix = "write sections such as '## Hypothesis' and '## Single change'"
        raise BadInput("contains no section", where=where, fix=fix)
    return keys


def _split(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """Return what follows each match outside of fenced code, with the match's name."""
    fenced = [block.span() for block in _FENCED.finditer(text)]
    parts: list[tuple[str, str]] = []
    for heading, body in sections(pattern, text):
        if not any(low < heading.start() < high for low, high in fenced):
            parts.append((heading[1], body))
        elif parts:
            parts[-1] = (parts[-1][0], f"{parts[-1][1]}{heading[0]}{body}")
    return [(name, body.strip()) for name, body in parts]


def _key(title: str) -> str:
    words = re.sub(r"\(.*?\)|[^\w]+", " ", title.lower()).split()
    return "_".join(words)
