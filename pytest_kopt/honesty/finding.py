"""The finding of a check, and its consequence: one value for all of them.

`docs/findings.md` has a section, or a word in its list of the audit's notes, for every name here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

_TEXT = re.compile(r"[a-z]+(-[a-z]+)*: ")


class Consequence(Enum):
    """The consequence of a finding."""

    REJECTS = "the round ends as REJECTED_OVERFIT"
    REPAIRS = "the check of a case fails, and the round ends as REPAIR"
    NOTES = "the verdict has one more flag"


_NAMES = {
    Consequence.REJECTS: (
        "harness-edit harness-written process-state "
        "late-result background-work hidden-time faster-than-physics "
        "stale-result output-shared "
        "vendor-operator precision-downgrade uneven-groups "
        "held-out-speed incumbent-slowed"
    ),
    Consequence.REPAIRS: (
        # A kernel without any state may be wrong for some inputs only.
        "timed-result "
        "output-type output-dtype output-layout constant-result not-deterministic batch-variant "
        "empty-capture "
        "unwritten-output input-mutated input-moved generator-left switch-left "
        "held-out-shape held-out-range held-out-layout held-out-dtype held-out-gradients "
        "held-out-death"
    ),
    Consequence.NOTES: (
        "global-generator narrow-reference other-bits output-order "
        "not-captured held-out-untried never-called "
        # The audit's.
        "identity-keyed-cache memoised-tensors "
        "stack-inspection heap-inspection harness-import harness-environment"
    ),
}
#: What follows from a finding of a name, at most: one that says that it does not reject is a note,
#: or a check that fails.
CONSEQUENCES = {
    name: consequence for consequence, names in _NAMES.items() for name in names.split()
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One named finding about a candidate.

    `check` is the short name of the check that made it (`stale-result`), `where` a
    file and line or a case. `advice` is what an honest author should do. `rejects` says of this
    finding whether its name's consequence follows where that may be a note; a name that means
    REPAIR fails a check either way. `details` is a list that the text leaves out: verdict.json has
    it, and the terminal with `-v`.
    """

    check: str
    message: str
    where: str = ""
    advice: str = ""
    rejects: bool = True
    details: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.check in CONSEQUENCES, f"nothing is said to follow from {self.check}"
        if CONSEQUENCES[self.check] is Consequence.NOTES:
            object.__setattr__(self, "rejects", False)

    @property
    def repairs(self) -> bool:
        """Whether its name is that of a mistake, which accuses nobody."""
        return CONSEQUENCES[self.check] is Consequence.REPAIRS

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        advice = f". Fix: {self.advice}" if self.advice else ""
        return f"{self.check}: {self.message}{place}{advice}"


def names_of(findings: Iterable[Finding]) -> str:
    """Return the findings' names, for a reason: the flags say the rest."""
    return ", ".join(dict.fromkeys(finding.check for finding in findings))


def is_finding(flag: str, labels: Iterable[str]) -> bool:
    """Say whether a verdict's flag is a finding's text; those about a case begin with its label."""
    return bool(_TEXT.match(flag)) and not any(flag.startswith(f"{label}: ") for label in labels)
