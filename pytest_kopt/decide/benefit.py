"""The stated benefit of a version that is equal in speed; one of memory has to be measured."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_kopt.decide.case_verdict import Memory

#: What is held on the device. Shared memory is a kernel's own, and in no allocator.
_MEMORY = re.compile(r"(?<!shared )\b(memory|vram)\b", re.IGNORECASE)


def is_of_memory(benefit: str) -> bool:
    """Say whether a stated benefit is about the memory that a call takes."""
    return bool(_MEMORY.search(benefit))


def evidence_for(benefit: str, taken: Sequence[Memory | None]) -> str:
    """Return how far a stated benefit is known, in words, from what the cases' calls take.

    "" refutes it: memory was measured, and no case takes less or one takes more.
    """
    peaks = [memory for memory in taken if memory]
    if not (is_of_memory(benefit) and peaks):
        return "stated, not measured"
    apart = [peak for peak in peaks if peak.differs]
    if not apart or any(peak.candidate_bytes > peak.incumbent_bytes for peak in apart):
        return ""
    most = max(apart, key=lambda peak: peak.ratio)
    return f"measured: {most.in_mib} in the case that differs most"


def refuted(taken: Sequence[Memory | None]) -> str:
    """Return why a stated benefit of memory is none, in words."""
    peaks = [memory for memory in taken if memory]
    worst = max(peaks, key=lambda peak: peak.candidate_bytes / max(peak.incumbent_bytes, 1))
    return f"a call takes no less memory than before, as its extra benefit says: {worst.in_mib}"
