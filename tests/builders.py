"""What several tests build: tables, manifests, ledgers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import settings

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.cases.case import Case
from pytest_kopt.cases.order import Bench
from pytest_kopt.cases.result import ExpectedCase
from pytest_kopt.decide.inference import log_ratio
from pytest_kopt.decide.known_noise import Noise
from pytest_kopt.decide.series import UNDER_SKEW, Series, SeriesTable
from pytest_kopt.decide.verdict import Aggregate, Decision
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.schema.metrics import Metric
from pytest_kopt.schema.table import Row, Table, format_csv, make_row

GEMM_HEADER = (
    "label,B,M,N,K,Check,Forward TFLOPS,Forward TFLOPS_stddev,Backward TFLOPS,"
    "Backward TFLOPS_stddev,Forward Time (ms),Backward Time (ms),out_snr,da_snr,db_snr"
)
NOW = "2026-11-20 10:15"

#: Examples may take their time on a busy machine; what matters is how many there are.
few_examples = settings(max_examples=40)


def gemm_row(
    size: int,
    forward: float,
    backward: float | None = None,
    *,
    check: str = "PASS",
    label: str | None = None,
) -> Row:
    """Return the row of a size³ GEMM with these TFLOPS."""
    flops = 2.0 * size**3
    values: dict[str, Any] = {
        "label": label or f"case{size}",
        "B": 1,
        "M": size,
        "N": size,
        "K": size,
        "Check": check,
        "Forward TFLOPS": forward,
        "Forward TFLOPS_stddev": 0.1,
        "Forward Time (ms)": _milliseconds(flops, forward),
        "out_snr": 40.0,
    }
    if backward is not None:
        values |= {
            "Backward TFLOPS": backward,
            "Backward TFLOPS_stddev": 0.1,
            "Backward Time (ms)": _milliseconds(2 * flops, backward),
            "da_snr": 40.0,
            "db_snr": 40.0,
        }
    return make_row(GEMM_HEADER.split(","), values)


def gemm_table(
    forward: Sequence[float],
    backward: Sequence[float] | None = None,
    *,
    checks: Sequence[str] | None = None,
) -> Table:
    """Return a GEMM table whose i-th case is of size 256·(i+1)."""
    rows = [
        gemm_row(
            256 * (i + 1),
            rate,
            backward[i] if backward is not None else None,
            check=checks[i] if checks is not None else "PASS",
        )
        for i, rate in enumerate(forward)
    ]
    return table_of(rows)


def table_of(rows: Sequence[Row]) -> Table:
    """Return the GEMM table of these rows."""
    return Table(tuple(GEMM_HEADER.split(",")), tuple(rows))


def metric_table(column: str, values: Sequence[float], *, extra: str = "") -> Table:
    """Return a table with the dim M and one metric column (and `extra` ones, comma-separated)."""
    header = ["label", "M", "Check", column, *filter(None, extra.split(","))]
    rows = [
        make_row(header, {"label": f"case{i}", "M": i, "Check": "PASS", column: value})
        for i, value in enumerate(values)
    ]
    return Table(tuple(header), tuple(rows))


def write_table(path: Path, table: Table) -> Path:
    """Write a table as a CSV file and return its path."""
    path.write_text(format_csv(table.header, table.rows), newline="")
    return path


def _milliseconds(flops: float, tflops: float) -> float:
    return flops / (tflops * 1e9) if math.isfinite(tflops) and tflops > 0 else math.nan


def manifest_document(**changes: Any) -> dict[str, Any]:
    """Return the shortest legal manifest with some keys changed."""
    return {
        "target_op": "softmax",
        "target_backend": "TRITON",
        "target_gpu": "H200",
        "kernel_source": ["kernels/softmax.py"],
        "created": NOW,
        **changes,
    }


def a_bench(
    case: Case,
    *,
    accuracy: Mapping[str, Accuracy] | None = None,
    by_torch: str = "",
    bitwise_stable: bool = False,
    seed: int = 20260101,
    freezes: bool = False,
    **more: Any,
) -> Bench:
    """Return where a case is checked that a baseline with this accuracy froze, or now freezes."""
    known = {
        "accuracy": dict(accuracy or {}),
        "by_torch": by_torch,
        "bitwise_stable": bitwise_stable,
    }
    frozen = ExpectedCase(case.nodeid, case.label, case.header, case.dims, **known)  # type: ignore[arg-type]
    more = {"decides": True, **more}
    return Bench("cpu", "auto", seed, expected=None if freezes else (frozen,), **more)


def series_table(
    cases: Iterable[Series], metric: str = "step", noise: Noise | None = None, **more: Any
) -> SeriesTable:
    """Return the table of cases by one metric."""
    by_metric = Metric(metric, "higher")
    series = (replace(case, metric=by_metric, noise=noise) for case in cases)
    return SeriesTable(tuple(series), **more)


def paired_evidence(
    *changes: float, look: int = 4, spread: float = 0.05, metric: str = "step speed", **more: Any
) -> SeriesTable:
    """Cases that changed by so many percent, give or take `spread` from process to process."""
    wobble = [spread * (1 if i % 2 else -1) for i in range(look)]
    cases = (
        Series(f"case{i}", f"case{i}", {"M": i}, tuple(log_ratio(change + w) for w in wobble))
        for i, change in enumerate(changes)
    )
    return series_table(cases, metric, **more)


def by_metrics(*tables: SeriesTable) -> SeriesTable:
    """Return the table of the same cases by several metrics."""
    series = (
        replace(one, metric=Metric(f"{one.metric.name} {i}", "higher"))
        for i, table in enumerate(tables)
        for one in table.series
    )
    return replace(tables[0], series=tuple(series))


def with_skew(declared: SeriesTable, uneven: SeriesTable) -> SeriesTable:
    """Return a table with what its cases gain where the group sizes are drawn once more."""
    series = (replace(one, kind=UNDER_SKEW) for one in uneven.series)
    return replace(declared, series=(*declared.series, *series))


def decided(
    round: int,
    decision: Decision,
    *,
    attempt: int = 1,
    change_pct: float | None = None,
    trend: ledger.Trend | None = None,
    paired: ledger.PairedChange | None = None,
    notes: Notes | None = None,
) -> ledger.Decided:
    """Return the event of a verdict."""
    total = None
    if change_pct is not None:
        total = Aggregate(metric="Forward TFLOPS", change_pct=change_pct)
    return ledger.Decided(
        time=NOW,
        round=round,
        attempt=attempt,
        decision=decision,
        reason=f"why round {round} is {decision}",
        aggregate=total,
        trend=trend,
        paired=paired,
        notes=notes or Notes(),
        kernel={"kernels/softmax.py": "0" * 64},
        verdict_sha256="1" * 64,
    )


def attempt_events(
    round: int,
    decision: Decision,
    *,
    attempt: int = 1,
    trend: ledger.Trend | None = None,
    paired: ledger.PairedChange | None = None,
    notes: Notes | None = None,
) -> list[ledger.AnyEvent]:
    """Return every event of an attempt that was decided and, where due, carried out."""
    place: dict[str, Any] = {"time": NOW, "round": round, "attempt": attempt}
    events: list[ledger.AnyEvent] = [
        ledger.Opened(**place),
        ledger.Measured(evidence={f"rounds/round-{round}/evidence.json": "2" * 64}, **place),
        decided(round, decision, attempt=attempt, trend=trend, paired=paired, notes=notes),
    ]
    if not decision.leaves_open:
        events += [
            ledger.Applying(action="commit" if decision.keeps else "restore", **place),
            ledger.Applied(git_commit="3" * 40, **place),
        ]
    return events
