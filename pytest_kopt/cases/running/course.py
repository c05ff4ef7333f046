"""A case on its way to a row, and what is known of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import Check
from pytest_kopt.cases.running.bench import Bench
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.measure.engine import Timing


@dataclass(slots=True)
class Course:
    """A case that was checked, and what its check and everything after it have shown.

    `case` has among its `writes` what the reference writes to, where that was seen. `figures` are
    by quantity, as a schema's columns name them; SNRs are in dB. `findings` are signs that the
    kernel serves the check instead of computing. `written` are the bytes of the outputs, `timings`
    those of a forward, and of a backward.
    """

    case: Case
    bench: Bench
    check: Check
    diagnosis: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    evidence: CaseEvidence = field(default_factory=CaseEvidence)
    written: int = 0
    timings: Sequence[Timing] = ()

    @property
    def goes_on(self) -> bool:
        return self.check == "PASS" and not any(finding.rejects for finding in self.findings)
