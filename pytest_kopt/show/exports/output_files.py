"""The files of `--summary-csv PATH`: rows, evidence, and timings as pytest-benchmark's JSON."""

from __future__ import annotations

import json
import math
import platform
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_kopt.cases.result import CaseResult, operation, table_of
from pytest_kopt.clock import now
from pytest_kopt.schema.table import format_csv, write_atomically

#: The release of pytest-benchmark whose format this is; itself it writes none under xdist.
FORMAT = "5.1.0"


def rows_by_test(folder: Path, results: Sequence[CaseResult]) -> dict[Path, list[CaseResult]]:
    """Return the rows of each CSV in a folder: one for each test function, named after it."""
    tests: dict[str, list[CaseResult]] = {}
    for result in results:
        tests.setdefault(result.nodeid.partition("[")[0], []).append(result)
    shared = Counter(map(operation, tests))
    names = {test: operation(test) if shared[operation(test)] == 1 else test for test in tests}
    return {
        folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', names[test])}.csv": rows
        for test, rows in tests.items()
    }


def write_rows(files: Mapping[Path, Sequence[CaseResult]]) -> None:
    """Write the CSV of these rows at each path; BadInput where their columns do not fit."""
    for file, members in files.items():
        # Rows of tests that failed early whose dims were guessed, and guessed wrong, are left out.
        sure = [result for result in members if not result.evidence.guessed]
        header = (sure or members)[0].header
        rows = [r for r in members if not r.evidence.guessed or r.header == header]
        table = table_of(rows)
        assert table is not None
        evidence = json.dumps([result.to_document() for result in rows], indent=1) + "\n"
        for ending, text in (
            ("", format_csv(table.header, table.rows)),
            (".evidence.json", evidence),
            (".benchmark.json", benchmark_json(rows)),
        ):
            write_atomically(file.with_name(f"{file.name}{ending}"), text)


def benchmark_json(results: Sequence[CaseResult]) -> str:
    """Return the text on the timed cases."""
    uname = platform.uname()
    document = {
        "machine_info": {
            **{name: getattr(uname, name) for name in ("node", "processor", "machine")},
            "python_implementation": platform.python_implementation(),
            "python_version": platform.python_version(),
            **{name: getattr(uname, name) for name in ("system", "release")},
            "cpu": {},
        },
        "commit_info": {"id": "unversioned"},
        "benchmarks": [entry for result in results for entry in _entries(result)],
        "datetime": now(),
        "version": FORMAT,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _entries(result: CaseResult) -> Iterator[dict[str, Any]]:
    for way in ("forward", "backward"):
        samples = result.evidence.samples_ms(way)
        if not samples or result.evidence.interpreted:
            continue
        cells = {
            name: value
            for name, value in result.cells.items()
            if value is not None and not (isinstance(value, float) and not math.isfinite(value))
        }
        name = result.nodeid.rpartition("::")[2]
        yield {
            "group": way,
            "name": f"{name} {way}",
            "fullname": f"{result.nodeid} {way}",
            "params": result.dims,
            "param": None,
            "extra_info": {"label": result.label, "check": result.check, **cells},
            "options": {"timer": result.evidence.engine or ""},
            "stats": _stats([ms / 1e3 for ms in samples], result.evidence.calls_per_sample or 1),
        }


def _stats(seconds: Sequence[float], iterations: int) -> dict[str, Any]:
    """Return the statistics of samples, each the mean of `iterations` calls."""
    ordered = sorted(seconds)
    one = len(ordered) == 1
    mean = statistics.fmean(ordered)
    spread = 0.0 if one else statistics.stdev(ordered)
    low, median, high = ordered * 3 if one else statistics.quantiles(ordered, method="inclusive")
    iqr = high - low
    inside = [x for x in ordered if low - 1.5 * iqr <= x <= high + 1.5 * iqr]
    far = sum(abs(x - mean) > spread for x in ordered)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": spread,
        "rounds": len(ordered),
        "median": median,
        "iqr": iqr,
        "q1": low,
        "q3": high,
        "iqr_outliers": len(ordered) - len(inside),
        "stddev_outliers": far,
        "outliers": f"{far};{len(ordered) - len(inside)}",
        "ld15iqr": min(inside),
        "hd15iqr": max(inside),
        "ops": 1 / mean if mean else 0.0,
        "total": math.fsum(ordered),
        "data": list(seconds),
        "iterations": iterations,
    }
