"""The static audit as a round asks for it: its kernel files against the incumbent's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding


def audit_candidate(
    candidate: Mapping[str, bytes],
    incumbent: Mapping[str, bytes],
    results: Sequence[CaseResult],
    target_lang: str,
) -> list[Finding]:
    """Return what the audit finds in sources by path.

    The cases tell it which functions they call and which inputs outlive a step.
    """
    entries = {
        str(result.evidence["function"]): tuple(result.evidence.get("weights", ()))
        for result in results
        if "function" in result.evidence
    }
    return audit(
        candidate,
        incumbent,
        target_lang=target_lang,
        entries=entries,
    )
