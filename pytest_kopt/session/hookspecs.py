"""The hook through which a verdict leaves a session; see docs/exports.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from pytest_kopt.cases.result import CaseResult
    from pytest_kopt.decide.verdict import Verdict


def pytest_kopt_verdict(
    config: pytest.Config, verdict: Verdict, results: Sequence[CaseResult]
) -> Sequence[str] | None:
    """Take over a verdict, in the process that decides, once it is recorded and carried out.

    `verdict.model_dump_json()` is what `--kopt-verdict` writes. `results` are the cases in the
    order of declaration, each with `nodeid`, `label`, `check`, `dims`, and `cells` by column. The
    returned lines are for the terminal. An implementation that raises is told there and changes
    neither the verdict nor the exit code.
    """
