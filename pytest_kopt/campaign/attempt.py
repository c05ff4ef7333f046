"""An attempt at a round: its record, and its evidence, read only as the ledger recorded it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from pytest_kopt.campaign.kernel import KernelVersion, sha256
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.ledger import Applied as CarriedOut
from pytest_kopt.campaign.ledger import Decided
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.verdict import Applied, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.table import Table, parse_csv

#: The columns of pairs.csv.
PAIR_COLUMNS = (
    *("label", "round_of_inference", "comparison", "pair", "position"),
    *("candidate_ms", "incumbent_ms", "device", "clocks"),
)

#: The conditions of a measurement that the session has, and that its cases have.
_OF_SESSION = ("started", "ended", "host", "python", "pytest_kopt")
_OF_CASES = ("device", "device_model", "engine", "torch", "threads")
CONDITIONS = (*_OF_SESSION, *_OF_CASES)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The measurements of an attempt, and the kernel that was measured."""

    kernel: KernelVersion
    results: Sequence[CaseResult]
    #: None when no row arrived.
    table: Table | None
    #: Free-form evidence of the whole session.
    session: dict[str, Any]
    #: The pairs of a paired comparison, in `PAIR_COLUMNS`.
    pairs_csv: str = ""
    #: The output of benchmark_command.
    benchmark_log: str = ""
    #: The versions of a race with the rows of their checks, by place.
    candidates: Sequence[tuple[KernelVersion, Table | None]] = ()


@dataclass(slots=True)
class Attempt:
    """One run of a round: what the ledger tells of it, and its evidence for every view to read.

    Methods that read evidence raise BadInput for a file that is gone, or not the ledger's.
    """

    #: The campaign's files. Two readings of one ledger are equal wherever the ledger lies.
    layout: Layout = field(compare=False, repr=False)
    #: The round it belongs to.
    round: int
    #: Its number within the round, from 1.
    number: int
    #: When it began: `YYYY-MM-DD HH:MM`.
    started: str
    #: SHA-256 of its evidence by path below the campaign's directory.
    hashes: dict[str, str] = field(default_factory=dict)
    #: The verdict in short; None where the session was cut off, and while it runs.
    decided: Decided | None = None
    #: All notes that the round had when this attempt was decided.
    notes: Notes = field(default_factory=Notes)
    #: What carrying out the verdict did; None before that, and where the user waived it.
    applied: CarriedOut | None = None
    #: Whether the verdict was carried out or that was waived.
    settled: bool = False

    @property
    def directory(self) -> Path:
        return self.layout.attempt(self.round, self.number)

    def outcome(self) -> Decided:
        """Return the verdict in short of an attempt that has one."""
        assert self.decided is not None
        return self.decided

    def kernel(self) -> KernelVersion:
        return KernelVersion.load(self.directory / "kernel_snapshot", self.outcome().kernel)

    def kernel_paths(self) -> dict[str, Path]:
        return {path: self.directory / "kernel_snapshot" / path for path in self.kernel().files}

    def table(self) -> Table:
        path = self.directory / "benchmark.csv"
        return parse_csv(self._read(path.name).decode(), where=str(path))

    def session(self) -> dict[str, Any]:
        return dict(self._measured()["session"])

    def results(self) -> list[CaseResult]:
        return [CaseResult.from_json(text) for text in self._measured()["results"]]

    def conditions(self) -> dict[str, str]:
        """Return when, where and with what it was measured, as far as that is recorded.

        Nothing where no case has a result.
        """
        measured, texts = self._measured(), dict[str, set[str]]()
        if not measured["results"]:
            return {}
        session = measured["session"]
        for case in map(CaseResult.from_json, measured["results"]):
            for name in _OF_CASES:
                if (value := getattr(case.evidence, name)) is not None:
                    texts.setdefault(name, set()).add(str(value))
        of_session = {name: str(session[name]) for name in _OF_SESSION if name in session}
        return of_session | {name: ", ".join(sorted(values)) for name, values in texts.items()}

    @property
    def record(self) -> Path:
        """The file of its verdict, without what carrying it out did."""
        return self.directory / "verdict.json"

    def recorded(self) -> bytes:
        """Return the text of its record, as the ledger names it.

        The round's page has it too but for `applied`, and serves where the record is gone.
        """
        path, page = self.record, self.layout.verdict(self.round)
        if page.is_file() and not path.exists():
            path = page
            text = _verdict_text(_content(page), Applied())
        else:
            text = _content(path)
        if sha256(text) != self.outcome().verdict_sha256:
            fix = "restore the file from a backup"
            raise BadInput("was changed since the ledger recorded it", where=str(path), fix=fix)
        return text

    def page(self) -> bytes:
        """Return verdict.json with what carrying it out did, every other key as it is recorded."""
        carried_out, text = self.applied, self.recorded()
        if carried_out is None:
            return text
        return _verdict_text(
            text, Applied(git_commit=carried_out.git_commit, restored=carried_out.restored)
        )

    def verdict(self) -> Verdict:
        """Return the verdict, with what carrying it out did."""
        return Verdict.model_validate_json(self.page(), extra="ignore")

    def text(self, name: str) -> str | None:
        """Return the text of a file of evidence, if need be from the round's copy of it.

        None for a file that was never written or is gone: a campaign may be shown to others
        without the bulk of its evidence.
        """
        places = (self.directory, self.layout.artifacts(self.round))
        place = next((place for place in places if (place / name).is_file()), None)
        recorded = place is not None and self.key(name) in self.hashes
        return self._read(name, place).decode() if recorded else None

    def key(self, name: str) -> str:
        """Return what the ledger calls a file."""
        return (self.directory / name).relative_to(self.layout.directory).as_posix()

    def _measured(self) -> dict[str, Any]:
        return dict(json.loads(self._read("evidence.json")))

    def _read(self, name: str, place: Path | None = None) -> bytes:
        path = (place or self.directory) / name
        content = _content(path)
        if self.hashes.get(self.key(name)) != sha256(content):
            raise BadInput("evidence was changed since the ledger recorded it", where=str(path))
        return content


def _verdict_text(text: bytes, applied: Applied) -> bytes:
    try:
        # A model would drop the keys of another release, and `json` writes other floats.
        document = {**from_json(text), "applied": applied.model_dump()}
    except (ValueError, TypeError):
        return text  # no verdict, and so not the ledger's
    return to_json(document, indent=1) + b"\n"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"kopt cannot read the evidence: {error.strerror}"
        raise BadInput(what, where=str(path), fix="restore the file from a backup") from None
