"""Tips: what campaigns learned about an op on a GPU in a language, appended, never rewritten."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pytest_kopt.campaign.ledger import Decided
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.notes import Bucket, Notes
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.documents import sections
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.transfer import OVERFIT

_FIELDS = ("Context", "Signal", "Takeaway", "Applicability", "Bucket")
#: The bucket of a marked tip whose round has none.
_UNNAMED = "not stated"
_FIELD = re.compile(rf"^(?:- )?({'|'.join(_FIELDS)}):\s*", re.MULTILINE)
_ENTRY = re.compile(r"^### (?P<title>.+)$", re.MULTILINE)
_ANTI = "anti-pattern: "


@dataclass(frozen=True, slots=True)
class Tip:
    """One section of a tips file: its title line and its text."""

    number: int
    title: str
    text: str


def path_of(root: Path, manifest: Manifest) -> Path:
    folder = Path(manifest.target_gpu, manifest.target_op, manifest.target_backend.lower())
    return root / "agent" / "historical_experience" / folder / "tips.md"


def entries(path: Path) -> list[Tip]:
    if not path.is_file():
        return []
    return [
        Tip(number, heading["title"], re.sub(r"<!--.*?-->", "", text).strip())
        for number, (heading, text) in enumerate(
            sections(_ENTRY, path.read_text(encoding="utf-8")), start=1
        )
    ]


def check(notes: Notes, round: Round, where: str) -> None:
    """Raise BadInput for notes with a tip that nobody can judge.

    A tip needs its round's bucket, unless the outcome or its author makes it an anti-pattern.
    """
    together = round.notes.plus(notes)
    if notes.tip and together.bucket is None and not _is_anti_pattern(together, round.verdict):
        fix = f"add bucket: {', '.join(get_args(Bucket))}; or anti_pattern: true"
        raise BadInput("the key tip needs the key bucket", where=where, fix=fix)


def missing_text(text: str, name: str, manifest: Manifest, state: CampaignState) -> str:
    """Return what has to be appended so that every tip of a campaign's decided rounds stands there.

    A tip that was noted again is a new entry, and so is one whose round turned out to be an
    anti-pattern.
    """
    parts = []
    for round in state.decided_rounds():
        if not round.notes.tip:
            continue
        lines = {"Takeaway": "", **fields(round.notes.tip)}
        takeaway = _marked(lines["Takeaway"], _is_anti_pattern(round.notes, round.verdict))
        tip = round.notes.tip if takeaway == lines["Takeaway"] else _ANTI + round.notes.tip
        digest = hashlib.sha256(tip.encode()).hexdigest()[:12]
        anchor = f"<!-- {name} round-{round.number} {digest} -->"
        lines["Takeaway"] = takeaway
        if anchor not in text:
            parts.append(f"\n{anchor}\n{_entry(name, manifest, round, lines)}")
    title = f"# Tips: {manifest.target_op} ({manifest.target_backend}) on {manifest.target_gpu}\n"
    return (title if parts and not text else "") + "".join(parts)


def correction(number: int, text: str, time: str, existing: list[Tip]) -> str:
    """Return an entry that corrects another one, which stays; BadInput where there is none."""
    titles = {entry.number: entry.title for entry in existing}
    if number not in titles:
        legal = [*map(str, titles)] or "none yet"
        raise BadInput(f"lesson {number} does not exist", where="kopt tips", legal=legal)
    return (
        f"\n### {time} correction of tip {number} ({titles[number]})\n\n- Takeaway: {_one(text)}\n"
    )


def _is_anti_pattern(notes: Notes, decided: Decided | None) -> bool:
    """Say whether a round's tip tells what not to do: by its bucket, its outcome or its author."""
    rejected = decided is not None and decided.decision is Decision.REJECTED_OVERFIT
    return rejected or notes.bucket in OVERFIT or bool(notes.anti_pattern)


def _is_marked(takeaway: str) -> bool:
    return takeaway.lower().startswith(_ANTI.strip(": "))


def _marked(takeaway: str, anti_pattern: bool) -> str:
    return _ANTI + takeaway if anti_pattern and not _is_marked(takeaway) else takeaway


def _entry(name: str, manifest: Manifest, round: Round, named: dict[str, str]) -> str:
    decided, notes = round.verdict, round.notes
    assert decided is not None
    texts = {
        "Context": f"{notes.change or notes.hypothesis or notes.summary or 'not stated'} ({name})",
        "Signal": decided.reason,
        "Applicability": f"{manifest.target_op} on {manifest.target_gpu} in "
        f"{manifest.target_lang}; measure it again before relying on it elsewhere",
        **named,
        "Bucket": notes.bucket or _UNNAMED,
    }
    word = "ACCEPTED" if decided.decision.keeps else "ROLLED BACK"
    lines = [f"- {field}: {_one(texts[field])}" for field in _FIELDS]
    return f"### {decided.time} round-{round.number} — {word}\n\n" + "\n".join(lines) + "\n"


def fields(tip: str) -> dict[str, str]:
    """Return the fields that a tip's lines name; a tip that names none is the Takeaway."""
    first, *parts = (part.strip() for part in _FIELD.split(tip))
    texts = {name: text for name, text in zip(parts[::2], parts[1::2], strict=True) if text}
    if first:
        texts["Takeaway"] = f"{first} {texts.get('Takeaway', '')}".strip()
    return texts


def _one(text: str) -> str:
    return " ".join(text.split())
