"""What a session shows of a trial when it is over."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.profiling.table import CaseProfile


@dataclass(frozen=True, slots=True)
class Closing:
    """What a finished trial hands to the terminal.

    `detail` is the output of a failed command, `outlook` what the verdict means for the campaign.
    """

    verdict: Verdict
    detail: str = ""
    profiles: tuple[CaseProfile, ...] = ()
    outlook: tuple[str, ...] = ()
