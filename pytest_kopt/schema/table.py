"""Rows and tables: the CSV in memory, read, written, matched by dims, and grouped into classes."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from pytest_kopt.errors import BadInput, text_of
from pytest_kopt.schema.columns import Scalar, first_doubled, line

CHECKS = ("PASS", "FAIL", "ERROR")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf|[+-]?nan|[+-]?infinity"
)
Key = tuple[str, ...]
Case = TypeVar("Case")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the CSV; every cell is the text that stands in the file."""

    cells: Mapping[str, str]
    dims: Mapping[str, str]
    source: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        return self.cells["label"]

    @property
    def check(self) -> str:
        return self.cells["Check"]

    @property
    def key(self) -> Key:
        return tuple(self.dims.values())

    @property
    def typed_dims(self) -> dict[str, Scalar]:
        """The dims as numbers where their text is one: what JSON readers expect."""
        return {name: typed(text) for name, text in self.dims.items()}

    def number(self, column: str) -> float | None:
        """Return a metric cell as a float, None for an empty one or `-`; or raise BadInput."""
        text = self.cells[column].strip()
        if text in ("", "-"):
            return None
        if not _NUMBER.fullmatch(text):
            where = f"{self.source}: row {self.label!r}" if self.source else f"row {self.label!r}"
            raise BadInput(f"column {column!r} holds {text!r}", where=where, legal="a number")
        return float(text)


@dataclass(frozen=True, slots=True)
class Table:
    """A header and its rows, in case-declaration order; `source` is the file they come from."""

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    source: str = field(default="", compare=False)

    @property
    def dims(self) -> tuple[str, ...]:
        return self.header[1 : self.header.index("Check")]

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.header[self.header.index("Check") + 1 :]

    @property
    def passed(self) -> list[Row]:
        return [row for row in self.rows if row.check == "PASS"]

    def by_key(self) -> dict[Key, Row]:
        return {row.key: row for row in self.rows}

    def only(self, keys: Collection[Key]) -> Table:
        rows = tuple(row for row in self.rows if row.key in keys)
        return Table(self.header, rows, self.source)

    def check_unique(self, where: str) -> None:
        earlier: dict[Key, Row] = {}
        for row in self.rows:
            if (first := earlier.setdefault(row.key, row)) is not row:
                dims = ", ".join(f"{name}={value}" for name, value in row.dims.items())
                rows = f"rows {first.label!r} and {row.label!r} both have {dims or 'no dims'}"
                fix = "give each case its own combination of dims"
                raise BadInput(f"duplicate case: {rows}", where=where, fix=fix)


def cell(value: Scalar | None) -> str:
    """Return the CSV text of a value: floats as their shortest round-trip form, None empty."""
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, float):
        return repr(float(value))
    return str(int(value))


def typed(text: str) -> Scalar:
    """Return the number or truth value that a cell's text is, else the text."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return {"True": True, "False": False}.get(text, text)


def make_row(header: Sequence[str], values: Mapping[str, Scalar | None]) -> Row:
    cells = {name: cell(values.get(name)) for name in header}
    dims = header[1 : header.index("Check")]
    return Row(cells, {name: cells[name] for name in dims})


def format_csv(header: Sequence[str], rows: Iterable[Row]) -> str:
    lines = [header, *([row.cells[name] for name in header] for row in rows)]
    return "".join(map(line, lines))


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by a file holding `text`, or leave it as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes private files; a result is for everyone the umask lets read it.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_csv(path: Path) -> Table:
    """Read a frozen-schema CSV.

    Raises BadInput, naming the file, when it is missing, empty, cut off, ragged or lacks `label` or
    `Check`. So it does for a Check other than PASS, FAIL, ERROR and for two rows with the same
    dims.
    """
    return parse_csv(text_of(path), where=str(path))


def parse_csv(text: str, where: str) -> Table:
    """Parse the text of a frozen-schema CSV; see `read_csv`."""
    refused = partial(BadInput, where=where)
    if not text.strip():
        raise refused("is empty", legal="a header and at least one row")
    if not text.endswith("\n"):
        raise refused("is cut off: its last line has no line end")
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise refused(f"is no CSV: {error}") from None
    header, *records = (tuple(line) for line in lines)
    if not header or header[0] != "label" or "Check" not in header:
        what = f"header is {','.join(header)[:120]!r}"
        raise refused(what, legal="label,<dims>,Check,<metrics>")
    if doubled := first_doubled(header):
        raise refused(f"column {doubled!r} appears twice")
    if not records:
        raise refused("has a header but no rows", legal="at least one row")
    dims = header[1 : header.index("Check")]
    rows = []
    for number, record in enumerate(records, start=2):
        if len(record) != len(header):
            raise refused(f"line {number} has {len(record)} cells", legal=f"{len(header)} cells")
        cells = dict(zip(header, record, strict=True))
        if cells["Check"] not in CHECKS:
            raise refused(f"line {number} has Check {cells['Check']!r}", legal=CHECKS)
        rows.append(Row(cells, {name: cells[name] for name in dims}, where))
    table = Table(header, tuple(rows), where)
    table.check_unique(where)
    return table


def describe_header_drift(header: Sequence[str], frozen: Sequence[str]) -> str:
    """Say in one sentence how a header differs from the frozen one."""
    gone = [f"{name!r} is gone" for name in frozen if name not in header][:1]
    new = [f"{name!r} is new" for name in header if name not in frozen][:1]
    if gone or new:
        return f"the schema drifted: column {' and '.join(gone + new)}"
    columns = zip(header, frozen, strict=False)
    place = next(i for i, (left, right) in enumerate(columns) if left != right)
    return f"the schema drifted: column {place + 1} is {header[place]!r}, not {frozen[place]!r}"


@dataclass(frozen=True, slots=True)
class Classes:
    """The columns that tell classes apart, and a round's `target` class (None: all cases).

    `columns` are dims of the CSV: what a case was measured at does not say what it is. Without
    columns there are no classes. A class is named `num_kv_heads=16` or `head_dim=64, causal=True`.
    """

    columns: tuple[str, ...] = ()
    target: str | None = None

    def check_columns(self, dims: Collection[str]) -> None:
        """Raise BadInput, naming the dims, for a column that is none of them."""
        legal = list(dims) or "no dim"
        for column in self.columns:
            if column not in dims:
                raise BadInput(f"{column!r} is no dim of the cases", where="classes", legal=legal)

    def group(self, cases: Mapping[Case, Mapping[str, Scalar]]) -> dict[str, list[Case]]:
        """Return the cases, given each one's dims, by their class's name, as classes appear."""
        groups: dict[str, list[Case]] = {}
        if not self.columns:
            return groups
        for case, dims in cases.items():
            self.check_columns(dims)
            name = ", ".join(f"{column}={cell(dims[column])}" for column in self.columns)
            groups.setdefault(name, []).append(case)
        return groups

    def common(self, dims: Mapping[str, Scalar]) -> dict[str, Scalar]:
        return {column: dims[column] for column in self.columns}

    def target_among(self, names: Iterable[str]) -> str | None:
        """Return the target by its full name, None without one; BadInput for no class."""
        if self.target is None:
            return None
        by_parts = {frozenset(map(str.strip, name.split(","))): name for name in names}
        parts = frozenset(map(str.strip, self.target.split(",")))
        if parts not in by_parts:
            legal = "classes of the baseline, by the columns that the key `classes` names"
            what = f"{self.target!r} is no class"
            raise BadInput(what, where="target_class", legal=list(by_parts.values()) or legal)
        return by_parts[parts]


NO_CLASSES = Classes()
