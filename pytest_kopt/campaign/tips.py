"""Tips: what campaigns learned about an op on a GPU in a language, appended, never rewritten."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput

_FIELDS = ("Context", "Signal", "Takeaway", "Applicability")
_FIELD = re.compile(rf"^(?:- )?({'|'.join(_FIELDS)}):\s*", re.MULTILINE)
_ENTRY = re.compile(r"^### (?P<title>.+)$", re.MULTILINE)
_MARK = re.compile(r"\banti-pattern\b", re.IGNORECASE)
#: Wordings of W2 and W3 tricks: work that is skipped because the benchmark shows a tensor twice,
#: and shapes of the benchmark made constants.
_TRICKS = re.compile(
    r"""(?ix)
    \b(cach(e|es|ed|ing)|memoi\w+|remember\w*)\s+ (\w+\s+){0,3}
    (activations?|grad_?outs?|grad_?outputs?|scales?|outputs?|results?)\b
    | \b(activation|grad_?out|grad_?output|scale|output|result)s?[ _-](cach|memo)\w*
    | \bid\( | \bdata_ptr\b | \blru_cache\b | \bweakref\b
    | \b(fixed|constant|constexpr|hard-?coded)\b .{0,30} \bm_per_group\b
    | \bm_per_group\b .{0,30} \b(fixed|constant|constexpr|hard-?coded)\b
    | \bW[23]\b
    """
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One section of a tips file: its title line and its text."""

    number: int
    title: str
    text: str


def path_of(root: Path, manifest: Manifest) -> Path:
    """Return where the tips for a campaign's GPU, op and backend lie."""
    folder = Path(manifest.target_gpu, manifest.target_op, manifest.target_backend.lower())
    return root / "agent" / "historical_experience" / folder / "tips.md"


def entries(path: Path) -> list[Entry]:
    """Return the entries of a tips file, oldest first; none when it does not exist."""
    if not path.is_file():
        return []
    text = path.read_text()
    starts = list(_ENTRY.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return [
        Entry(number, start["title"], re.sub(r"<!--.*?-->", "", text[start.end() : end]).strip())
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), start=1)
    ]


def check(tip: str | None, bucket: str | None = None, where: str = "tip") -> None:
    """Raise BadInput for a tip that praises a W2 or W3 trick and is not marked as anti-pattern."""
    if not tip or _MARK.search(tip):
        return
    found = _TRICKS.search(tip)
    why = f"bucket {bucket}" if bucket in ("W2", "W3") else ""
    if not why and found:
        why = repr(_one(found[0]))
    if why:
        raise BadInput(
            f"praises what no real step gains from ({why})",
            where=where,
            legal="a lesson for real steps, or one that says 'anti-pattern'",
        )


def missing_text(text: str, name: str, manifest: Manifest, state: CampaignState) -> str:
    """Return what has to be appended so that every tip of a campaign's decided rounds stands there.

    A tip that was noted anew is a new entry. A rejected round's tip has to be marked.
    """
    parts = []
    for item in state.decided_rounds():
        tip, decided = item.notes.tip, item.verdict
        if not tip or decided is None:
            continue
        if decided.decision is Decision.REJECTED_OVERFIT and not _MARK.search(tip):
            continue
        digest = hashlib.sha256(tip.encode()).hexdigest()[:12]
        anchor = f"<!-- {name} round-{item.number} {digest} -->"
        if anchor not in text:
            parts.append(f"\n{anchor}\n{_entry(name, manifest, item, tip)}")
    title = f"# Tips: {manifest.target_op} ({manifest.target_backend}) on {manifest.target_gpu}\n"
    return (title if parts and not text else "") + "".join(parts)


def correction(number: int, takeaway: str, time: str, known: list[Entry]) -> str:
    """Return the text to append that corrects an entry; BadInput when there is none of its number.

    Entries are never changed: a bad one stays and is marked by this.
    """
    check(takeaway)
    found = [entry for entry in known if entry.number == number]
    if not found:
        raise BadInput(
            f"there is no tip {number}",
            where="kopt tips",
            legal=[str(entry.number) for entry in known] or "none yet",
        )
    return (
        f"\n### {time} correction of tip {number} ({found[0].title})\n\n"
        f"- Takeaway: {_one(takeaway)}\n"
    )


def _entry(name: str, manifest: Manifest, item: Round, tip: str) -> str:
    decided, notes = item.verdict, item.notes
    assert decided is not None
    said = fields(tip)
    told = {
        "Context": f"{notes.change or notes.hypothesis or notes.summary or 'not stated'} ({name})",
        "Signal": decided.reason,
        "Takeaway": "",
        "Applicability": f"{manifest.target_op} on {manifest.target_gpu} in "
        f"{manifest.target_lang}; measured again before it is believed elsewhere",
        **said,
    }
    word = "ACCEPTED" if decided.decision.keeps else "ROLLED BACK"
    lines = [f"- {field}: {_one(told[field])}" for field in _FIELDS]
    return f"### {decided.time} round-{item.number} — {word}\n\n" + "\n".join(lines) + "\n"


def fields(tip: str) -> dict[str, str]:
    """Return the fields that a tip's lines name; a tip that names none is the Takeaway."""
    parts = _FIELD.split(tip)
    found = {
        name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True) if text
    }
    if parts[0].strip():
        found["Takeaway"] = f"{parts[0].strip()} {found.get('Takeaway', '')}".strip()
    return found


def check_notes(notes: Notes, where: str) -> None:
    """Raise BadInput when the notes' tip praises a W2 or W3 trick."""
    check(notes.tip, notes.bucket, where)


def _one(text: str) -> str:
    return " ".join(text.split())
