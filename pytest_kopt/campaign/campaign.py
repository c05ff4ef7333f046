"""One campaign, opened: its documents, its state, and the steps that change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pytest_kopt import policies
from pytest_kopt.campaign import ledger, tips
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.git import worktrees
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import branch_of, way_to
from pytest_kopt.campaign.kernel import KernelVersion, kept_builds
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.running import hold
from pytest_kopt.campaign.state import CampaignState, Round, fold
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import ExpectedCase
from pytest_kopt.clock import now
from pytest_kopt.decide.policy import STOP_LIMITS, Policy
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput, CannotFinish

Action = Literal["commit", "restore", "none"]


#: The step that a decision asks of git and the tree, and the attempt that it looks back to: for a
#: commit the current best before it, None where there was none; for a restoration the current best.
Step = tuple[Action, Attempt | None]


def plan(state: CampaignState, attempt: Attempt, *, commits: bool) -> Step:
    """Return the step for a decided attempt of a campaign that makes `commits` or none."""
    decision = attempt.outcome().decision
    if not decision.keeps:
        return "restore", state.incumbent
    if not commits or decision is Decision.BASELINE:
        return "none", None
    before = state.incumbent_as_of(attempt.round - 1)
    return "commit", state.rounds[before].last if before else None


class Campaign:
    """A campaign directory with its manifest and the state its ledger tells."""

    def __init__(self, layout: Layout, root: Path) -> None:
        """Read everything, change nothing; BadInput for a document that cannot be used."""
        self.layout = layout
        self.root = root
        self.manifest: Manifest = manifests.load(layout.manifest)
        self.repository = Repository.around(root)
        self.state: CampaignState = fold(ledger.read(layout.ledger), layout)

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def committed_to(self) -> Repository | None:
        """The repository that gets a commit of each kept round, None where there is none."""
        return self.repository if self.manifest.git_commit else None

    def check_ready(self) -> None:
        """Raise BadInput when the tree is in no state for a round."""
        manifests.check_kernel_paths(self.manifest.kernel_source, self.root, self._bounds)
        if (repository := self.committed_to) is None:
            return
        worktrees.check_repository(self.manifest.kernel_source, self.root, repository)
        busy = repository.operation_in_progress()
        if busy:
            fix = "finish or abort it: git status names the commands"
            raise BadInput(f"{busy} is in progress", where="git", fix=fix)
        branch, target = repository.branch, branch_of(self.name, self.manifest)
        if branch is None or (target is not None and branch != target):
            raise BadInput(
                "HEAD is detached"
                if branch is None
                else f"the tree is on branch {branch!r}, campaign {self.name!r} on {target!r}",
                where="git",
                fix=f"{way_to(target, repository)}; for two campaigns at a time a tree each "
                "(kopt init --worktree), or git_branch: none"
                if target
                else "git switch BRANCH",
            )
        worktrees.check_branch(self.name, self.root, repository, self.state)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the campaign for this process; BadInput names the one that holds it."""
        with hold(self.layout):
            self.read_again()
            yield

    def read_again(self) -> None:
        """Take in what another session, or another view of the campaign, added to the ledger."""
        self.state = fold(ledger.read(self.layout.ledger), self.layout)

    def candidate(self) -> KernelVersion:
        return KernelVersion.take(self.root, self.manifest.kernel_source)

    def incumbent(self) -> KernelVersion:
        """Return the last accepted version; BadInput before the baseline or when it was changed."""
        return self.best.kernel()

    def baseline(self) -> KernelVersion:
        """Return the version that round 1 measured; BadInput when it was changed."""
        return self.first.kernel()

    @property
    def best(self) -> Attempt:
        """The last accepted attempt; BadInput before the baseline."""
        if self.state.incumbent is None:
            raise BadInput("there is no baseline yet", where=self.name, fix="pytest --kopt-round 1")
        return self.state.incumbent

    @property
    def first(self) -> Attempt:
        """The attempt that is the baseline; BadInput before there is one."""
        if self.state.baseline is None:
            raise BadInput("there is no baseline yet", where=self.name)
        return self.state.baseline.last

    def expected_cases(self) -> dict[str, ExpectedCase]:
        """Return the cases that the baseline froze, by node id, in declaration order."""
        lately = {result.nodeid: result.evidence for result in self.best.results()}
        cases = {}
        for result in self.first.results():
            evidence = lately.get(result.nodeid, CaseEvidence())
            case = ExpectedCase.of(result)
            seconds, device = evidence.seconds or 0.0, evidence.device or ""
            stable = bool(evidence.bitwise_stable)
            cases[result.nodeid] = replace(
                case, seconds=seconds, device=device, bitwise_stable=stable
            )
        return cases

    def skipped_at_baseline(self) -> list[str]:
        """Return the node ids that the baseline skipped: they are no part of the case set."""
        return list(self.first.session()["skipped"])

    def recorded_manifest(self) -> dict[str, Any]:
        """Return the manifest's keys as ledger and evidence last recorded them; none at first."""
        if self.state.baseline is None:
            return {}
        frozen = self.first.session().get("harness", {}).get("manifest", {})
        return {**frozen, **self.state.manifest_changes}

    def policy(self) -> Policy:
        return policies.load(self.manifest.policy, self.root)

    def recorded_policy(self) -> dict[str, Any]:
        """Return the policy as baseline and ledger last recorded it; nothing at first."""
        if self.state.baseline is None:
            return {}
        return {**self.first.session().get("policy", {}), **self.state.policy_changes}

    def check_policy(self, policy: Policy, where: str = "policy") -> None:
        """Raise BadInput where a policy is not the baseline's but for its stop limits."""
        recorded = self.recorded_policy()
        differing = policy.differences(recorded)
        if differing:
            raise BadInput(
                f"{policy.name!r} is not the baseline's policy {recorded['name']!r}: "
                f"{'; '.join(differing)}",
                where=where,
                fix=f"use the baseline's policy (only {', '.join(STOP_LIMITS)} may change), or "
                f"kopt init NEW --from {self.name}",
            )

    def pending_step(self) -> Step:
        """Return the step of the decided attempt that waits for it, none where none does.

        Raises CannotFinish for a commit when somebody has switched branches since the session
        began.
        """
        attempt, repository = self.state.pending, self.committed_to
        if attempt is None:
            return "none", None
        step = plan(self.state, attempt, commits=repository is not None)
        if repository and step[0] == "commit":
            branch, target = repository.branch, branch_of(self.name, self.manifest)
            if target not in (None, branch):
                raise CannotFinish(
                    f"git: the tree went from branch {target!r} to {branch or 'no branch'!r} "
                    f"meanwhile, git switch {target} puts it back"
                )
        return step

    def settle(self, *, apply: bool = True, log: Sequence[Path] = ()) -> None:
        """Carry out what was decided; safe to repeat. A round's commit takes `log` along."""
        self._finish_restoring()
        while attempt := self.state.pending:
            common: dict[str, Any] = {"round": attempt.round, "attempt": attempt.number}
            if not apply:
                self.append(ledger.ApplyWaived(time=now(), **common))
                continue
            action, earlier = self.pending_step()
            self.append(ledger.Applying(time=now(), action=action, **common))
            commit, restored = self.repository.head if self.repository else None, []
            if action == "restore":
                assert earlier is not None
                best = earlier.kernel()
                restored = best.restore(self.root, over=attempt.kernel(), inside=self._bounds)
                self._put_build_of(best)
                commit = None
            if action == "commit":
                files = _replaced(earlier, attempt) | {str(file): file for file in log}
                commit = self.commit_round(attempt.round, files, attempt.outcome().reason)
            self.append(ledger.Applied(time=now(), git_commit=commit, restored=restored, **common))

    def commit_round(self, number: int, files: Mapping[str, Path | None], result: str) -> str:
        """Commit files, None for one that goes, as a round's, with its notes and what it led to."""
        notes, log = self.state.rounds[number].notes, self.layout.optimize_log
        title = (notes.title or "kernel change").splitlines()[0]
        # Of a tree beside the main one the way to the main one's workspace is nobody's business.
        near = self.root if log.is_relative_to(self.root) else self.layout.workspace
        details = {
            "Hypothesis": notes.hypothesis or "not stated",
            "Result": result,
            "Details": notes.details or log.relative_to(near).as_posix(),
        }
        repository, manifest = self.committed_to, self.manifest
        assert repository is not None
        lines = "".join(f"{name}: {text}\n" for name, text in details.items())
        contents = {repository.relative(self.root, path): file for path, file in files.items()}
        about = f"[optimize] {manifest.target_op} {manifest.target_backend}"
        return repository.commit(contents, f"{about} round-{number}: {title}\n\n{lines}")

    def restore(self, number: int) -> list[str]:
        """Put the version of a round's last attempt into the tree; return the paths that changed.

        The files that lay there go to the campaign's `replaced/`. BadInput for a round without a
        recorded version.
        """
        measured = {n: i for n, i in self.state.rounds.items() if i.verdict is not None}
        if number not in measured:
            what = f"round {number} has no recorded version"
            raise BadInput(what, where=self.name, legal=map(str, measured))
        attempt, here = measured[number].last, self.candidate()
        attempt.kernel()  # BadInput where it is not as recorded
        here.write(self.layout.replaced(len(self.state.restores) + 1))
        common: dict[str, Any] = {"round": number, "attempt": attempt.number}
        self.append(ledger.Restoring(time=now(), replaced=here.hashes, **common))
        return self._finish_restoring()

    def _finish_restoring(self) -> list[str]:
        """Put a version into the tree that a `restoring` event names, if one is left to be done."""
        event = self.state.restoring
        if event is None:
            return []
        directory = self.layout.replaced(len(self.state.restores))
        replaced = KernelVersion.load(directory, event.replaced)
        attempt = self.state.rounds[event.round].attempts[event.attempt]
        kernel = attempt.kernel()
        files = kernel.restore(self.root, over=replaced, inside=self._bounds)
        self._put_build_of(kernel)
        common: dict[str, Any] = {"round": event.round, "attempt": event.attempt}
        self.append(ledger.Restored(time=now(), files=files, **common))
        return files

    def _put_build_of(self, kernel: KernelVersion) -> None:
        """Put what rebuild_command made of a version into the tree, where that is kept."""
        kept = kept_builds(self.layout.builds)
        for built in kept:
            if built.belongs_to(kernel):
                built.put(self.root, kept)

    @property
    def foreign_build(self) -> str:
        """The advice where the build in the tree may be another version's, "" for none."""
        command, kernel = self.manifest.rebuild_command, self.candidate()
        kept = kept_builds(self.layout.builds)
        if not command or any(built.belongs_to(kernel) for built in kept):
            return ""
        return f"the build in the tree may be another version's; run: {command}"

    def note(self, number: int, notes: Notes) -> None:
        """Add notes to a round that was run, or to the next one; BadInput for any other."""
        legal = sorted({*self.state.rounds, self.state.next_round})
        if number not in legal:
            what = f"round {number} does not exist"
            raise BadInput(what, where="kopt note", legal=map(str, legal))
        round = self.state.rounds.get(number, Round(number))
        tips.check(notes, round, f"round {number}")
        target = round.notes.target_class
        if notes.target_class not in (None, target) and not round.is_open:
            what = f"round {number} is decided; its target was {target or 'all cases'}"
            place = "target_class in the notes of an open round"
            raise BadInput(what, where="target_class", legal=place)
        self.append(ledger.Note(time=now(), round=number, notes=notes))

    def mask(self, versions: list[int], *, masked: bool, seed: int | None = None) -> None:
        self.append(ledger.Masking(time=now(), versions=versions, masked=masked, seed=seed))

    def end(self, how: Literal["stopped", "abandoned"]) -> None:
        self.append(ledger.Ended(time=now(), how=how))

    def append(self, *events: ledger.Event) -> None:
        """Add events to the ledger; all of them count once the last one is written."""
        ledger.append(self.layout.ledger, *events)
        self.read_again()

    @property
    def _bounds(self) -> Path:
        """The folder that kernel files may lie in: the repository, else the project."""
        return self.repository.root if self.repository else self.root


def _replaced(old: Attempt | None, new: Attempt) -> dict[str, Path | None]:
    """Return the kernel files of `new` by their path, None for those that only `old` had."""
    return {**dict.fromkeys(old.outcome().kernel if old else ()), **new.kernel_paths()}
