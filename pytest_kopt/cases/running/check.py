"""Correctness of a case: out and every gradient against the reference, before anything is timed."""

from __future__ import annotations

import hashlib
import math
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_kopt.cases.case import GRAD_OUT, Case, function_name
from pytest_kopt.cases.evidence import CaseEvidence, Failure
from pytest_kopt.cases.order import Bench, derive
from pytest_kopt.cases.result import Check
from pytest_kopt.cases.running.against_reference import gated
from pytest_kopt.cases.running.checking import PURPOSES, Checking
from pytest_kopt.cases.running.reference import code_of, observed
from pytest_kopt.cases.running.steps import contents
from pytest_kopt.cases.running.steps.contents import aftermath, seeds_anew, wrong_answers
from pytest_kopt.cases.running.steps.equal_calls import (
    equal_calls,
    parts_of_a_batch,
    same_distribution,
    stale_memory,
)
from pytest_kopt.cases.running.steps.fresh_content import by_hand, fresh_content
from pytest_kopt.cases.running.switches import left_switches, read_switches
from pytest_kopt.devices.machine import device_model
from pytest_kopt.errors import REPORT, BadInput
from pytest_kopt.honesty.accuracy import Accuracy, downgrades, other_results
from pytest_kopt.honesty.audit_hook import MAY_WRITE
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import can_be_updated
from pytest_kopt.honesty.outputs import most_terms
from pytest_kopt.libraries import own_fault
from pytest_kopt.measure.engine import Timing
from pytest_kopt.numerics.compare import Comparison, InvalidReference
from pytest_kopt.numerics.gates import Gate, bitwise, default_gate
from pytest_kopt.numerics.nested import fresh_copies, tensors

#: Parts of this package that call kernels, of which compiled ones have no frame.
_CALLING = (
    *("cases/running/", "measure/", "versions/", "sameness/"),
    *("honesty/work.py", "honesty/renewal.py", "honesty/outputs.py", "devices/"),
)
#: Calls the kernel in one more way, and yields what that shows besides right and wrong.
CheckStep = Callable[[Checking], Iterable[Finding] | None]
_GRADIENT = "grad of input "
#: So many elements of a tensor go into the digest of what was drawn.
_SAMPLED = 1024
#: Restoring an input of this size takes longer than most calls that write to it.
_LARGE_BYTES = 64 << 20
#: Frames of an error that are shown, the innermost ones.
_FRAMES = 8
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


@dataclass(slots=True)
class CheckedCase:
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


def check_case(case: Case, bench: Bench) -> CheckedCase:
    """Check the candidate step by step; see `Checking`.

    Raises BadInput where the case cannot be checked (no input requires grad, a dtype without a
    gate).
    """
    seeds = {purpose: derive(bench.session_seed, case.nodeid, purpose) for purpose in PURPOSES}
    evidence = _evidence(case, bench, seeds)
    findings: list[Finding] = []
    switches, threads = read_switches(), torch.get_num_threads()
    baseline = bench.frozen(case.nodeid).accuracy
    try:
        # The reference comes first here, on content of which the kernel sees nothing.
        case = observed(case, derive(bench.session_seed, case.nodeid, "writes"), bench.device)
        checking = Checking(case=case, bench=bench, seeds=seeds, findings=findings)
        _take_steps(checking)
    except BadInput:
        raise
    except InvalidReference as error:
        return CheckedCase(case, bench, "ERROR", str(error), evidence=evidence)
    except Exception as error:
        refuse_own_fault(case, error)
        text = kernel_traceback(error, bench)
        return CheckedCase(case, bench, "ERROR", text, findings=findings, evidence=evidence)
    if checking.invalid:
        return CheckedCase(case, bench, "ERROR", checking.invalid, evidence=evidence)
    if checking.passed and torch.get_num_threads() != threads:
        # A pool of a library's own sets it when it starts, numba's for one, and then never again.
        torch.set_num_threads(threads)
        checking.call_unjudged()
    checking.add_findings(_after_steps(checking, baseline, switches))
    return _checked(checking, evidence)


def _take_steps(checking: Checking) -> None:
    """Take the steps in order; stop at the first that shows something."""
    for number, step in enumerate(_steps(checking)):
        checking.add_findings(step(checking) or ())
        refused = any(finding.rejects for finding in checking.findings)
        if not (checking.passed or checking.invalid):
            checking.steady()
        # What a call wrote over its own tensors makes it wrong there as well.
        is_due = number and checking.is_short and not checking.case.is_statistical
        if is_due and not (checking.passed or refused or checking.broken):
            checking.add_findings(equal_calls(checking))
        if checking.invalid or refused or not checking.passed:
            return


