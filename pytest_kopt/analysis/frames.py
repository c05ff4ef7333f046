"""`pytest_kopt.load`: campaigns as data frames.

pandas comes with the extra `analysis` and is imported when a campaign is loaded, not before.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_kopt.analysis.records import (
    CONDITIONS,
    KEYS,
    OF_CASE,
    PROFILES,
    TOTAL,
    TREND,
    CampaignRecords,
    Record,
    unit_of,
)
from pytest_kopt.campaign.attempt import PAIR_COLUMNS
from pytest_kopt.campaign.git.worktrees import choose_campaign
from pytest_kopt.campaign.layout import Layout, find
from pytest_kopt.errors import BadInput
from pytest_kopt.options.project import Project
from pytest_kopt.schema.table import write_atomically

if TYPE_CHECKING:
    from pandas import DataFrame

Format = Literal["csv", "parquet"]

#: Columns of `rounds` by the one that holds their unit, which is the schema's.
_BY_UNIT = {"unit": ("incumbent", "candidate"), "trend_unit": TREND}


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
    pandas = _needed("pandas")
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
        _needed("pyarrow")
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
            raise BadInput(what, where="load", legal="one of them, or a copy under another name")
    return list(layouts.values())


def _needed(package: str) -> Any:
    """Import a package of the extra `analysis`; BadInput where it is missing."""
    try:
        return import_module(package)
    except ImportError:
        legal = "pip install 'pytest-kopt[analysis]'"
        raise BadInput(f"{package} is not installed", where="analysis", legal=legal) from None
