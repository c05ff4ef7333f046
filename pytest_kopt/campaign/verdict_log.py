"""A file of verdicts, one a line: what `--kopt-verdict NAME.jsonl` appends to, night by night."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_kopt.clock import now
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.documents import validate
from pytest_kopt.errors import BadInput
from pytest_kopt.models import Document

#: How the name of such a file ends.
SUFFIX = ".jsonl"


class LoggedVerdict(Document):
    """A line: a verdict, when it was written, and the commit of the tree that it is about."""

    time: str
    commit: str | None
    verdict: Verdict


def append(path: Path, verdict: Mapping[str, Any], commit: str | None) -> None:
    """Append a line; one that a killed session left unfinished is ended first."""
    line = json.dumps({"time": now(), "commit": commit, "verdict": verdict}, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as stream:
        stream.seek(0, 2)
        if stream.tell():
            stream.seek(-1, 2)
            line = line if stream.read(1) == b"\n" else f"\n{line}"
        stream.write(f"{line}\n".encode())


def read(path: Path) -> list[LoggedVerdict]:
    """Return the verdicts; BadInput for a file without any, and for a line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path)) from None
    logged = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        try:
            document = json.loads(line)
        except ValueError as error:
            raise BadInput(f"is no JSON: {error}", where=where, fix="delete the line") from None
        logged.append(validate(LoggedVerdict, document, where=where))
    if not logged:
        fix = f"pytest --kopt-base REF --kopt-verdict {path.name}"
        raise BadInput("contains no verdict yet", where=str(path), fix=fix)
    return logged
