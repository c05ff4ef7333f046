"""The static audit as a round asks for it: its kernel files against the incumbent's."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding


def audit_candidate(
    candidate: KernelVersion,
    incumbent: KernelVersion,
    results: Sequence[CaseResult],
    target_lang: str,
) -> list[Finding]:
    """Return what the audit finds, told by the cases what they call and what outlives a step."""
    entries = {
        str(result.evidence["function"]): tuple(result.evidence.get("weights", ()))
        for result in results
        if "function" in result.evidence
    }
    return audit(
        {path: file.content for path, file in candidate.files.items()},
        {path: file.content for path, file in incumbent.files.items()},
        target_lang=target_lang,
        entries=entries,
    )
