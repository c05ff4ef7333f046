"""A verdict handed to everyone who implements `pytest_kopt_verdict`: our exports, and others'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.show.exports import comment, github, junit

#: Ours are called first, in this order.
_EXPORTS = (comment, github, junit)


def publish(config: pytest.Config, verdict: Verdict, results: Sequence[CaseResult]) -> list[str]:
    """Return what every implementation has the terminal show; one that raises disturbs no other."""
    manager, lines = config.pluginmanager, list[str]()
    for module in reversed(_EXPORTS):
        if not manager.is_registered(module):
            manager.register(module, module.__name__)
    arguments = {"config": config, "verdict": verdict, "results": results}
    for hook in reversed(config.hook.pytest_kopt_verdict.get_hookimpls()):
        try:
            answer: Any = hook.function(*(arguments[name] for name in hook.argnames))
            lines += answer or ()
        except Exception as error:
            name = hook.plugin_name.rpartition("/")[2]
            lines.append(f"{name}: pytest_kopt_verdict: {type(error).__name__}: {error}")
    return lines
