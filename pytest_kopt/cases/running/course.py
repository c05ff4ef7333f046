"""A checked case on its way to a row, and what is known of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import Check
from pytest_kopt.cases.running.bench import Bench
from pytest_kopt.cases.running.check import CheckReport
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.measure.engine import Timing


@dataclass(slots=True)
class Course:
    """A case with its check's report; `timings` are those of a forward, and of a backward."""

    case: Case
    bench: Bench
    report: CheckReport
    findings: list[Finding] = field(default_factory=list)
    timings: Sequence[Timing] = ()
    check: Check = field(init=False)
    diagnosis: str = field(init=False)
    evidence: CaseEvidence = field(init=False)

    def __post_init__(self) -> None:
        self.check, self.diagnosis = self.report.check, self.report.diagnosis
        self.evidence = self.report.evidence
        self.findings += self.report.findings

    @property
    def goes_on(self) -> bool:
        return self.check == "PASS" and not any(found.rejects for found in self.findings)
