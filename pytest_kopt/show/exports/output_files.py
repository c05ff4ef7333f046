"""The files of `--summary-csv PATH`: the rows, and beside them what the frozen CSV cannot hold."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from pytest_kopt.cases.result import CaseResult, table_of
from pytest_kopt.clock import now
from pytest_kopt.schema.table import Table, format_csv, write_atomically
from pytest_kopt.show.exports.benchmark_json import benchmark_json


def write_all_rows(path: Path, results: Sequence[CaseResult], *, per_schema: bool) -> None:
    """Write the CSV at `path`; with `per_schema` one for each schema, in the directory `path`.

    Raises BadInput when the rows of one CSV do not have the same columns.
    """
    # A case that died knows its columns, not always the name of its schema.
    names = {result.header: result.schema for result in results if result.schema}
    groups: dict[Path, list[CaseResult]] = {}
    for result in results:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", names.get(result.header, "rows"))
        groups.setdefault(path / f"{name}.csv" if per_schema else path, []).append(result)
    for file, members in groups.items():
        kept = _fitting(members)
        table = table_of(kept)
        if table is not None:
            write_rows(file, table, kept)


def _fitting(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Leave out rows of tests that failed early whose dims were guessed, and guessed wrong."""
    sure = [result for result in results if not result.evidence.guessed]
    header = (sure or list(results) or [CaseResult("")])[0].header
    return [r for r in results if not r.evidence.guessed or r.header == header]


def write_rows(path: Path, table: Table, results: Sequence[CaseResult]) -> None:
    """Write the CSV, the cases' evidence, and pytest-benchmark's JSON."""
    write_atomically(path, format_csv(table.header, table.rows))
    evidence = json.dumps([result.to_document() for result in results], indent=1) + "\n"
    write_atomically(path.with_name(f"{path.name}.evidence.json"), evidence)
    benchmark = path.with_name(f"{path.name}.benchmark.json")
    write_atomically(benchmark, benchmark_json(results, now()))
