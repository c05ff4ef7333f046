"""What `--summary-csv PATH` leaves: the rows, and beside them what the frozen CSV cannot hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.clock import now
from pytest_kopt.schema.table import Table, format_csv, write_atomically
from pytest_kopt.show.benchmark_json import benchmark_json


def write_rows(path: Path, table: Table, results: Sequence[CaseResult]) -> None:
    """Write the CSV, the cases' evidence, and pytest-benchmark's JSON."""
    write_atomically(path, format_csv(table.header, table.rows))
    evidence = json.dumps([asdict(result) for result in results], indent=1) + "\n"
    write_atomically(path.with_name(f"{path.name}.evidence.json"), evidence)
    benchmark = path.with_name(f"{path.name}.benchmark.json")
    write_atomically(benchmark, benchmark_json(results, now()))
