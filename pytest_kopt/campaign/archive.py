"""The evidence of a campaign on disk: written once per attempt, read back only as recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_kopt.campaign.kernel import KernelVersion, sha256
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.ledger import Decided
from pytest_kopt.campaign.state import Attempt
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.verdict import Applied, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.table import Table, format_csv, parse_csv, write_atomically

#: The columns of pairs.csv.
PAIR_COLUMNS = (
    *("label", "round_of_inference", "comparison", "pair", "position"),
    *("candidate_ms", "incumbent_ms", "device", "clocks"),
)


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


def keep(layout: Layout, directory: Path, evidence: Evidence, verdict: Verdict) -> dict[str, str]:
    """Write evidence and verdict; return SHA-256 by path below the campaign, the verdict's last."""
    if directory.exists():  # what a killed session left under this name: evidence is never lost
        taken = len(list(directory.parent.glob(f"{directory.name}.cut-off-*")))
        directory.rename(directory.with_name(f"{directory.name}.cut-off-{taken + 1}"))
    evidence.kernel.write(directory / "kernel_snapshot")
    results = [result.to_json() for result in evidence.results]
    document = {"session": evidence.session, "results": results}
    texts = {
        "evidence.json": json.dumps(document, indent=1) + "\n",
        "benchmark.csv": _csv(evidence.table),
        "pairs.csv": evidence.pairs_csv,
        "benchmark_command.log": evidence.benchmark_log,
    }
    for number, (kernel, table) in enumerate(evidence.candidates, start=1):
        kernel.write(directory / "candidates" / str(number) / "kernel_snapshot")
        texts[f"candidates/{number}/benchmark.csv"] = _csv(table)
    texts["verdict.json"] = verdict.model_dump_json(indent=1) + "\n"
    texts = {name: text for name, text in texts.items() if text}
    for name, text in texts.items():
        write_atomically(directory / name, text)
    place = directory.relative_to(layout.directory).as_posix()
    return {f"{place}/{name}": sha256(text.encode()) for name, text in texts.items()}


@dataclass(frozen=True, slots=True)
class Kept:
    """What a decided attempt left; BadInput for a file that is gone, or not the ledger's."""

    layout: Layout
    number: int
    attempt: Attempt

    @property
    def directory(self) -> Path:
        return self.layout.attempt(self.number, self.attempt.number)

    @property
    def _decided(self) -> Decided:
        assert self.attempt.decided is not None
        return self.attempt.decided

    def kernel(self) -> KernelVersion:
        return KernelVersion.load(self.directory / "kernel_snapshot", self._decided.kernel)

    def kernel_paths(self) -> dict[str, Path]:
        return {path: self.directory / "kernel_snapshot" / path for path in self.kernel().files}

    def table(self) -> Table:
        path = self.directory / "benchmark.csv"
        return parse_csv(self._read(path.name).decode(), where=str(path))

    def session(self) -> dict[str, Any]:
        return dict(json.loads(self._read("evidence.json"))["session"])

    def results(self) -> list[CaseResult]:
        texts = json.loads(self._read("evidence.json"))["results"]
        return [CaseResult.from_json(text) for text in texts]

    def evidence(self) -> Evidence:
        return Evidence(
            kernel=self.kernel(),
            results=self.results(),
            table=self.table(),
            session=self.session(),
            pairs_csv=self.found("pairs.csv") or "",
        )

    def verdict(self) -> Verdict:
        """Return the verdict as it was given.

        Where the attempt's own file is gone, the round's page of it is as good: only `applied` is
        added there, and without it the text has to be the one that the ledger names.
        """
        path, page = self.directory / "verdict.json", self.layout.verdict(self.number)
        if page.is_file() and not path.exists():
            path = page
            given = {**json.loads(_content(page)), "applied": Applied().model_dump()}
            text = f"{json.dumps(given, indent=1, ensure_ascii=False)}\n".encode()
        else:
            text = _content(path)
        if sha256(text) != self._decided.verdict_sha256:
            raise BadInput("was changed since the ledger recorded it", where=str(path))
        return Verdict.model_validate_json(text)

    def found(self, name: str) -> str | None:
        """Return a file's text, where need be from the copy beside the attempts.

        None for one that was never written, and for one that is gone: a campaign that is shown to
        others may come without the bulk of its evidence.
        """
        places = (self.directory, self.layout.artifacts(self.number))
        place = next((place for place in places if (place / name).is_file()), None)
        known = place is not None and self.key(name) in self.attempt.evidence
        return self._read(name, place).decode() if known else None

    def key(self, name: str) -> str:
        """Return what the ledger calls a file."""
        return (self.directory / name).relative_to(self.layout.directory).as_posix()

    def _read(self, name: str, place: Path | None = None) -> bytes:
        path = (place or self.directory) / name
        content = _content(path)
        if self.attempt.evidence.get(self.key(name)) != sha256(content):
            raise BadInput("evidence was changed since the ledger recorded it", where=str(path))
        return content


def _csv(table: Table | None) -> str:
    return format_csv(table.header, table.rows) if table else ""


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"evidence is gone: {error.strerror}", where=str(path)) from None