def _steps(checking: Checking) -> Iterator[CheckStep]:
    """Yield the steps; which are due is asked when those before have been taken."""
    is_statistical = checking.case.is_statistical
    yield fresh_content
    if checking.bench.expected is None and not is_statistical:
        yield wrong_answers
    if checking.bench.freezes:
        yield _count_flops
    if is_statistical:
        yield same_distribution
    yield contents.same_addresses
    if not is_statistical:
        yield from _steps_on_values(checking)
    yield aftermath
    if checking.draws:
        yield seeds_anew


def _steps_on_values(checking: Checking) -> Iterator[CheckStep]:
    """Yield those that hold the results of calls against each other, or against the reference's."""
    yield contents.other_groups
    weights = (checking.pristine[place] for place in checking.case.weights)
    if any(map(can_be_updated, tensors([*weights]))):
        yield contents.few_of_a_weight
    if checking.bench.language not in ("", "TORCH"):
        yield by_hand
    if checking.is_short:
        yield equal_calls
        yield contents.after_many_calls
    if checking.case.batch_invariant:
        yield parts_of_a_batch


def _count_flops(checking: Checking) -> None:
    """Count the FLOPs of a case; only the baseline's are asked for."""
    if checking.case.flops:
        like = checking.last.copies
        counted = checking.truth.flops(fresh_copies(checking.pristine), like)
        checking.counted_flops = counted
        terms = most_terms(checking.pristine, like.all, counted) if counted else None
        for name, reached in checking.accuracy.items():
            checking.accuracy[name] = replace(reached, terms=terms)


def _after_steps(
    checking: Checking, baseline: Mapping[str, Accuracy], switches: Mapping[str, object]
) -> list[Finding]:
    """Return what calls left in the process, and how results differ from the baseline's."""
    findings = [*left_switches(switches)]
    if checking.passed:
        reached = checking.mostly(baseline)
        if inexact := [*downgrades(reached, baseline, tensors(checking.pristine))]:
            findings += [*stale_memory(checking, reached)] or inexact
        findings += other_results(reached, baseline)
    return findings


def _evidence(case: Case, bench: Bench, seeds: dict[str, int]) -> CaseEvidence:
    """Return what is known before anything has run."""
    return CaseEvidence(
        schema=case.schema.name,
        function=f"{getattr(case.function, '__module__', '?')}.{function_name(case.function)}",
        dims=case.dims,
        device=bench.uuid,
        session_seed=bench.session_seed,
        seeds=seeds,
        flops=case.flops,
        nbytes=case.nbytes,
        device_model=device_model(bench.device),
        weights=case.weights,
        writes=case.writes,
        consumes=(*case.consumes, *([GRAD_OUT] if case.consumes_incoming else [])),
        domain=case.domain or None,
        nan=case.nan,
        deterministic=case.deterministic or None,
        batch_invariant=case.batch_invariant or None,
        group_multiple=case.group_multiple,
        limit_pct=case.limit_pct,
        limit_us=case.limit_us,
        weight=case.weight,
        cache=case.cache,
        operating_point=case.operating_point,
        quantities={c.name: c.quantity for c in case.schema.columns},
        better={c.name: c.better for c in case.schema.columns if c.better},
        torch=torch.__version__,
    )


def _checked(checking: Checking, evidence: CaseEvidence) -> CheckedCase:
    comparisons = checking.comparisons
    failed = [comparison for comparison in comparisons if not comparison.passed]
    refused = checking.broken or any(finding.rejects for finding in checking.findings)
    is_statistical = checking.case.is_statistical
    advice = checking.advice() if failed and not (refused or is_statistical) else {}
    return CheckedCase(
        case=checking.case,
        bench=checking.bench,
        check="PASS" if checking.passed else "FAIL",
        diagnosis="\n".join(
            text
            for comparison in failed
            for text in (comparison.diagnosis(), advice.get(comparison.name))
            if text
        ),
        figures=figures_of(comparisons),
        findings=[*checking.broken, *checking.findings],
        written=checking.written,
        evidence=replace(
            evidence,
            gate=next((comparison.gate for comparison in _outs(comparisons)), ""),
            failed=tuple(map(Failure.of, failed)) or None,
            interpreted=checking.interpreted,
            accuracy=checking.accuracy,
            io_bytes=checking.io_bytes,
            counted_flops=checking.counted_flops,
            dtype=checking.dtype,
            groups=checking.groups,
            by_torch=checking.by_torch,
            bitwise_stable=checking.bitwise_stable,
            judged_by=tuple(sorted(checking.truth.files)),
            home=getattr(code_of(checking.case.function), "co_filename", None),
            tolerances=_tolerances(checking) if checking.passed else None,
            derived_gates=dict(checking.case.derived_gates) or None,
            drawn=_digest_of_drawn(checking.first),
            note="\n".join(_notes(checking)) or None,
        ),
    )


def _tolerances(checking: Checking) -> dict[str, Gate]:
    """Return the gate of every result, where the case declares none that of its dtype."""
    results = gated(checking.case, checking.expected, checking.last.copies)
    return {name: gate or _gate_for(out) for name, _, out, gate in results}


