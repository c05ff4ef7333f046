"""`pytest_kopt.load`: campaigns as data frames.

pandas comes with the extra `analysis` and is imported when a campaign is loaded, not before.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.attempt import PAIR_COLUMNS
from pytest_kopt.campaign.git.worktrees import choose_campaign
from pytest_kopt.campaign.history.trend import over_baseline
from pytest_kopt.campaign.layout import Layout, find
from pytest_kopt.campaign.state import Round, fold
from pytest_kopt.errors import BadInput, of_extra
from pytest_kopt.figures import CHANGE
from pytest_kopt.options.project import Project
from pytest_kopt.profiling.kernel_table import KernelRow
from pytest_kopt.schema.table import parse_csv, write_atomically
from pytest_kopt.show.rooflines import read_profiles

if TYPE_CHECKING:
    from pandas import DataFrame

Record = dict[str, Any]

KEYS = ("campaign", "round", "attempt")
#: Fields that columns are named after: of the aggregate, and of a case in the verdict.
TOTAL = ("incumbent", "candidate", *CHANGE, "confidence")
OF_CASE = (*CHANGE, "status", "device")
_PROFILED = ("nodeid", "label", "tool", "on", "steps")
PROFILES = (*_PROFILED, *(column.name for column in fields(KernelRow)))
_NUMBERS_OF_PAIRS = ("candidate_ms", "incumbent_ms", "clocks")


class CampaignRecords:
    """One campaign's files as records; `missing` grows as they are read."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        rounds = fold(ledger.read(layout.ledger), layout).rounds
        judged = (round for _, round in sorted(rounds.items()) if round.verdict)
        self._decided = [(round, round.last.outcome()) for round in judged]
        if not self._decided:
            raise BadInput("no round is decided yet", where=f"campaign {layout.name}")
        self.missing: list[str] = []

    def rounds(self) -> Iterator[Record]:
        gains = over_baseline(decided for _, decided in self._decided)
        for (round, decided), gain in zip(self._decided, gains, strict=True):
            total = decided.aggregate
            yield {
                **self._keys(round),
                "attempts": len(round.attempts),
                "started": round.last.started,
                "level": decided.level,
                "decision": str(decided.decision),
                "kept": decided.decision.keeps,
                "reason": decided.reason,
                "metric": total and total.metric,
                **{name: getattr(total, name, None) for name in TOTAL},
                **{f"over_baseline_{name}": pct for name, pct in zip(CHANGE, gain, strict=True)},
                "flags": "; ".join(decided.flags),
                "summary": round.notes.title,
                "bucket": round.notes.bucket,
                "git_commit": round.last.applied and round.last.applied.git_commit,
            }

    def rows(self) -> Iterator[Record]:
        for round, text in self._kept("benchmark.csv"):
            table = parse_csv(text, where=f"{self._layout.name}, round {round.number}")
            shapes = {tuple(case.dims.values()): case for case in round.last.verdict().shapes}
            for row in table.rows:
                case = shapes.get(tuple(row.typed_dims.values()))
                yield {
                    **self._keys(round),
                    "label": row.label,
                    **row.typed_dims,
                    "Check": row.check,
                    **{name: row.number(name) for name in table.metrics},
                    **{name: getattr(case, name, None) for name in OF_CASE},
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


@dataclass(frozen=True, slots=True)
class Frames:
    """Campaigns as data frames; every one begins with the columns campaign, round and attempt.

    A round stands there with its latest verdict and the attempt that it is of. Changes are in
    percent, positive is better.

    - `rounds`: a row a decided round. `over_baseline_change_pct` is the kept gains' product with
      its own.
    - `rows`: a row a case, with the columns of benchmark.csv under their names, then the case's
      change against the incumbent, its status and its device.
    - `pairs`: a row a pair, as in pairs.csv.
    - `profiles`: a row a kernel of a profiled case.

    `missing` are the files of evidence that a ledger names and that are not there any more.
    """

    rounds: DataFrame
    rows: DataFrame
    pairs: DataFrame
    profiles: DataFrame
    missing: tuple[str, ...] = ()


def load(*campaigns: str | Path) -> Frames:
    """Return campaigns as data frames; a session may run meanwhile.

    A campaign is a name in the workspace of the project around the current directory, or the path
    of its directory (text with a slash is one). None: the branch's, or the only one.

    Raises BadInput for a campaign that is not there or has no decided round, for evidence that is
    not what the ledger names, and for two campaigns of one name. It also does without pandas.
    """
    pandas = of_extra("analysis", "pandas")
    sources = [CampaignRecords(layout) for layout in _layouts(campaigns)]
    rounds = _frame([record for source in sources for record in source.rounds()])
    rounds["started"] = pandas.to_datetime(rounds["started"], format="%Y-%m-%d %H:%M")
    rows = [record for source in sources for record in source.rows()]
    pairs = [
        _read_pairs(text).assign(**keys) for source in sources for keys, text in source.pairs()
    ]
    together = pandas.concat(pairs, ignore_index=True) if pairs else pandas.DataFrame()
    profiles = [record for source in sources for record in source.profiles()]
    return Frames(
        rounds=rounds,
        rows=_frame(rows),
        pairs=together.reindex(columns=[*KEYS, *PAIR_COLUMNS]),
        profiles=_frame(profiles, PROFILES),
        missing=tuple(name for source in sources for name in source.missing),
    )


def export(frames: Frames, directory: Path) -> dict[Path, int]:
    """Write every frame as a CSV file; return the files with their rows."""
    directory.mkdir(parents=True, exist_ok=True)
    written = {}
    for name in ("rounds", "rows", "pairs", "profiles"):
        path, frame = directory / f"{name}.csv", getattr(frames, name)
        write_atomically(path, frame.to_csv(index=False, lineterminator="\n"))
        written[path] = len(frame)
    return written


def _frame(records: Sequence[Record], columns: Sequence[str] = ("label",)) -> DataFrame:
    """Return records as a frame, whose `columns` are there without any record too."""
    import pandas

    return pandas.DataFrame(records, columns=None if records else [*KEYS, *columns])


def _read_pairs(text: str) -> DataFrame:
    """Return a pairs.csv as it is: labels are text, and floats are read to the last bit."""
    import pandas

    return pandas.read_csv(
        io.StringIO(text),
        dtype={"label": str, "device": str},
        keep_default_na=False,
        converters=dict.fromkeys(_NUMBERS_OF_PAIRS, lambda text: float(text or "nan")),
    )


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
