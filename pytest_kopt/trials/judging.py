"""The part of every trial before it compares two versions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_kopt.cases.details import in_a_line
from pytest_kopt.cases.result import CaseResult, Check, Collector, ExpectedCase
from pytest_kopt.decide.case_verdict import Same, Shape
from pytest_kopt.decide.grounds import Ground, Observation, checked_shape
from pytest_kopt.decide.verdict import NamedFinding, Verdict
from pytest_kopt.devices.conditions import by_kind
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding, names_of

COMPUTE = "compute what the cases ask for"
INTERPRETED = Observation(
    Ground.INTERPRETED,
    "Triton's interpreter ran these cases: kopt cannot compare times without a GPU",
    "the checks passed; run them on a GPU",
)

#: Why a trial is rejected in which kernel code, or somebody else, edited the harness.
EDITED_HARNESS = "the harness was edited while the kernel ran"
#: The finding that torch's operators alone gave the result; the gain is real.
FOREIGN = "vendor-operator"
_FOREIGN_STEP = "write the kernel in the campaign's language, or begin a campaign for the other"
#: How many cases a flag lists.
_LISTED = 5
#: What follows when a candidate was caught.
CAUGHT_STEP = "kopt restored the current best; try a hypothesis that does the work in every call"


def shapes(
    results: Iterable[CaseResult], same: Mapping[str, Same] = MappingProxyType({})
) -> list[Shape]:
    """Return cases as their checks left them; those in `same` run the same code."""
    return [checked_shape(r.row(), nodeid=r.nodeid, same=same.get(r.nodeid)) for r in results]


def same_shapes(results: Sequence[CaseResult], how: Same = "source") -> list[Shape]:
    """Return all cases as they stand where both versions run the same code."""
    return shapes(results, {result.nodeid: how for result in results})


def refuse(refusals: Sequence[str]) -> None:
    """Raise BadInput where there are reasons; one that several cases share is said once."""
    firsts: dict[str, list[str]] = {}
    for text in refusals:
        firsts.setdefault(text.partition(": ")[2] or text, []).append(text)
    reasons = [
        f"{texts[0]} (as in {len(texts) - 1} more)" if len(texts) > 1 else texts[0]
        for texts in firsts.values()
    ]
    if reasons:
        raise BadInput("; ".join(reasons))


def check_some(ids: Sequence[str], collector: Collector, where: str, how: str = "") -> None:
    """Raise BadInput where no case was collected; `how` says what selects them."""
    if not ids and not collector.collect_errors:
        fix = f"name tests that are marked kopt{how}"
        raise BadInput("no kopt case was collected", where=where, fix=fix)


def check_same_ids(ids: Iterable[str], others: Iterable[str], where: str) -> None:
    """Raise BadInput where two processes have collected other ids for the same tests."""
    first, second = sorted({*ids} - {*others}), sorted({*others} - {*ids})
    if first or second:
        raise BadInput(
            "test ids differ between two processes, so that kopt cannot find a case in another "
            f"one: the first has {', '.join(first[:1]) or 'fewer'}, "
            f"the second {', '.join(second[:1]) or 'fewer'}",
            where=where,
            fix="parametrize with ids= of constant text, without hashes or drawn names",
        )


def unfinished(
    collector: Collector, wanted: Iterable[str] | None, interrupted: str
) -> Iterator[Observation]:
    """Yield why not every wanted case (None: every one not skipped) has spoken."""
    if interrupted:
        yield Observation(Ground.SPOILED, f"the session was interrupted: {interrupted}")
    if lost := collector.lost_after_all():
        yield Observation(
            Ground.MISSING,
            f"a worker was lost: {lost[0]}",
            "the case passed when run again, so the kernel is not at fault; run it again",
        )
    if wanted is None:
        wanted = (nodeid for nodeid in collector.order if nodeid not in collector.skipped)
    missing = [nodeid for nodeid in wanted if nodeid not in collector.results]
    if silent := [nodeid for nodeid in missing if nodeid in collector.silent]:
        why = f"{len(silent)} case(s) never called kopt(): {', '.join(silent[:3])}"
        step = "call kopt() in each, or remove the marker"
        yield Observation(Ground.MISSING, why, step, flags_of(collector.never_called()))
    if missing:
        why = f"{len(missing)} case(s) have no row: {', '.join(missing[:3])}"
        yield Observation(Ground.MISSING, why, "run every case, without -k or an interruption")
    if not collector.in_order():
        why = collector.startup_death or next(iter(collector.collect_errors.values()), "")
        if skipped := sorted(collector.skipped):
            why = why or f"{len(skipped)} skipped: {', '.join(skipped[:3])}"
        reason = f"no case has a row; {in_a_line(why)}".rstrip("; ")
        yield Observation(Ground.MISSING, reason, "run every case")


def dishonest(
    results: Sequence[CaseResult],
    findings: Sequence[Finding],
    step: str = CAUGHT_STEP,
    ground: Ground = Ground.DISHONEST,
) -> Observation | None:
    """Return that a candidate's gain does not count by these findings, None without any."""
    if not findings:
        return None
    reason = EDITED_HARNESS if ground is Ground.EDITED else "what it gains is not real"
    if all(finding.check == FOREIGN for finding in findings):
        reason, step = "it is not written in the campaign's language", _FOREIGN_STEP
    evidence = {"shapes": shapes(results), **flags_of(findings)}
    return Observation(ground, f"{reason}: {names_of(findings)}", step, evidence)