def _gate_for(out: object) -> Gate:
    is_number = isinstance(out, torch.Tensor | int | float)
    return default_gate(torch.as_tensor(out).dtype) if is_number else bitwise()


def _digest_of_drawn(arguments: Sequence[Any]) -> str:
    """Return a digest of what a case draws: of a few elements of each tensor, and the rest."""
    digest = hashlib.sha256()
    for tensor in tensors(list(arguments)):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.layout is torch.strided and not tensor.is_complex():
            sample = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // _SAMPLED)]
            digest.update(sample.double().cpu().numpy().tobytes())
    digest.update(repr([x for x in arguments if isinstance(x, int | float | str)]).encode())
    return digest.hexdigest()[:16]


def _notes(checking: Checking) -> Iterator[str]:
    """Yield the gates that were derived, and inputs that make the check long."""
    by_reason: dict[str, list[str]] = {}
    for name, derived in checking.derived.items():
        if gate := derived.gate:
            reached = f"{derived.reached_db:.1f}" if math.isfinite(derived.reached_db) else "all"
            line = f"{name} {gate.threshold:g} dB (torch reaches {reached})"
            by_reason.setdefault(derived.reason, []).append(line)
    if by_reason:
        parts = [f"{', '.join(gates)}, because {reason}" for reason, gates in by_reason.items()]
        yield f"{checking.case.label}: SNR gates that kopt derived: {'; '.join(parts)}"
    yield from _large_inputs(checking)


def _large_inputs(checking: Checking) -> Iterator[str]:
    """Say which inputs make the check long, as they are restored and looked through every call."""
    case = checking.case
    sizes = {
        place: sum(tensor.nbytes for tensor in tensors(checking.pristine[place]))
        for place in case.rewritten
    }
    large = [f"input {i} ({sizes[i] >> 20} MiB)" for i in sorted(sizes) if sizes[i] >= _LARGE_BYTES]
    if large:
        yield (
            f"{case.label}: the kernel writes to {', '.join(large)}, which kopt "
            "restores and compares around every call: smaller inputs make checking "
            "and timing faster"
        )


def figures_of(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Return the worst of each quantity over all steps."""
    gradients: dict[str, float] = {}
    for comparison in comparisons:
        if comparison.name.startswith(_GRADIENT):
            name = f"grad_snr:{comparison.name.removeprefix(_GRADIENT).partition(' ')[0]}"
            gradients[name] = min(comparison.snr_db, gradients.get(name, math.inf))
    snrs = [comparison.snr_db for comparison in _outs(comparisons)]
    figures = [comparison.figures for comparison in _outs(comparisons) if comparison.figures]
    return {
        "out_snr": math.nan if any(map(math.isnan, snrs)) else min(snrs, default=math.nan),
        "max_abs_error": max((figure.max_abs for figure in figures), default=math.nan),
        "mismatch_share": max((figure.mismatch_share for figure in figures), default=math.nan),
        "grad_snr": min(gradients.values(), default=math.nan),
        **gradients,
    }


def _outs(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return those of outputs that are tensors, or wrong."""
    outs = (comparison for comparison in comparisons if not comparison.name.startswith(_GRADIENT))
    return [comparison for comparison in outs if comparison.figures or not comparison.passed]


def refuse_own_fault(case: Case, error: Exception) -> None:
    """Raise BadInput where kopt failed: no change of the kernel or its test repairs that."""
    is_of_device = isinstance(error, torch.OutOfMemoryError) or " error: " in str(error)
    if not is_of_device and (fault := own_fault(error, _CALLING)):
        raise case.refusal(fault, fix=REPORT) from error


def kernel_traceback(error: BaseException, bench: Bench) -> str:
    """Return the innermost frames of an error in kernel code, as Triton's interpreter wraps it."""
    hint = ""
    if "0 active drivers" in str(error):
        hint = (
            "Triton's interpreter cannot autotune, because it has no device on which "
            "to time configs. Fix: give the kernel one config where TRITON_INTERPRET "
            "is set, or run it on a GPU\n"
        )
    elif type(error).__name__ == "InterpreterError":
        hint = (
            "Triton's interpreter supports less than the compiler of a GPU. Fix: if "
            "the kernel is right, run it on a GPU\n"
        )
    elif isinstance(error, PermissionError) and error.filename and bench.is_confined:
        hint = f"{MAY_WRITE}\n"
    if type(error).__name__ == "InterpreterError":
        error = error.__cause__ or error
    shortened = traceback.TracebackException.from_exception(error, limit=-_FRAMES)
    frames = [frame for frame in shortened.stack if not frame.filename.startswith(_PACKAGE)]
    shortened.stack = traceback.StackSummary.from_list(frames or shortened.stack)
    return f"{hint}{''.join(shortened.format(chain=False))}".rstrip()
