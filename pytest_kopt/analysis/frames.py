"""`pytest_kopt.load`: campaigns as data frames.

pandas comes with the extra `analysis` and is imported when a campaign is loaded, not before.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.attempt import PAIR_COLUMNS
from pytest_kopt.campaign.git.worktrees import choose_campaign
from pytest_kopt.campaign.history.trend import over_baseline
from pytest_kopt.campaign.layout import Layout, find
from pytest_kopt.campaign.state import Round, fold
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.errors import BadInput, of_extra
from pytest_kopt.options.project import Project
from pytest_kopt.profiling.kernel_table import KernelRow
from pytest_kopt.schema.metrics import RATE_UNITS
from pytest_kopt.schema.table import parse_csv, write_atomically
from pytest_kopt.show.rooflines import read_profiles

if TYPE_CHECKING:
    from pandas import DataFrame

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
Format = Literal["csv", "parquet"]
#: Columns of `rounds` by the one that holds their unit, which is the schema's.
_BY_UNIT = {"unit": ("incumbent", "candidate"), "trend_unit": TREND}


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
            trend, notes = decided.trend, round.notes
            yield {
                **self._keys(round),
                "attempts": len(round.attempts),
                "started": round.last.started,
                **_judged(decided),
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


def _judged(decided: ledger.Decided) -> Record:
    """Return what became of a round, and how its aggregate changed."""
    total = decided.aggregate
    return {
        "level": decided.level,
        "decision": str(decided.decision),
        "kept": decided.decision.keeps,
        "reason": decided.reason,
        "metric": total and total.metric,
        "unit": total and unit_of(total.metric),
        **{name: getattr(total, name, None) for name in TOTAL},
    }


@dataclass(frozen=True, slots=True)
class Frames:
    """Campaigns as data frames; every one begins with the columns campaign, round and attempt.

    A round stands there with its latest verdict and the attempt that it is of. Units are in
    `frame.attrs["units"]`, by column; changes are in percent, positive is better.

    - `rounds`: a row a decided round. `over_baseline_pct` is the kept gains' product with its own.
      Rates are in `unit` and `trend_unit`, which are in `attrs` too where all rows have the same.
    - `rows`: a row a case, with the columns of benchmark.csv under their names, then the case's
      change against the incumbent, its status and its device.
    - `pairs`: a row a pair, as in pairs.csv.
    - `profiles`: a row a kernel of a profiled case.
    - `conditions`: the device before and after each measurement; `round_of_inference` is 0 for the
      one behind the case's row.

    `missing` are the files of evidence that a ledger names and that are not there any more.
    """

    rounds: DataFrame
    rows: DataFrame
    pairs: DataFrame
    profiles: DataFrame
    conditions: DataFrame
    missing: tuple[str, ...] = ()

    def tables(self) -> dict[str, DataFrame]:
        return {frame.name: getattr(self, frame.name) for frame in fields(self)[:-1]}


def load(*campaigns: str | Path) -> Frames:
    """Return campaigns as data frames; a session may run meanwhile.

    A campaign is a name in the workspace of the project around the current directory, or the path
    of its directory (text with a slash is one). None: the branch's, or the only one.

    Raises BadInput for a campaign that is not there or has no decided round, for evidence that is
    not what the ledger names, and for two campaigns of one name. It also does without pandas.
    """
    pandas = of_extra("analysis", "pandas")
    sources = [CampaignRecords(layout) for layout in _layouts(campaigns)]

    def records(name: str) -> list[Any]:
        return [record for source in sources for record in getattr(source, name)()]

    def frame(name: str, columns: Sequence[str] = ()) -> DataFrame:
        return _typed(_untyped(records(name), columns))

    rounds = frame("rounds")
    rounds["started"] = pandas.to_datetime(rounds["started"], format="%Y-%m-%d %H:%M")
    for unit, columns in _BY_UNIT.items():
        if rounds[unit].nunique() == 1:
            rounds.attrs["units"] |= dict.fromkeys(columns, rounds[unit].dropna().iloc[0])
    rows = _untyped(records("rows"), ("label",))
    metrics = {name for source in sources for name in source.metrics}
    dims = {name for source in sources for name in source.dims}
    pairs = [_read_pairs(text).assign(**keys) for keys, text in records("pairs")]
    together = pandas.concat(pairs, ignore_index=True) if pairs else pandas.DataFrame()
    return Frames(
        rounds=rounds,
        rows=_typed(rows, metrics - dims),
        pairs=_typed(together.reindex(columns=[*KEYS, *PAIR_COLUMNS])),
        profiles=frame("profiles", PROFILES),
        conditions=frame("conditions", CONDITIONS),
        missing=tuple(name for source in sources for name in source.missing),
    )


def export(frames: Frames, directory: Path, format: Format | None = None) -> dict[Path, int]:
    """Write every frame as a file, and units.json; return the frames' files with their rows.

    Without a format it is Parquet where pyarrow is installed, else CSV. Raises BadInput for
    Parquet without pyarrow, before anything is written.
    """
    if format is None:
        format = "parquet" if find_spec("pyarrow") else "csv"
    if format == "parquet":
        of_extra("analysis", "pyarrow")
    directory.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, frame in frames.tables().items():
        path = directory / f"{name}.{format}"
        if format == "csv":
            write_atomically(path, frame.to_csv(index=False, lineterminator="\n"))
        else:
            frame.to_parquet(path, index=False, engine="pyarrow")
        written[path] = len(frame)
    units = {name: frame.attrs["units"] for name, frame in frames.tables().items()}
    text = json.dumps(units, indent=1, ensure_ascii=False)
    write_atomically(directory / "units.json", text + "\n")
    return written


def _untyped(records: Sequence[Record], columns: Sequence[str]) -> DataFrame:
    """Return records as a frame, whose `columns` are there without any record too."""
    import pandas

    names = dict.fromkeys(chain(KEYS, columns, *records))
    return pandas.DataFrame(records, columns=list(names))


def _read_pairs(text: str) -> DataFrame:
    """Return a pairs.csv as it is: labels are text, and floats are read to the last bit."""
    import pandas

    numbers = ("candidate_ms", "incumbent_ms", "clocks")
    return pandas.read_csv(
        io.StringIO(text),
        dtype={"label": str, "device": str},
        keep_default_na=False,
        converters={name: lambda text: float(text or "nan") for name in numbers},
    )


def _typed(frame: DataFrame, metrics: Collection[str] | None = None) -> DataFrame:
    """Note the units, and give columns the type that they have whatever is missing in them.

    In a frame with `metrics`, columns that are neither these nor ours are dims: their names tell no
    unit.
    """
    ours = frame.columns if metrics is None else {*metrics, *OF_CASE}
    own_columns = [name for name in frame.columns if name in ours]
    units = {name: unit for name in own_columns if (unit := unit_of(name))}
    numbers = [name for name in own_columns if name in {*units, *(metrics or ()), *TOTAL, *TREND}]
    rest = [name for name in frame.columns if name not in numbers]
    frame = frame.astype(dict.fromkeys(numbers, float))
    frame[rest] = frame[rest].convert_dtypes()
    frame.attrs["units"] = units
    return frame


def _layouts(campaigns: Sequence[str | Path]) -> list[Layout]:
    layouts: dict[str, Layout] = {}
    for named in campaigns or (None,):
        if isinstance(named, Path) or (named and "/" in named):
            path = Path(named).resolve()
            layout = find(path.parent, path.name)
        else:
            project = Project.here()
            layout = choose_campaign(named, project.root, project.workspace.resolve())
        earlier = layouts.setdefault(layout.name, layout)
        if earlier != layout:
            places = f"{earlier.directory}, {layout.directory}"
            what = f"two campaigns are named {layout.name!r}: {places}"
            raise BadInput(what, where="load", fix="load one of them, or a copy under another name")
    return list(layouts.values())
