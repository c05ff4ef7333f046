"""Correctness of a case: out and every gradient against the reference, before anything is timed."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.evidence import Failure
from pytest_kopt.cases.result import Check
from pytest_kopt.cases.running.checking import PURPOSES, Checking, Measured
from pytest_kopt.cases.running.reference import observed
from pytest_kopt.cases.seeds import derive
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.checks import Phase, ask
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.watching.state import left_profiler, look
from pytest_kopt.numerics.compare import Comparison, InvalidReference
from pytest_kopt.numerics.nested import tensors

_GRADIENT = "grad of input "
#: Frames of an error that are shown, the innermost ones.
_FRAMES = 8
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


@dataclass(slots=True)
class CheckReport(Measured):
    """The result of checking one case.

    SNRs are in dB; `gradients` maps an input's position to its gradient's SNR. `findings` are
    signs that the kernel serves the check instead of computing. `case` has among its `writes` what
    the reference writes to; `failed` are the figures of what is outside its gate.
    """

    check: Check
    diagnosis: str = ""
    out_snr: float = math.nan
    gradients: dict[int, float] = field(default_factory=dict)
    max_abs_error: float = math.nan
    mismatch_share: float = math.nan
    gate: str = ""
    findings: tuple[Finding, ...] = ()
    seeds: dict[str, int] = field(default_factory=dict)
    case: Case | None = None
    failed: tuple[Failure, ...] = ()


def check_case(
    case: Case,
    session_seed: int,
    *,
    device: str = "cpu",
    language: str = "",
    left_to_torch: str = "",
    baseline: Mapping[str, Accuracy] | None = None,
    freezes: bool = False,
) -> CheckReport:
    """Check the candidate step by step; see `Checking`.

    `language` is the one that the kernel is to be written in ("": any), `left_to_torch` and
    `baseline` are the baseline's, which a check that `freezes` is itself. Raises BadInput where the
    case cannot be checked (no input requires grad, a dtype without a gate).
    """
    seeds = {purpose: derive(session_seed, case.nodeid, purpose) for purpose in PURPOSES}
    findings: list[Finding] = []
    before, threads = look(device), torch.get_num_threads()
    profiles = torch._C._autograd._profiler_enabled()
    try:
        # The reference comes first here, on content of which the kernel sees nothing.
        case = observed(case, derive(session_seed, case.nodeid, "writes"), device)
        checking = Checking(
            case=case,
            seeds=seeds,
            device=device,
            written_in=language,
            left_to_torch=left_to_torch,
            freezes=freezes,
            findings=findings,
        )
        checking.run()
    except BadInput:
        raise
    except InvalidReference as error:
        return CheckReport("ERROR", str(error), seeds=seeds)
    except Exception as error:
        text = kernel_traceback(error)
        # What raises may be whoever finds it on.
        left = left_profiler(profiles, torch._C._autograd._profiler_enabled())
        check: Check = "FAIL" if left else "ERROR"
        return CheckReport(check, text, findings=(*left, *findings), seeds=seeds)
    if checking.invalid:
        return CheckReport("ERROR", checking.invalid, seeds=seeds)
    missing = (baseline or {}).keys() - checking.accuracy.keys()
    if checking.passed and missing:
        reason = "is missing, though the baseline returned it"
        checking.comparisons.append(Comparison(min(missing), False, "as the baseline", reason))
    if checking.passed and torch.get_num_threads() != threads:
        # A pool of a library's own sets it when it starts, numba's for one, and then never again.
        torch.set_num_threads(threads)
        checking.call_unjudged()
    checking.found(
        ask(
            Phase.CHECKED,
            passed=checking.passed,
            before=before,
            after=look(device),
            threads=threads,
            threads_now=torch.get_num_threads(),
            profiles=profiles,
            profiles_now=torch._C._autograd._profiler_enabled(),
            accuracy=checking.accuracy,
            baseline=baseline or {},
            elements=sum(item.numel() for item in tensors(checking.given)),
        )
    )
    return _report(checking, seeds)


def _report(checking: Checking, seeds: dict[str, int]) -> CheckReport:
    comparisons = checking.comparisons
    outs: list[Comparison] = []
    gradients: dict[int, float] = {}
    for item in comparisons:
        if item.name.startswith(_GRADIENT):
            position = int(item.name.removeprefix(_GRADIENT).partition(" ")[0])
            gradients[position] = min(item.snr_db, gradients.get(position, math.inf))
        elif item.figures or not item.passed:
            outs.append(item)
    snrs = [item.snr_db for item in outs]
    figures = [item.figures for item in outs if item.figures]
    failed = [item for item in comparisons if not item.passed]
    refused = checking.broken or any(found.rejects for found in checking.findings)
    advice = checking.advice() if failed and not refused else {}
    return CheckReport(
        check="PASS" if checking.passed else "FAIL",
        diagnosis="\n".join(
            text for item in failed for text in (item.diagnosis(), advice.get(item.name)) if text
        ),
        out_snr=math.nan if any(map(math.isnan, snrs)) else min(snrs, default=math.nan),
        gradients=gradients,
        max_abs_error=max((item.max_abs for item in figures), default=math.nan),
        mismatch_share=max((item.mismatch_share for item in figures), default=math.nan),
        gate=outs[0].gate if outs else "",
        findings=(*checking.broken, *checking.findings),
        seeds=seeds,
        case=checking.case,
        failed=tuple(map(Failure.of, failed)),
        **{known.name: getattr(checking, known.name) for known in fields(Measured)},
    )


def kernel_traceback(error: BaseException) -> str:
    """Return the innermost frames of an error in kernel code, as Triton's interpreter wraps it."""
    hint = ""
    if "0 active drivers" in str(error):
        hint = (
            "Triton's interpreter cannot autotune, as it has no device to time configs on: give "
            "the kernel one config where TRITON_INTERPRET is set, or run it on a GPU\n"
        )
    elif type(error).__name__ == "InterpreterError":
        hint = (
            "Triton's interpreter does not support all that a GPU's compiler does: if the kernel "
            "is right, run it on a GPU\n"
        )
    if type(error).__name__ == "InterpreterError":
        error = error.__cause__ or error
    told = traceback.TracebackException.from_exception(error, limit=-_FRAMES)
    frames = [frame for frame in told.stack if not frame.filename.startswith(_PACKAGE)]
    told.stack = traceback.StackSummary.from_list(frames or told.stack)
    return f"{hint}{''.join(told.format(chain=False))}".rstrip()
