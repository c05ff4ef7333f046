"""How verdicts and texts are written for people, in the terminal, Markdown and commits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from pytest_kopt.figures import changed_within

if TYPE_CHECKING:
    from pytest_kopt.decide.verdict import (
        Aggregate,
        ConfigClass,
        KernelChange,
        RaceCandidate,
        Shape,
        Verdict,
    )


def within(found: Aggregate | Shape | ConfigClass | RaceCandidate) -> str:
    """Return a change with its interval."""
    return changed_within(found.change_pct, found.low_pct, found.high_pct)


def outcome(verdict: Verdict) -> str:
    """Return the decision for people."""
    return verdict.outcome or str(verdict.decision)


def gate_outcome(verdict: Verdict) -> str:
    """Return what a gate says, which keeps nothing and rolls nothing back."""
    decision = str(verdict.decision)
    if verdict.removed:
        return "refused"
    total = verdict.aggregate
    is_faster = total is not None and total.low_pct is not None and total.low_pct > 0
    kept = "faster" if is_faster else "not slower"
    return {
        "ACCEPTED": kept,
        "ACCEPTED_WITH_NOTE": f"{kept}, with a note",
        "ROLLED_BACK": "slower",
        "SPLIT": "slower",
        "INCONCLUSIVE": "may be slower" if verdict.compare == "paired" else "not faster",
        "REPAIR": "wrong",
        "REJECTED_OVERFIT": "refused",
        "INCOMPLETE": "not judged",
    }.get(decision, decision)


def same_code(verdict: Verdict) -> str:
    """Return how many of the cases needed no clock, "" where every one did."""
    same = sum(shape.same is not None for shape in verdict.shapes)
    text = f"{same} of {len(verdict.shapes)} cases run the same code in both versions: not timed"
    return text if same else ""


def kernel_lines(verdict: Verdict) -> list[str]:
    """Return what changed in the machine code, a line for each kernel."""
    found = []
    for kernel in verdict.kernels:
        names = [n for n in {**kernel.before, **kernel.after} if _differs(kernel, n)]
        figures = (
            f"{name} {kernel.before.get(name, 0):g} -> {kernel.after.get(name, 0):g}"
            for name in names
        )
        what = "" if kernel.before else "added, "
        what = what if kernel.after else "gone, "
        text = ", ".join(figures) or "other instructions or arguments"
        found.append(f"{kernel.kernel}: {what}{text} (first in {kernel.case})")
    return found


def _differs(kernel: KernelChange, name: str) -> bool:
    return kernel.before.get(name, 0.0) != kernel.after.get(name, 0.0)


def clipped(label: str, room: int) -> str:
    """Return a label that fits, its middle left out: dims at both ends tell cases apart."""
    if len(label) <= room:
        return label
    head = (room - 1) // 2
    return f"{label[:head]}…{label[len(label) - (room - 1 - head) :]}"


#: What moves a cursor, colours, rings, ends a line elsewhere or turns the direction of writing.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


def visible(text: str) -> str:
    r"""Return text with control and direction characters as `\u001b`: it shows what it holds.

    Tab and newline stay.
    """
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def all_visible(data: Any) -> Any:
    """Return a document (mappings, sequences, texts) with every text in it visible."""
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, dict):
        return {visible(key): all_visible(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [all_visible(item) for item in data]
    return data


def printed(text: str) -> list[str]:
    """Return the lines in which text is printed: visible, and no command to a CI runner."""
    lines = [visible(line) for line in text.splitlines()] or [""]
    # A runner looks for `::command::` at the start of a line; a word joiner is not seen.
    return [f"\u2060{line}" if line.lstrip().startswith("::") else line for line in lines]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    safe = [[one_line(cell) for cell in row] for row in rows]
    return tabulate(safe, headers=list(header), tablefmt="github", disable_numparse=True)


def one_line(text: str) -> str:
    """Return text that fits a Markdown table cell."""
    return " ".join(text.split()).replace("|", "\\|")
