"""A case in a training loop: from what the test declared to findings and evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.evidence import Training
from pytest_kopt.cases.running.execution import Pass, grad_out, judge, make_inputs, results_of
from pytest_kopt.cases.running.reference import Reference, code_of
from pytest_kopt.cases.seeds import derive
from pytest_kopt.honesty.audit import suspects_a_cache
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.reuse import Pair, cached, reuse_finding, reuse_pairs
from pytest_kopt.honesty.training import Subject, simulate
from pytest_kopt.numerics.nested import fresh_copies


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the training loop says of a case, and the evidence for it."""

    findings: tuple[Finding, ...]
    evidence: Training


def rehearse(
    case: Case,
    session_seed: int,
    device: str,
    usual_db: float,
    *,
    timed: bool = True,
) -> Rehearsal:
    """Run a case that passed its check through a simulated training loop.

    `usual_db` is the smallest SNR of its check. With `timed` the call is also timed with fresh and
    with known tensors. The loop runs whole where the audit notes a cache in the function's file.
    """

    def seeds(purpose: str) -> int:
        return derive(session_seed, case.nodeid, f"training {purpose}")

    found = simulate(_subject(case, usual_db), seeds, suspected=_is_suspected(case))
    findings, ratios = list(found.findings), None
    if timed and not any(finding.rejects for finding in findings):
        pairs = _pairs(case, seeds("reuse"), device)
        if cached(pairs):
            again = _pairs(case, seeds("reuse again"), device)
            pairs += again
            if cached(again):
                findings.append(reuse_finding([pair.log_ratio for pair in pairs]))
        ratios = tuple(pair.log_gain for pair in pairs)
    return Rehearsal(tuple(findings), Training(found.trace, found.uncounted, ratios))


def _is_suspected(case: Case) -> bool:
    code = code_of(case.function)
    path = Path(code.co_filename) if code else None
    return path is not None and path.is_file() and suspects_a_cache(path.read_bytes())


def _pairs(case: Case, seed: int, device: str) -> list[Pair]:
    given = make_inputs(case, seed)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
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
