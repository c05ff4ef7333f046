"""The evidence of a campaign on disk: written once per attempt, read back only as recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.state import Attempt
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.verdict import Applied, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.table import Table, format_csv, parse_csv, write_atomically


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured, of which kernel, as it is kept.

    `table` is None when no row arrived; `pairs_csv` is that of a paired comparison; `session` is
    free-form evidence of the whole session; `benchmark_log` what benchmark_command printed.
    `candidates` are the versions of a race with the rows of their checks, by place.
    """

    kernel: KernelVersion
    results: Sequence[CaseResult]
    table: Table | None
    session: dict[str, Any]
    pairs_csv: str = ""
    benchmark_log: str = ""
    candidates: Sequence[tuple[KernelVersion, Table | None]] = ()


class Archive:
    """Reads raise BadInput for a file that is gone or is not the one the ledger names."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def keep(self, directory: Path, evidence: Evidence, verdict: Verdict) -> dict[str, str]:
        """Write evidence and verdict; return SHA-256 by path below the campaign, its last."""
        _set_aside(directory)
        evidence.kernel.write(directory / "kernel_snapshot")
        document = {
            "session": evidence.session,
            "results": [result.to_json() for result in evidence.results],
        }
        texts = {
            "evidence.json": json.dumps(document, indent=1) + "\n",
            "benchmark.csv": _csv(evidence.table),
            "pairs.csv": evidence.pairs_csv,
            "benchmark_command.log": evidence.benchmark_log,
        }
        for place, (kernel, table) in enumerate(evidence.candidates, start=1):
            kernel.write(directory / "candidates" / str(place) / "kernel_snapshot")
            texts[f"candidates/{place}/benchmark.csv"] = _csv(table)
        texts["verdict.json"] = verdict.model_dump_json(indent=1) + "\n"
        hashes = {}
        for name, text in texts.items():
            if text:
                write_atomically(directory / name, text)
                hashes[self._key(directory / name)] = _sha256(text.encode())
        return hashes

    def kernel(self, number: int, attempt: Attempt) -> KernelVersion:
        assert attempt.decided is not None
        directory = self._layout.attempt(number, attempt.number) / "kernel_snapshot"
        return KernelVersion.load(directory, attempt.decided.kernel)

    def kernel_paths(self, number: int, attempt: Attempt) -> dict[str, Path]:
        directory = self._layout.attempt(number, attempt.number) / "kernel_snapshot"
        return {path: directory / path for path in self.kernel(number, attempt).files}

    def table(self, number: int, attempt: Attempt) -> Table:
        path = self._layout.attempt(number, attempt.number) / "benchmark.csv"
        return parse_csv(self._read(attempt, path).decode(), where=str(path))

    def session(self, number: int, attempt: Attempt) -> dict[str, Any]:
        return dict(self._document(number, attempt)["session"])

    def results(self, number: int, attempt: Attempt) -> list[CaseResult]:
        return [CaseResult.from_json(text) for text in self._document(number, attempt)["results"]]

    def evidence(self, number: int, attempt: Attempt) -> Evidence:
        pairs = self._layout.attempt(number, attempt.number) / "pairs.csv"
        return Evidence(
            kernel=self.kernel(number, attempt),
            results=self.results(number, attempt),
            table=self.table(number, attempt),
            session=self.session(number, attempt),
            pairs_csv=self._read(attempt, pairs).decode() if pairs.exists() else "",
        )

    def verdict(self, number: int, attempt: Attempt) -> Verdict:
        """Return the verdict of an attempt as it was given.

        Where the attempt's own file is gone, the round's page of it is as good: only `applied` is
        added there, and without it the text has to be the one that the ledger names.
        """
        assert attempt.decided is not None
        path = self._layout.attempt(number, attempt.number) / "verdict.json"
        page = self._layout.verdict(number)
        if page.is_file() and not path.exists():
            path = page
            given = {**json.loads(_content(page)), "applied": Applied().model_dump()}
            text = f"{json.dumps(given, indent=1, ensure_ascii=False)}\n".encode()
        else:
            text = _content(path)
        if _sha256(text) != attempt.decided.verdict_sha256:
            raise BadInput("was changed since the ledger recorded it", where=str(path))
        return Verdict.model_validate_json(text)

    def found(self, number: int, attempt: Attempt, name: str) -> str | None:
        """Return a file of an attempt's evidence, where need be from the copy beside the attempts.

        None for one that was never written, and for one that is gone: a campaign that is shown to
        others may come without the bulk of its evidence.
        """
        own = self._layout.attempt(number, attempt.number) / name
        places = (own, self._layout.artifacts(number) / name)
        path = next((path for path in places if path.is_file()), None)
        if path is None or self._key(own) not in attempt.evidence:
            return None
        return self._read(attempt, path, self._key(own)).decode()

    def _document(self, number: int, attempt: Attempt) -> dict[str, Any]:
        path = self._layout.attempt(number, attempt.number) / "evidence.json"
        return dict(json.loads(self._read(attempt, path)))

    def _read(self, attempt: Attempt, path: Path, key: str | None = None) -> bytes:
        content = _content(path)
        if attempt.evidence.get(key or self._key(path)) != _sha256(content):
            raise BadInput("evidence was changed since the ledger recorded it", where=str(path))
        return content

    def _key(self, path: Path) -> str:
        return path.relative_to(self._layout.directory).as_posix()


def _csv(table: Table | None) -> str:
    return format_csv(table.header, table.rows) if table else ""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"evidence is gone: {error.strerror}", where=str(path)) from None


def _set_aside(directory: Path) -> None:
    """Move away what a killed session left under an attempt's name: evidence is never lost."""
    if directory.exists():
        taken = len(list(directory.parent.glob(f"{directory.name}.cut-off-*")))
        directory.rename(directory.with_name(f"{directory.name}.cut-off-{taken + 1}"))
