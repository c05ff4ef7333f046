"""The program behind quick_test_bench.py: checks and measures the quick level, judges nothing."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.cases.result import names
from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options.declare import LOADED_BEFORE
from pytest_kopt.options.project import Project

SCRIPT = '''\
"""Checks and measures this campaign's quick level; judges and records nothing.

Run it in the project: python {path} --summary-csv rows.csv
"""

import sys
from pathlib import Path

from pytest_kopt.cli.quick_bench import main

sys.exit(main(Path(__file__).resolve().parent, sys.argv[1:]))
'''


def script(root: Path, path: Path) -> tuple[str, str]:
    name = Path(os.path.relpath(path, root)).as_posix()
    return SCRIPT.format(path=name), f"python {shlex.quote(name)}"


def main(directory: Path, words: Sequence[str]) -> int:
    """Run the quick level of the campaign in `directory`; return pytest's exit code."""
    parser = argparse.ArgumentParser(description="Check and measure the quick level; judge nothing")
    parser.add_argument("--summary-csv", type=Path, metavar="PATH", help="write the rows there")
    parser.add_argument("--repeats", metavar="N", help="samples of a case (default: 3)")
    parser.add_argument(
        "--iters-per-repeat", metavar="N", help="calls in a sample on the CPU (default: up to 50)"
    )
    arguments = parser.parse_args(words)
    try:
        campaign, cases = _campaign_and_cases(directory)
    except BadInput as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return ExitCode.USAGE
    os.environ.update(campaign.manifest.env)
    options = {
        "--kopt-engine": campaign.manifest.engine,
        "--summary-csv": arguments.summary_csv,
        "--kopt-repeats": arguments.repeats,
        "--kopt-iters-per-repeat": arguments.iters_per_repeat,
    }
    named = [f"{name}={value}" for name, value in options.items() if value is not None]
    return int(pytest.main([*named, *cases, *LOADED_BEFORE]))


def _campaign_and_cases(directory: Path) -> tuple[Campaign, list[str]]:
    """Return pytest's arguments too: the quick level's node ids, before the baseline all tests."""
    project = Project.here()
    if project.workspace.resolve() != directory.parent:
        what = f"{Path.cwd()} is not the project of this campaign"
        fix = f"change to a folder of the project around {directory.parent}"
        raise BadInput(what, where="quick_test_bench.py", fix=fix)
    campaign = project.campaign(directory.name)
    if campaign.state.baseline is None:
        return campaign, shlex.split(campaign.manifest.tests)
    cases = names(campaign.expected_cases().values())
    ids = levels.quick_ids(campaign.manifest, cases)
    return campaign, [str(campaign.root / nodeid) for nodeid in ids]
