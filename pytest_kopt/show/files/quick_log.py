"""artifacts/quick_baseline.log: the quick level's cases as the baseline measured them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.show.terminal import result_lines


def quick_log(manifest: Manifest, results: Sequence[CaseResult]) -> str:
    """Return the table that quick_test_bench.py ends with, of these results."""
    ids = levels.quick_ids(manifest, levels.names(results))
    chosen = [result for result in results if result.nodeid in ids]
    return "".join(f"{line}\n" for line in result_lines(chosen, None))
