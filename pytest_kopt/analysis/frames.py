"""`pytest_kopt.load`: campaigns as data frames.

pandas comes with the extra `analysis` and is imported when a campaign is loaded, not before.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.attempt import PAIR_COLUMNS, Attempt
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
    sources = [_judged(layout) for layout in _layouts(campaigns)]
    judged, missing = [round for source in sources for round in source], list[str]()
    rounds = _frame([record for source in sources for record in _rounds(source)])
    rounds["started"] = pandas.to_datetime(rounds["started"], format="%Y-%m-%d %H:%M")
    rows = _frame([*_rows(_evidence(judged, "benchmark.csv", missing))])
    pairs = [
        _read_pairs(text).assign(**_keys(attempt))
        for attempt, text in _evidence(judged, "pairs.csv", missing)
    ]
    together = pandas.concat(pairs, ignore_index=True) if pairs else pandas.DataFrame()
    return Frames(
        rounds=rounds,
        rows=rows,
        pairs=together.reindex(columns=[*KEYS, *PAIR_COLUMNS]),
        profiles=_frame([*_profiles(judged)], PROFILES),
        missing=tuple(missing),
    )


def _judged(layout: Layout) -> list[Round]:
    judged = fold(ledger.read(layout.ledger), layout).judged_rounds()
    if not judged:
        raise BadInput("no round is decided yet", where=f"campaign {layout.name}")
    return judged


def _keys(attempt: Attempt) -> Record:
    return dict(zip(KEYS, (attempt.layout.name, attempt.round, attempt.number), strict=True))


def _rounds(judged: Sequence[Round]) -> Iterator[Record]:
    gains = over_baseline(round.last.outcome() for round in judged)
    for round, gain in zip(judged, gains, strict=True):
        attempt, decided = round.last, round.last.outcome()
        total = decided.aggregate
        yield {
            **_keys(attempt),
            "attempts": len(round.attempts),
            "started": attempt.started,
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
            "git_commit": attempt.applied and attempt.applied.git_commit,
        }


def _rows(evidence: Iterable[tuple[Attempt, str]]) -> Iterator[Record]:
    for attempt, text in evidence:
        table = parse_csv(text, where=f"{attempt.layout.name}, round {attempt.round}")
        shapes = {tuple(case.dims.values()): case for case in attempt.verdict().shapes}
        for row in table.rows:
            case = shapes.get(tuple(row.typed_dims.values()))
            yield {
                **_keys(attempt),
                "label": row.label,
                **row.typed_dims,
                "Check": row.check,
                **{name: row.number(name) for name in table.metrics},
                **{name: getattr(case, name, None) for name in OF_CASE},
            }


def _profiles(judged: Sequence[Round]) -> Iterator[Record]:
    for attempt in (round.last for round in judged):
        for case in read_profiles(attempt.layout, attempt.round, attempt.number):
            of_case = {name: getattr(case, name) for name in _PROFILED}
            yield from ({**_keys(attempt), **of_case, **asdict(row)} for row in case.rows)


def _evidence(
    judged: Sequence[Round], name: str, missing: list[str]
) -> Iterator[tuple[Attempt, str]]:
    """Yield each last attempt with this file of its evidence; `missing` gets the ones gone."""
    for attempt in (round.last for round in judged):
        text, key = attempt.text(name), attempt.key(name)
        if text is not None:
            yield attempt, text
        elif key in attempt.hashes:
            missing.append(f"{attempt.layout.name}/{key}")


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