def flagged(verdict: Verdict, findings: Sequence[Finding | str]) -> Verdict:
    told = flags_of(findings)
    return verdict.saying(
        flags=sorted({*verdict.flags, *told["flags"]}),
        findings=list(dict.fromkeys([*verdict.findings, *told["findings"]])),
    )


def flags_of(findings: Sequence[Finding | str]) -> dict[str, list[Any]]:
    """Return findings as a verdict has them, by published key."""
    named = (NamedFinding(**asdict(found)) for found in findings if isinstance(found, Finding))
    return {"flags": sorted({*_once(findings)}), "findings": [*dict.fromkeys(named)]}


def _once(findings: Iterable[Finding | str]) -> Iterator[str]:
    """Yield the flags of findings: one for all of a name that give the same advice about cases."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if isinstance(finding, str) or "::" not in finding.where:
            yield str(finding)
        else:
            alike.setdefault((finding.check, finding.advice), []).append(finding)
    yield from map(_in_cases, alike.values())


def _in_cases(alike: Sequence[Finding]) -> str:
    """Return a flag that lists the cases, or counts them where it says the same of each."""
    first, cases = alike[0], {finding.where for finding in alike}
    count = f"{len(cases)} case{'s'[: len(cases) != 1]}"
    if len({finding.message for finding in alike}) == 1:
        return str(first if len(cases) == 1 else replace(first, where=count))
    said = [*dict.fromkeys(f"- {f.where.rpartition('::')[2]}: {f.message}" for f in alike)]
    more = [f"- and {len(said) - _LISTED} more"] if len(said) > _LISTED else []
    heading = replace(first, message=f"in {count}", where="")
    return "\n".join([str(heading), *said[:_LISTED], *more])


def rejecting(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that reject a candidate, and do not only make its check fail."""
    return [finding for finding in findings if finding.rejects and not finding.repairs]


def interpreted(results: Sequence[CaseResult]) -> Observation | None:
    return INTERPRETED if any(result.evidence.interpreted for result in results) else None


def findings_of(results: Sequence[CaseResult]) -> list[Finding]:
    """Return what was found in the cases, each finding with its place, or else its case."""
    return [
        replace(finding, where=finding.where or result.nodeid)
        for result in results
        for finding in result.findings
    ]


def called_by(results: Iterable[CaseResult]) -> str:
    """Return the functions that cases call, each with its file where that can be told."""
    called = dict.fromkeys((r.evidence.function, r.evidence.home) for r in results)
    return ", ".join(f"{name} in {home}" if home else f"{name}" for name, home in called if name)


def head(text: str) -> str:
    """Return the beginning of a stack, the innermost frames, for the terminal."""
    return "\n".join(text.splitlines()[:15])


def under(nodeid: str, collect_errors: dict[str, str]) -> str | None:
    """Return the collection error of the file or class that holds a node id."""
    for failed, text in collect_errors.items():
        if nodeid == failed or nodeid.startswith((f"{failed}::", f"{failed}/")):
            return text
    return None


def not_imported(collector: Collector, ids: Iterable[str], root: Path) -> dict[str, str]:
    """Return which files of cases do not import, with why: of `ids` cases, or that name kopt."""
    cases = [nodeid for nodeid in ids if nodeid not in collector.order]
    texts = {}
    for failed, error in collector.collect_errors.items():
        file = root / failed.partition("::")[0]
        has_cases = any(under(case, {failed: error}) for case in cases)
        if has_cases or (file.is_file() and b"kopt" in file.read_bytes()):
            texts[failed] = f"{failed} does not import: {in_a_line(error)}"
    if cases and collector.startup_death:
        texts[""] = f"no case could be collected: {in_a_line(collector.startup_death)}"
    return texts


def fail_rows_of_failed_tests(collector: Collector) -> None:
    """Make a test that failed after its case was measured a failed check."""
    for nodeid, text in collector.failures.items():
        result = collector.results.get(nodeid)
        if result is not None and result.check == "PASS":
            collector.results[nodeid] = failed(result, "FAIL", text)


def failed(result: CaseResult, check: Check, diagnosis: str) -> CaseResult:
    cells = {name: None if cell is None else math.nan for name, cell in result.cells.items()}
    return replace(result, check=check, cells=dict(cells), diagnosis=diagnosis)


def all_failed(
    results: Sequence[CaseResult], wrong: Mapping[str, str], check: Check
) -> list[CaseResult]:
    """Return the results with those failed that are named by node id, each with what it did."""
    return [failed(r, check, wrong[r.nodeid]) if r.nodeid in wrong else r for r in results]


def device_flags(results: Sequence[CaseResult], expected: Mapping[str, ExpectedCase]) -> list[str]:
    """Return what to know of a stored comparison's devices: others, throttled, drifted."""
    flags = []
    for result in results:
        frozen, now = expected.get(result.nodeid), result.evidence.device
        before = frozen.device if frozen else ""
        if before and now and before != now:
            flags.append(f"{result.label}: measured on {now}, the incumbent on {before}")
    around = {r.label: r.evidence.conditions for r in results}
    return [*flags, *by_kind({label: c.flags if c else () for label, c in around.items()})]
