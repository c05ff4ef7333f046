"""A case in a training loop: from what the test declared to findings and evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.evidence import Training
from pytest_kopt.cases.running.execution import Pass, grad_out, judge, make_inputs, results_of
from pytest_kopt.cases.running.reference import Reference, code_of
from pytest_kopt.cases.seeds import derive
from pytest_kopt.honesty.audit import suspects_a_cache
from pytest_kopt.honesty.checks import Phase, of_phase
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.reuse import Pair, cached, reuse_finding, reuse_pairs
from pytest_kopt.honesty.training import Subject, simulate
from pytest_kopt.numerics.nested import fresh_copies


@dataclass(slots=True)
class Rehearsal:
    """A case that passed its check in a training loop, and what that has shown.

    `usual_db` is the smallest SNR of its check. Where it is `timed`, the call is also timed with
    fresh and with known tensors.
    """

    case: Case
    session_seed: int
    device: str
    usual_db: float
    timed: bool = True
    evidence: Training = field(default_factory=Training)
    findings: list[Finding] = field(default_factory=list)

    def run(self) -> Rehearsal:
        """Ask the checks of the loop in turn, until one refuses the kernel."""
        for check in of_phase(Phase.TRAINED):
            self.findings += check.ask(rehearsal=self)
            if any(finding.rejects for finding in self.findings):
                break
        return self

    def seed(self, purpose: str) -> int:
        """Derive a secret seed."""
        return derive(self.session_seed, self.case.nodeid, f"training {purpose}")


def caches(rehearsal: Rehearsal) -> tuple[Finding, ...]:
    """Run the loop; it runs whole where the audit notes a cache in the function's file."""
    case = rehearsal.case
    subject = _subject(case, rehearsal.usual_db)
    found = simulate(subject, rehearsal.seed, suspected=_is_suspected(case))
    rehearsal.evidence = Training(found.trace, found.uncounted)
    return found.findings


def known_tensors(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Time the call with fresh and with known tensors, twice where known ones are faster."""
    pairs = _pairs(rehearsal, "reuse")
    if cached(pairs):
        again = _pairs(rehearsal, "reuse again")
        pairs += again
        if cached(again):
            yield reuse_finding([pair.log_ratio for pair in pairs])
    ratios = tuple(pair.log_gain for pair in pairs)
    rehearsal.evidence = replace(rehearsal.evidence, reuse_log_ratios=ratios)


def _is_suspected(case: Case) -> bool:
    code = code_of(case.function)
    path = Path(code.co_filename) if code else None
    return path is not None and path.is_file() and suspects_a_cache(path.read_bytes())


def _pairs(rehearsal: Rehearsal, purpose: str) -> list[Pair]:
    case = rehearsal.case
    given = make_inputs(case, rehearsal.seed(purpose))
    synchronize = torch.cuda.synchronize if rehearsal.device == "cuda" else lambda: None
    call = case.positional(case.function)
    return reuse_pairs(call, given, case.weights, synchronize, case.backward, case.rewritten)


def _subject(case: Case, usual_db: float) -> Subject:
    reference = Reference(case)

    def judged(
        outputs: dict[str, Any], gradients: dict[int, Any], inputs: Sequence[Any], seed: int
    ) -> tuple[str, float]:
        run = Pass(outputs, gradients)
        expected = reference(fresh_copies(inputs), run, seed)
        comparisons = judge(case, expected, run)
        problem = "\n".join(item.diagnosis() for item in comparisons if not item.passed)
        return problem, min((item.snr_db for item in comparisons if item.figures), default=math.inf)

    return Subject(
        function=case.positional(case.function),
        make=lambda seed: make_inputs(case, seed),
        grad_out=grad_out,
        judge=judged,
        usual_db=usual_db,
        backward=case.backward,
        weights=case.weights,
        rewritten=case.rewritten,
        outputs=lambda returned, given: results_of(case, returned, given),
    )
