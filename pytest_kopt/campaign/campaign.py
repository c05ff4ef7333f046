"""One campaign, opened: its documents, its state, and the steps that change it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_kopt import policies
from pytest_kopt.campaign import ledger, stops
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.hold import hold
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import FrozenSchema, Manifest
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.repository import Repository
from pytest_kopt.campaign.state import Attempt, CampaignState, Round, fold
from pytest_kopt.campaign.stops import Stop
from pytest_kopt.cases.result import CaseResult, ExpectedCase
from pytest_kopt.clock import now
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Applied, Decision, Level, Verdict
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.roofline import efficiency
from pytest_kopt.schema.profile import fingerprint
from pytest_kopt.schema.table import Table, format_csv, parse_csv, write_atomically


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured, of which kernel, as it is kept.

    `table` is None when no row arrived; `pairs_csv` is that of a paired comparison; `session` is
    free-form evidence of the whole session.
    """

    kernel: KernelVersion
    results: Sequence[CaseResult]
    table: Table | None
    session: dict[str, Any]
    pairs_csv: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """What one attempt leaves behind, ready to be recorded.

    `level` is the one it began at; its verdict names the one that decided. `representative` are the
    names that a baseline proposes. `baseline` and `paired_quick` are as in the decided event.
    `policy` is the one it was judged by, None for the manifest's.
    """

    round: int
    started: str
    level: Level
    evidence: Evidence
    verdict: Verdict
    trend: ledger.Trend | None
    notes: Notes
    paired: ledger.PairedChange | None = None
    paired_quick: ledger.PairedChange | None = None
    baseline: ledger.Trend | None = None
    representative: list[str] | None = None
    policy: Policy | None = None


