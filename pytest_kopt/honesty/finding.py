"""What a check of honesty found: one value for audit, dynamic checks and fingerprint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_TEXT = re.compile(r"[a-z]+(-[a-z]+)*: ")


@dataclass(frozen=True, slots=True)
class Finding:
    """One named finding about a candidate.

    `check` is the short name of the check that made it (`stale-result`, `weight-cache`), `where`
    a file and line or a case, `advice` what an honest author should do, `bucket` the class of the
    gain it means (W1, W2, W3; "" where none applies). A finding that does not reject is a note.
    """

    check: str
    message: str
    where: str = ""
    advice: str = ""
    bucket: str = ""
    rejects: bool = True

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.check}: {self.message}{place}{advice}"


def is_finding(flag: str, labels: Iterable[str]) -> bool:
    """Say whether a verdict's flag is a finding's text; those about a case begin with its label."""
    return bool(_TEXT.match(flag)) and not any(flag.startswith(f"{label}: ") for label in labels)
