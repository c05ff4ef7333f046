"""What a finished session leaves for reviewers and their tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.schema.table import write_atomically
from pytest_kopt.show import github, junit
from pytest_kopt.show.comment import comment


def publish(
    verdict: Verdict,
    comment_path: Path | None,
    environ: Mapping[str, str],
    manager: pytest.PytestPluginManager,
) -> Iterator[str]:
    """Write comment, step summary and JUnit properties; yield what could not be written.

    The verdict has been carried out by now, so a full disk here is told and changes nothing.
    """
    markdown = comment(verdict)
    junit.describe_suite(manager, verdict)
    try:
        if comment_path is not None:
            write_atomically(comment_path, markdown)
    except OSError as error:
        yield f"--kopt-comment could not be written: {error}"
    try:
        github.append_summary(environ, markdown)
    except OSError as error:
        yield f"GITHUB_STEP_SUMMARY could not be written: {error}"
