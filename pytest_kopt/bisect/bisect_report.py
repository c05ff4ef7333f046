"""A finished bisection as data (`--json`) and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_kopt.bisect.bisection import Bisection, Commit
from pytest_kopt.bisect.walk import Change, Culprit, Pair
from pytest_kopt.decide.inference import percent
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.figures import changed_within
from pytest_kopt.show import words


def report(bisection: Bisection, culprit: Culprit | None) -> dict[str, Any]:
    """Return the answer; changes in percent of speed, intervals at three standard errors."""
    commits, bad = bisection.commits, bisection.history.change(bisection.history.last)
    may_be_slower = bad is not None and bad.mean < -bad.error
    return {
        "schema_version": 1,
        "good": commits[0].hash,
        "bad": commits[-1].hash,
        "decision": "SLOWER" if culprit else "UNDECIDED" if may_be_slower else "NOT_SLOWER",
        "first_slower": culprit and _first_slower(bisection, culprit),
        "bad_against_good": bad and _figures(bad),
        "commits": list(_standings(bisection)),
        "sessions": bisection.sessions,
    }


def exit_code(document: dict[str, Any]) -> ExitCode:
    """Return 8 where a commit is slower, 9 where BAD may be, 0 where nothing was found."""
    codes = {"SLOWER": ExitCode.ROLLED_BACK, "UNDECIDED": ExitCode.INCONCLUSIVE}
    return codes.get(document["decision"], ExitCode.OK)


def lines(document: dict[str, Any]) -> Iterator[str]:
    rows = [
        {
            "commit": row["commit"][:12],
            "against GOOD": row["standing"],
            "change": _shown(row),
            "subject": words.clipped(row["subject"], 50),
        }
        for row in document["commits"]
    ]
    yield words.markdown_table(rows)
    yield ""
    first = document["first_slower"]
    if first is None:
        bad = document["bad_against_good"]
        answer = "no commit is shown to be slower than one before it"
        if document["decision"] == "UNDECIDED":
            answer = "not decided: BAD may be slower than GOOD"
        yield (
            f"{answer}; BAD against GOOD: {_shown(bad)}"
            if bad
            else f"{answer}: the code is the same"
        )
        return
    kind = "merge" if first["is_merge"] else "commit"
    yield f"first slower {kind}: {first['commit'][:12]} {first['subject']} ({first['author']})"
    yield f"  against {first['previous'][:12]}: {_shown(first)}"
    if not first["confirmed"]:
        yield "  that step alone is not shown: several small ones may have added up"
    if first["or_one_of"]:
        names = ", ".join(commit[:12] for commit in first["or_one_of"])
        yield f"  or one of those before it that could not be compared: {names}"
    yield from (f"  kernel {line}" for line in first["kernels"])
    for case in first["cases"]:
        yield f"  {case['label']}: {_shown(case)}"


def _first_slower(bisection: Bisection, culprit: Culprit) -> dict[str, Any]:
    versions, history = bisection.versions, bisection.history
    before, version = culprit.before, culprit.version
    commit = versions[version][0]
    step = history.change(version, before) or history.change(version) or Change()
    answer = bisection.answers.get(Pair(before, version))
    verdict = answer.verdict if answer else None
    hurt = [case for case in verdict.shapes if (case.high_pct or 0.0) < 0] if verdict else []
    hurt.sort(key=lambda case: case.change_pct or 0.0)
    return {
        "commit": commit.hash,
        "subject": commit.subject,
        "author": commit.author,
        "is_merge": commit.is_merge,
        "previous": versions[before][-1].hash,
        **_figures(step),
        "confirmed": culprit.confirmed,
        "or_one_of": [run[0].hash for run in versions[before + 1 : version]],
        "kernels": words.kernel_lines(verdict) if verdict else [],
        "cases": [case.model_dump(mode="json") for case in hurt],
    }


def _standings(bisection: Bisection) -> Iterator[dict[str, Any]]:
    for place, run in enumerate(bisection.versions):
        change = bisection.history.change(place)
        for commit in run:
            standing, reason = _standing(bisection, place, commit, change)
            yield {
                "commit": commit.hash,
                "subject": commit.subject,
                "is_merge": commit.is_merge,
                "standing": standing,
                **({"reason": reason} if reason else {}),
                **(_figures(change) if change and standing not in ("skipped", "GOOD") else {}),
            }


def _standing(
    bisection: Bisection, place: int, commit: Commit, change: Change | None
) -> tuple[str, str]:
    """Return how a commit stands to GOOD, and why where that is not by a comparison."""
    if reason := bisection.skipped.get(commit.hash):
        return "skipped", reason
    if commit is bisection.commits[0]:
        return "GOOD", ""
    first = bisection.versions[place][0]
    if commit is not first:
        return "same code", f"the same code as {first.hash[:12]}"
    if change is None:
        return "not measured", ""
    verdict = bisection.answers[Pair(0, place)].verdict
    if verdict and verdict.compare == "none":
        return "same code", "as GOOD"
    if change.high < 0:
        return "slower", ""
    return "faster" if change.low > 0 else "not shown to differ", ""


def _figures(change: Change) -> dict[str, float]:
    return {
        "change_pct": percent(change.mean),
        "low_pct": percent(change.low),
        "high_pct": percent(change.high),
    }


def _shown(row: dict[str, Any]) -> str:
    reason = str(row.get("reason", ""))
    if "change_pct" not in row:
        return reason
    change = changed_within(row["change_pct"], row["low_pct"], row["high_pct"])
    return f"{change} ({reason})" if reason else change
