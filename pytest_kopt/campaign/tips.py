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

_TAKEAWAY = re.compile(r"^- Takeaway: *(.*)$", re.MULTILINE)
_ENTRY = re.compile(r"^### (?P<title>.+)$", re.MULTILINE)
_ANTI = "anti-pattern: "


@dataclass(frozen=True, slots=True)
class Tip:
    """One section of a tips file: its title line and its text."""

    number: int
    title: str
    text: str

    @property
    def takeaway(self) -> str:
        line = _TAKEAWAY.search(self.text)
        return line[1] if line else ""


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
        tip = round.notes.tip
        is_marked = tip.lower().startswith(_ANTI.strip(": "))
        if _is_anti_pattern(round.notes, round.verdict) and not is_marked:
            tip = _ANTI + tip
        digest = hashlib.sha256(tip.encode()).hexdigest()[:12]
        anchor = f"<!-- {name} round-{round.number} {digest} -->"
        if anchor not in text:
            parts.append(f"\n{anchor}\n{_entry(name, manifest, round, tip)}")
    title = f"# Tips: {manifest.target_op} ({manifest.target_backend}) on {manifest.target_gpu}\n"
    return (title if parts and not text else "") + "".join(parts)


def _is_anti_pattern(notes: Notes, decided: Decided | None) -> bool:
    """Say whether a round's tip tells what not to do: by its bucket, its outcome or its author."""
    rejected = decided is not None and decided.decision is Decision.REJECTED_OVERFIT
    return rejected or notes.bucket in OVERFIT or bool(notes.anti_pattern)


def _entry(name: str, manifest: Manifest, round: Round, tip: str) -> str:
    decided, notes = round.verdict, round.notes
    assert decided is not None
    texts = {
        "Context": f"{notes.change or notes.hypothesis or notes.summary or 'not stated'} ({name})",
        "Signal": decided.reason,
        "Takeaway": tip,
        "Applicability": f"{manifest.target_op} on {manifest.target_gpu} in "
        f"{manifest.target_lang}; measure it again before relying on it elsewhere",
        "Bucket": notes.bucket or "not stated",
    }
    word = "ACCEPTED" if decided.decision.keeps else "ROLLED BACK"
    lines = [f"- {field}: {' '.join(text.split())}" for field, text in texts.items()]
    return f"### {decided.time} round-{round.number} — {word}\n\n" + "\n".join(lines) + "\n"