class Campaign:
    """A campaign directory with its manifest and the state its ledger tells."""

    def __init__(self, layout: Layout, root: Path) -> None:
        """Read everything, change nothing; BadInput for a document that cannot be used."""
        self.layout = layout
        self.root = root
        self.manifest: Manifest = manifests.load(layout.manifest)
        self.repository = Repository.around(root)
        self.state: CampaignState = fold(ledger.read(layout.ledger))

    @property
    def name(self) -> str:
        return self.layout.name

    def check_ready(self) -> None:
        """Raise BadInput when the tree is in no state for a round."""
        inside = self.repository.root if self.repository else self.root
        manifests.check_kernel_paths(self.manifest, self.root, inside)
        if self.repository is None or not self.manifest.git_commit:
            return
        busy = self.repository.operation_in_progress()
        if busy:
            raise BadInput(f"{busy} is in progress", where="git", legal="finish or abort it first")
        branch = self.repository.branch
        if branch is None:
            raise BadInput("HEAD is detached", where="git", legal=f"git switch {self._branch()}")
        if self._branch() != "none" and branch != self._branch():
            raise BadInput(
                f"the tree is on branch {branch!r}, campaign {self.name!r} on {self._branch()!r}",
                where="git",
                legal=f"git switch {self._branch()}; for two campaigns at a time a tree each "
                "(git worktree add), or git_branch: none",
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the campaign for this process; BadInput names the one that holds it."""
        with hold(self.layout):
            self.state = fold(ledger.read(self.layout.ledger))
            yield

    def candidate(self) -> KernelVersion:
        """Return the kernel files of the working tree."""
        return KernelVersion.take(self.root, self.manifest.kernel_source)

    def incumbent(self) -> KernelVersion:
        """Return the last accepted version; BadInput before the baseline or when it was changed."""
        number, attempt = self.state.incumbent_round, self.state.incumbent
        if number is None or attempt is None or attempt.decided is None:
            raise BadInput("there is no baseline yet", where=self.name)
        directory = self.layout.attempt(number, attempt.number) / "kernel_snapshot"
        return KernelVersion.load(directory, attempt.decided.kernel)

    def baseline(self) -> KernelVersion:
        """Return the version that round 1 measured; BadInput when it was changed."""
        attempt = self._baseline_attempt()
        assert attempt.decided is not None
        directory = self.layout.attempt(1, attempt.number) / "kernel_snapshot"
        return KernelVersion.load(directory, attempt.decided.kernel)

    def incumbent_table(self) -> Table:
        """Return the incumbent's rows, as stored when it was accepted."""
        number, attempt = self.state.incumbent_round, self.state.incumbent
        assert number is not None and attempt is not None
        path = self.layout.attempt(number, attempt.number) / "benchmark.csv"
        return parse_csv(self._evidence(attempt, path).decode(), where=str(path))

    def baseline_table(self) -> Table:
        """Return the baseline's rows."""
        path = self.layout.attempt(1, self._baseline_attempt().number) / "benchmark.csv"
        return parse_csv(self._evidence(self._baseline_attempt(), path).decode(), where=str(path))

    def expected_cases(self) -> dict[str, ExpectedCase]:
        """Return the cases that the baseline froze, by node id, in declaration order."""
        self._baseline_attempt()
        incumbent = self.state.incumbent_round
        lately = {r.nodeid: r.evidence for r in self.results(incumbent)} if incumbent else {}
        return {
            result.nodeid: replace(
                ExpectedCase.of(result),
                seconds=float(lately.get(result.nodeid, {}).get("seconds", 0.0)),
                device=str(lately.get(result.nodeid, {}).get("device", "")),
            )
            for result in self.results(1)
        }

    def skipped_at_baseline(self) -> list[str]:
        """Return the node ids that the baseline skipped: they are no part of the case set."""
        return list(self.baseline_session()["skipped"])

    def baseline_session(self) -> dict[str, Any]:
        """Return what the baseline recorded of its session."""
        session: dict[str, Any] = self._baseline_evidence()["session"]
        return session

    def recorded_manifest(self) -> dict[str, Any]:
        """Return the manifest's keys as ledger and evidence last recorded them; none at first."""
        if self.state.baseline is None:
            return {}
        known = self.baseline_session().get("harness", {}).get("manifest", {})
        return {**known, **self.state.manifest_changes}

    def incumbent_session(self) -> dict[str, Any]:
        """Return what the last accepted attempt recorded of its session."""
        number = self.state.incumbent_round
        assert number is not None
        session: dict[str, Any] = self._attempt_evidence(number)["session"]
        return session

    def record(self, record: AttemptRecord) -> Attempt:
        """Write the evidence of an attempt, then its events; the decided event is the commit point.

        For the baseline the schema is frozen into the manifest too, where the proposed
        representative shapes are put down unless some are set.
        """
        known = self.state.rounds.get(record.round)
        number = 1 + max(known.attempts, default=0) if known else 1
        directory = self.layout.attempt(record.round, number)
        _set_aside(directory)
        evidence = self._write_evidence(directory, record.evidence)
        verdict = record.verdict.model_copy(
            update={"campaign": self.name, "round": record.round, "attempt": number}
        )
        text = verdict.model_dump_json(indent=1) + "\n"
        write_atomically(directory / "verdict.json", text)
        if verdict.decision is Decision.BASELINE and record.evidence.table:
            self._freeze(record.evidence.table.header, record.representative)
        common: dict[str, Any] = {"round": record.round, "attempt": number}
        policy = record.policy or policies.load(self.manifest.policy)
        before = [
            *self._manifest_changes(),
            ledger.Opened(time=record.started, level=record.level, **common),
            ledger.Measured(time=now(), evidence=evidence, **common),
        ]
        decided = ledger.Decided(
            time=now(),
            decision=verdict.decision,
            level=verdict.level,
            reason=verdict.reason,
            next_step=verdict.next_step,
            aggregate=verdict.aggregate,
            flags=verdict.flags,
            trend=record.trend,
            baseline=record.baseline,
            paired=record.paired,
            paired_quick=record.paired_quick,
            kernel_time=verdict.kernel_time,
            efficiency=efficiency(verdict.rooflines) if verdict.rooflines else None,
            performance_log=policy.performance_log,
            notes=record.notes,
            kernel=record.evidence.kernel.hashes,
            verdict_sha256=_sha256(text.encode()),
            **common,
        )
        self._append(*before, self._with_stops(decided, policy))
        return self.state.rounds[record.round].attempts[number]

    def record_final(self, evidence: Evidence, verdict: Verdict) -> Verdict:
        """Write the evidence of a comparison of best and baseline, then its event."""
        directory = self.layout.final(1 + len(self.state.finals))
        _set_aside(directory)
        hashes = self._write_evidence(directory, evidence)
        verdict = verdict.model_copy(update={"campaign": self.name})
        text = verdict.model_dump_json(indent=1) + "\n"
        write_atomically(directory / "verdict.json", text)
        path = (directory / "verdict.json").relative_to(self.layout.directory).as_posix()
        self._append(
            ledger.Final(
                time=now(),
                best=self.state.incumbent_round or 1,
                decision=verdict.decision,
                reason=verdict.reason,
                aggregate=verdict.aggregate,
                evidence={**hashes, path: _sha256(text.encode())},
            )
        )
        return verdict

    def termination_check(self, policy: Policy | None = None) -> tuple[Stop, ...]:
        """Return which conditions end the campaign as it stands, under a policy or its own."""
        used = policy or policies.load(self.manifest.policy)
        return stops.check(self.name, self.state, self.manifest, used)

    def settle(
        self, *, apply: bool = True, beside: Callable[[Campaign], Sequence[Path]] = lambda _: ()
    ) -> Attempt | None:
        """Carry out the last decision if that is still to be done; safe to repeat.

        `beside` writes the files that belong into a commit beside the kernel, and returns them.
        Returns the attempt that was settled, None when there was nothing to do.
        """
        pending = self.state.pending
        if pending is None:
            return None
        item, attempt = pending
        common: dict[str, Any] = {"round": item.number, "attempt": attempt.number}
        if not apply:
            self._append(ledger.ApplyWaived(time=now(), **common))
            return attempt
        decided = attempt.decided
        assert decided is not None
        action = self._action(item, decided)
        self._append(ledger.Applying(time=now(), action=action, **common))  # type: ignore[arg-type]
        commit, restored = None, []
        if action == "commit":
            self._check_still_there()
            commit = self._commit(item, attempt, beside(self))
        elif action == "restore":
            directory = self.layout.attempt(item.number, attempt.number) / "kernel_snapshot"
            rejected = KernelVersion.load(directory, decided.kernel)
            inside = self.repository.root if self.repository else self.root
            restored = self.incumbent().restore(self.root, over=rejected, inside=inside)
        elif self.repository is not None:
            commit = self.repository.head
        self._append(ledger.Applied(time=now(), git_commit=commit, restored=restored, **common))
        return attempt

    def results(self, number: int) -> list[CaseResult]:
        """Return the results of a round's last attempt; BadInput when they are not as recorded."""
        attempt = self.state.rounds[number].last
        path = self.layout.attempt(number, attempt.number) / "evidence.json"
        document = json.loads(self._evidence(attempt, path))
        return [CaseResult.from_json(text) for text in document["results"]]

    def verdict(self, item: Round) -> Verdict | None:
        """Return a round's latest verdict with what applying it did."""
        decided = item.verdict
        if decided is None:
            return None
        attempt = item.attempts[decided.attempt]
        path = self.layout.attempt(item.number, attempt.number) / "verdict.json"
        text = path.read_bytes()
        if _sha256(text) != decided.verdict_sha256:
            raise BadInput("is not the verdict the ledger names", where=str(path))
        verdict = Verdict.model_validate_json(text)
        if attempt.applied is None:
            return verdict
        done = Applied(git_commit=attempt.applied.git_commit, restored=attempt.applied.restored)
        return verdict.model_copy(update={"applied": done})

    def note(self, number: int, notes: Notes) -> None:
        """Add notes to a round; BadInput when there is no such round.

        Also for another target class once the round is decided: what it had to improve is history.
        """
        if number not in self.state.rounds:
            raise BadInput(
                f"round {number} does not exist",
                where="kopt note",
                legal=sorted(map(str, self.state.rounds)) or "none yet",
            )
        known = self.state.rounds[number]
        if notes.target_class not in (None, known.notes.target_class) and not known.is_open:
            raise BadInput(
                f"round {number} is decided and was about "
                f"{known.notes.target_class or 'all cases'}",
                where="target_class",
                legal="notes of a round that is open",
            )
        self._append(ledger.Note(time=now(), round=number, notes=notes))

    def mask(
        self, versions: Sequence[int], *, masked: bool, reason: str = "", seed: int | None = None
    ) -> None:
        """Record that versions of the iteration memory are masked, or no longer so."""
        self._append(
            ledger.Masking(
                time=now(), versions=sorted(versions), masked=masked, reason=reason, seed=seed
            )
        )

    def end(self, how: str) -> None:
        """Record that the user stopped or abandoned the campaign."""
        self._append(ledger.Ended(time=now(), how=how))  # type: ignore[arg-type]

    def _append(self, *events: ledger.Event) -> None:
        ledger.append(self.layout.ledger, *events)
        self.state = fold(ledger.read(self.layout.ledger))

    def _branch(self) -> str:
        branch = self.manifest.git_branch
        return f"optimize/{self.name}" if branch == "auto" else branch

    def _baseline_attempt(self) -> Attempt:
        baseline = self.state.baseline
        if baseline is None:
            raise BadInput("there is no baseline yet", where=self.name)
        return baseline.last

    def _baseline_evidence(self) -> dict[str, Any]:
        self._baseline_attempt()
        return self._attempt_evidence(1)

    def _attempt_evidence(self, number: int) -> dict[str, Any]:
        item = self.state.rounds[number]
        decided = item.verdict
        assert decided is not None
        attempt = item.attempts[decided.attempt]
        path = self.layout.attempt(number, attempt.number) / "evidence.json"
        document: dict[str, Any] = json.loads(self._evidence(attempt, path))
        return document

    def _evidence(self, attempt: Attempt, path: Path) -> bytes:
        key = path.relative_to(self.layout.directory).as_posix()
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BadInput(f"evidence is gone: {error.strerror}", where=str(path)) from None
        if attempt.evidence.get(key) != _sha256(content):
            raise BadInput("evidence is not what the ledger names (SHA-256)", where=str(path))
        return content

    def _write_evidence(self, directory: Path, evidence: Evidence) -> dict[str, str]:
        evidence.kernel.write(directory / "kernel_snapshot")
        document = {
            "session": evidence.session,
            "results": [result.to_json() for result in evidence.results],
        }
        texts = {"evidence.json": json.dumps(document, indent=1) + "\n"}
        if evidence.table:
            texts["benchmark.csv"] = format_csv(evidence.table.header, evidence.table.rows)
        if evidence.pairs_csv:
            texts["pairs.csv"] = evidence.pairs_csv
        for name, text in texts.items():
            write_atomically(directory / name, text)
        base = directory.relative_to(self.layout.directory).as_posix()
        return {f"{base}/{name}": _sha256(text.encode()) for name, text in texts.items()}

    def _manifest_changes(self) -> list[ledger.Event]:
        """Return the event of keys that changed since they were last recorded, if any did."""
        known = self.recorded_manifest()
        now_ = self.manifest.model_dump(mode="json", by_alias=True)
        values = {key: now_.get(key) for key in known if now_.get(key) != known[key]}
        return [ledger.ManifestChanged(time=now(), values=values)] if values else []

    def _with_stops(self, decided: ledger.Decided, policy: Policy) -> ledger.Decided:
        """Return the event with the conditions that hold once it is recorded."""
        state = fold([*ledger.read(self.layout.ledger), decided])
        found = stops.check(self.name, state, self.manifest, policy)
        return decided.model_copy(update={"stops": stops.holding(found)})

    def _freeze(self, header: tuple[str, ...], representative: list[str] | None) -> None:
        frozen = FrozenSchema(header=",".join(header), sha256=fingerprint(header))
        shapes = self.manifest.representative_shapes or representative
        update = {"csv_schema": frozen, "representative_shapes": shapes}
        self.manifest = self.manifest.model_copy(update=update)
        manifests.save(self.layout.manifest, self.manifest)

    def _action(self, item: Round, decided: ledger.Decided) -> str:
        if decided.decision is Decision.BASELINE:
            return "none"
        if not decided.decision.keeps:
            return "restore"
        return "commit" if self.manifest.git_commit and self.repository else "none"

    def _check_still_there(self) -> None:
        """Raise CannotFinish when somebody has switched branches since the session began."""
        assert self.repository is not None
        branch = self.repository.branch
        if self._branch() not in ("none", branch):
            raise CannotFinish(
                f"git: the tree went from branch {self._branch()!r} to {branch or 'no branch'!r} "
                f"meanwhile, git switch {self._branch()} puts it back"
            )

    def _commit(self, item: Round, attempt: Attempt, beside: Sequence[Path]) -> str:
        decided = attempt.decided
        assert self.repository is not None
        assert decided is not None
        # A file that the candidate removed belongs to the commit as well.
        before = self.state.incumbent_as_of(item.number - 1)
        known = self.state.rounds[before].verdict if before else None
        files = sorted({*decided.kernel, *(known.kernel if known else {}), *map(str, beside)})
        paths = [self.repository.relative(self.root, path) for path in files]
        notes = item.notes
        summary = notes.summary or notes.change or notes.hypothesis or "kernel change"
        target = f"{self.manifest.target_op} {self.manifest.target_backend}"
        log = self.layout.optimize_log.relative_to(self.root).as_posix()
        message = (
            f"[optimize] {target} round-{item.number}: {summary.splitlines()[0]}\n\n"
            f"Hypothesis: {notes.hypothesis or 'not stated'}\n"
            f"Result: {decided.reason}\n"
            f"Details: {notes.details or log}\n"
        )
        return self.repository.commit(paths, message)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _set_aside(directory: Path) -> None:
    """Move away what a killed session left under an attempt's name: evidence is never lost."""
    if directory.exists():
        taken = len(list(directory.parent.glob(f"{directory.name}.cut-off-*")))
        directory.rename(directory.with_name(f"{directory.name}.cut-off-{taken + 1}"))
