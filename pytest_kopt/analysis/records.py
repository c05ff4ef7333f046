"""Ledger and evidence of one campaign as flat records: one dict for each fact."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.history.trend import over_baseline
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.state import Round, fold
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.errors import BadInput
from pytest_kopt.profiling.kernel_table import KernelRow
from pytest_kopt.schema.metrics import RATE_UNITS
from pytest_kopt.schema.table import parse_csv
from pytest_kopt.show.profiles import read_profiles

Record = dict[str, Any]

KEYS = ("campaign", "round", "attempt")
#: Fields that columns are named after: of the aggregate, of the trend, of a case in the verdict.
TOTAL = ("incumbent", "candidate", "change_pct", "low_pct", "high_pct", "confidence")
TREND = ("forward_average", "forward_peak", "backward_average", "backward_peak", "combined")
OF_CASE = ("change_pct", "low_pct", "high_pct", "status", "device")
_PROFILED = ("nodeid", "label", "tool", "on", "steps")
PROFILES = (*_PROFILED, *(column.name for column in fields(KernelRow)))
CONDITIONS = (
    *("label", "round_of_inference", "device", "measurement", "moment", "memory_mib"),
    *("utilisation_pct", "sm_mhz", "memory_mhz", "temperature_c", "power_w", "throttle", "flags"),
)
#: Units by the end of a column's name; a metric may also have its unit in brackets.
_UNITS = {
    **dict(zip(RATE_UNITS, RATE_UNITS, strict=True)),
    "_pct": "%",
    "_ms": "ms",
    "_us": "us",
    "_mhz": "MHz",
    "clocks": "MHz",
    "_mib": "MiB",
    "_bytes": "B",
    "_c": "°C",
    "_w": "W",
    "_snr": "dB",
}
_IN_BRACKETS = re.compile(r"\((ns|us|µs|ms|s)\)$")


def unit_of(column: str) -> str | None:
    """Return the unit that a column's name tells, such as ms or TFLOPS; None for another column."""
    name = column.removesuffix("_stddev")
    unit = _IN_BRACKETS.search(name)
    if unit:
        return unit[1]
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)


class CampaignRecords:
    """One campaign's files as records; `missing`, `dims` and `metrics` grow as they are read."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        rounds = fold(ledger.read(layout.ledger), layout).rounds
        judged = (round for _, round in sorted(rounds.items()) if round.verdict)
        self._decided = [(round, round.last.outcome()) for round in judged]
        if not self._decided:
            raise BadInput("no round is decided yet", where=f"campaign {layout.name}")
        self.missing: list[str] = []
        self.dims: set[str] = set()
        self.metrics: set[str] = set()

    def rounds(self) -> Iterator[Record]:
        gains = over_baseline(decided for _, decided in self._decided)
        for (round, decided), gain in zip(self._decided, gains, strict=True):
            total, trend, notes = decided.aggregate, decided.trend, round.notes
            yield {
                **self._keys(round),
                "attempts": len(round.attempts),
                "started": round.last.started,
                "level": decided.level,
                "decision": str(decided.decision),
                "kept": decided.decision.keeps,
                "reason": decided.reason,
                "metric": total and total.metric,
                "unit": total and unit_of(total.metric),
                **{name: getattr(total, name, None) for name in TOTAL},
                **{f"over_baseline_{name}": value for name, value in asdict(gain).items()},
                "trend_unit": trend and unit_of(trend.unit),
                **{name: getattr(trend, name, None) for name in TREND},
                "kernel_time_us": decided.kernel_time and decided.kernel_time.candidate_us,
                "attainable_pct": decided.efficiency and decided.efficiency.pct,
                "flags": "; ".join(decided.flags),
                "summary": notes.title,
                "bucket": notes.bucket,
                "git_commit": round.last.applied and round.last.applied.git_commit,
            }

    def rows(self) -> Iterator[Record]:
        for round, text in self._kept("benchmark.csv"):
            table = parse_csv(text, where=f"{self._layout.name}, round {round.number}")
            clashes = sorted({*KEYS, *OF_CASE}.intersection(table.header))
            if clashes:
                raise BadInput(f"column {clashes[0]!r} is the frame's own", where=table.source)
            self.dims.update(table.dims)
            self.metrics.update(table.metrics)
            verdict = round.last.verdict()
            shapes = {tuple(shape.dims.values()): shape for shape in verdict.shapes}
            for row in table.rows:
                shape = shapes.get(tuple(row.typed_dims.values()))
                yield {
                    **self._keys(round),
                    "label": row.label,
                    **row.typed_dims,
                    "Check": row.check,
                    **{name: row.number(name) for name in table.metrics},
                    **{name: getattr(shape, name, None) for name in OF_CASE},
                }

    def pairs(self) -> Iterator[tuple[Record, str]]:
        """Yield what a round's pairs have in common, and the text of its pairs.csv."""
        for round, text in self._kept("pairs.csv"):
            yield self._keys(round), text

    def profiles(self) -> Iterator[Record]:
        for round, _ in self._decided:
            for case in read_profiles(self._layout, round.number, round.last.number):
                of_case = {name: getattr(case, name) for name in _PROFILED}
                for row in case.rows:
                    yield {**self._keys(round), **of_case, **asdict(row)}

    def conditions(self) -> Iterator[Record]:
        for round, text in self._kept("evidence.json"):
            document = json.loads(text)
            measured = document["session"].get("comparison", {}).get("measured", [])
            for result in reversed([CaseResult.from_json(case) for case in document["results"]]):
                case_keys = {"label": result.label, "device": result.evidence.device}
                around = result.evidence.conditions
                facts = around.to_document() if around else {}
                measured.insert(0, {**facts, **case_keys, "round_of_inference": 0})
            for measurement in measured:
                for moment in ("before", "after"):
                    facts = {**measurement, **measurement.get(moment, {}), "moment": moment}
                    if moment in measurement:
                        facts["throttle"] = ", ".join(facts["throttle"])
                        facts["flags"] = "; ".join(facts["flags"])
                        yield {
                            **self._keys(round),
                            **{name: facts.get(name) for name in CONDITIONS},
                        }

    def _keys(self, round: Round) -> Record:
        return dict(zip(KEYS, (self._layout.name, round.number, round.last.number), strict=True))

    def _kept(self, name: str) -> Iterator[tuple[Round, str]]:
        """Yield each round with this file of its evidence; one that is gone counts as missing."""
        for round, _ in self._decided:
            text, key = round.last.text(name), round.last.key(name)
            if text is not None:
                yield round, text
            elif key in round.last.hashes:
                self.missing.append(f"{self._layout.name}/{key}")
