"""What a pull request's cases declare, held against what they declared at its base."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_kopt.cases.result import CaseResult, seen_by
from pytest_kopt.honesty.fingerprint import Harness
from pytest_kopt.trials.harness import PytestSetup

_NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?")
_ABOVE = "SNR >="


def harness_of(root: Path, results: Sequence[CaseResult], setup: PytestSetup) -> set[str]:
    """Return the files, below a root, that decide what is right in these cases."""
    tests = dict.fromkeys(result.nodeid.partition("::")[0] for result in results)
    homes = {result.evidence.home for result in results}.difference(tests)
    kernel = tuple(sorted(filter(None, homes)))
    harness = Harness(root, tuple(tests), kernel, setup.folders, setup.plugins)
    return {*harness.take({}, {}, seen_by(results)).files}


def looser(then: CaseResult, now: CaseResult) -> Iterator[str]:
    """Say in what a case lets pass more than it did, or what else it draws."""
    before, after = then.evidence, now.evidence
    known, asked = before.gates or {}, after.gates or {}
    for name, gate in known.items():
        if name not in asked:
            yield f"does not check {name} any more"
        elif asked[name] != gate and not _is_tighter(asked[name], gate):
            yield f"accepts {asked[name]} for {name}, the base {gate}"
    if more := sorted({*(after.domain or ())} - {*(before.domain or ())}):
        yield f"excludes {', '.join(more)} by its domain"
    if long_lived := sorted({*(after.weights or ())} - {*(before.weights or ())}):
        yield f"declares input {', '.join(map(str, long_lived))} a weight"
    if before.dims != after.dims:
        yield f"has the dims {after.dims}, at the base {before.dims}"
    elif before.drawn != after.drawn:
        yield "draws other inputs"


def _is_tighter(now: str, then: str) -> bool:
    if now == "bitwise equal":
        return True
    if _NUMBER.sub("", now) != _NUMBER.sub("", then):
        return False
    numbers = zip(map(float, _NUMBER.findall(now)), map(float, _NUMBER.findall(then)), strict=True)
    return all(a >= b if now.startswith(_ABOVE) else a <= b for a, b in numbers)
