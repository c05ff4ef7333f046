"""The static audit of a candidate: sources in, findings out; nothing is imported or run.

`program` follows the kernel's files (`values`, `machine`, `tensors`, `library`, `calls`,
`expressions`, `statements`) and leaves a `trace`; the rules (`caches`, `modes`, `inspection`,
`interference`, `concurrency`, `randomness`, `groups`, `language`) read that. A rule that rejects
must be one that an honest kernel has no reason to break: what the audit misses, the dynamic checks
are there for.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_kopt.honesty.audit import (
    caches,
    concurrency,
    groups,
    inspection,
    interference,
    language,
    modes,
    randomness,
)
from pytest_kopt.honesty.audit.program import Entries, Program, parse
from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.finding import Finding

__all__ = ["audit"]


def audit(
    candidate: Mapping[str, bytes],
    incumbent: Mapping[str, bytes],
    *,
    target_lang: str,
    entries: Entries | None = None,
) -> list[Finding]:
    """Return what the candidate's files do that a kernel has no honest reason to do.

    Both versions are given as sources by path. `entries` names the functions that cases call
    (dotted, as `module.qualname`) with the positions of the arguments that outlive a step. Every
    other function that the kernel does not call itself is looked at as well, since a case may call
    more than it says; but only of an entry is it known that its arguments are tensors, which of
    them are weights, and that what it returns is the result.

    What the incumbent does too, line for line but for names and places, is not the candidate's
    doing: it comes back as a note. Rejecting it would end the campaign for whoever comes next,
    and hiding it would let a campaign that began dishonest stay so unseen.
    """
    known = Counter(s.pattern for s in _suspicions(incumbent, target_lang, entries))
    findings = []
    for suspicion in _suspicions(candidate, target_lang, entries):
        old = known[suspicion.pattern] > 0
        known[suspicion.pattern] -= old
        findings.append(suspicion.finding(known=old))
    return findings


def _suspicions(
    sources: Mapping[str, bytes],
    target_lang: str,
    entries: Entries | None,
) -> list[Suspicion]:
    trees = parse(sources)
    program = Program(trees, entries or {})
    evidence = Evidence(program.follow())
    found: Iterator[Suspicion]
    first: dict[tuple[str, ast.AST], Suspicion] = {}
    for found in (
        caches.suspicions(evidence),
        modes.suspicions(evidence),
        inspection.suspicions(evidence),
        interference.suspicions(evidence),
        concurrency.suspicions(evidence),
        randomness.suspicions(evidence),
        groups.suspicions(evidence, program.device_functions),
        language.suspicions(evidence, target_lang, program.device_functions),
    ):
        for suspicion in found:
            first.setdefault((suspicion.check, suspicion.site.node), suspicion)
    return sorted(first.values(), key=lambda s: (s.site.path, s.site.line, s.check))
