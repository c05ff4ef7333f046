"""Results as JUnit properties: what a case measured on its testcase, the verdict on the suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_kopt.cases.result import PROPERTY, CaseResult
from pytest_kopt.figures import changed, ends, interval

if TYPE_CHECKING:
    from pytest_kopt.decide.verdict import Verdict

Property = tuple[str, str]


def unpack(report: pytest.TestReport) -> None:
    """Put a case's figures, for everyone after our collector, where its JSON stood in a report."""
    properties: list[tuple[str, object]] = []
    for name, value in report.user_properties:
        if name != PROPERTY or not isinstance(value, str):
            properties.append((name, value))
            continue
        try:
            properties += case_properties(CaseResult.from_json(value))
        except ValueError:
            continue
    report.user_properties = properties


def case_properties(result: CaseResult) -> Iterator[Property]:
    if not result.header:
        return
    yield "kopt.label", result.label
    yield "kopt.check", result.check
    for name, value in {**result.dims, **result.cells}.items():
        if value is not None:
            yield f"kopt.{name}", str(value)
    for name in ("engine", "device"):
        if (text := getattr(result.evidence, name)) is not None:
            yield f"kopt.{name}", text
    for finding in result.findings:
        yield "kopt.finding", str(finding)


def verdict_properties(verdict: Verdict) -> Iterator[Property]:
    yield "kopt.decision", str(verdict.decision)
    yield "kopt.reason", verdict.reason
    for name in ("outcome", "campaign", "round", "attempt", "policy", "compare"):
        if (value := getattr(verdict, name)) is not None:
            yield f"kopt.{name}", str(value)
    if verdict.aggregate and verdict.aggregate.change_pct is not None:
        total = verdict.aggregate
        yield f"kopt.change: {total.metric}", changed(total.change_pct)
        if total.low_pct is not None:
            yield f"kopt.interval: {total.metric}", interval(*ends(total))
    for flag in verdict.flags:
        yield "kopt.flag", flag


@pytest.hookimpl(tryfirst=True)
def pytest_kopt_verdict(config: pytest.Config, verdict: Verdict) -> None:
    for plugin in config.pluginmanager.get_plugins():
        if add := getattr(plugin, "add_global_property", None):
            for name, value in verdict_properties(verdict):
                add(name, value)
