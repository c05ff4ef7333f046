"""A workspace campaign as its upstream sees it: what it accepted, under the paths it has there.

Versions that the workspace accepted are provisional. Its best kernel is put into the upstream tree,
measured there against what was extracted, and stays only when that accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import Extracted
from pytest_kopt.campaign.workspace.extraction import sha256_of
from pytest_kopt.cases.result import ExpectedCase
from pytest_kopt.clock import now
from pytest_kopt.errors import BadInput


class UpstreamCampaign(Campaign):
    """The campaign with upstream's root, kernel, tests and cases."""

    def __init__(self, layout: Layout, root: Path) -> None:
        """Read everything, change nothing; BadInput where the campaign has no workspace."""
        super().__init__(layout, root)
        upstream = self.manifest.upstream
        assert upstream is not None
        self._upstream = upstream
        keys = ("kernel_source", "tests", "test_command")
        self.manifest = self.manifest.model_copy(
            update={key: getattr(upstream, key) for key in keys}
        )

    def check_place(self) -> None:
        """Raise BadInput when upstream has moved on, or the workspace has not finished."""
        self.check_not_integrated()
        if pending := self.state.pending:
            what = f"round {pending.round} is decided but not carried out"
            way = f"which carries it out (cd {self.layout.directory})"
            legal = f"a session in the workspace first, {way}"
            raise BadInput(what, where=self.name, legal=legal)
        moved = [file.path for file in self._upstream.files.values() if self._has_moved(file)]
        if moved:
            commit = self._upstream.commit
            raise BadInput(
                f"upstream has moved: {', '.join(moved)} is not what the workspace was extracted "
                f"from{f' (commit {commit[:12]})' if commit else ''}",
                where=moved[0],
                legal="put it back, or extract anew and measure the change there (kopt init NEW "
                f"--from {self.name})",
            )

    def incumbent(self) -> KernelVersion:
        """Return the best version of the workspace, by upstream's paths."""
        return KernelVersion(
            {self._path(path): file for path, file in super().incumbent().files.items()}
        )

    def baseline(self) -> KernelVersion:
        """Return upstream's own kernel as it was extracted."""
        recorded = {file.path: file.sha256 for file in self._upstream.files.values()}
        extracted = KernelVersion.take(self.layout.upstream, self._upstream.kernel_source)
        return KernelVersion.load(
            self.layout.upstream,
            {path: recorded[path] for path in extracted.files if path in recorded},
        )

    def expected_cases(self) -> dict[str, ExpectedCase]:
        """Return the baseline's cases by the names they have upstream."""
        cases = super().expected_cases().items()
        moved = {self._path(nodeid): case for nodeid, case in cases}
        return {nodeid: replace(case, nodeid=nodeid) for nodeid, case in moved.items()}

    def skipped_at_baseline(self) -> list[str]:
        """Return what the baseline skipped, by the names it has upstream."""
        return [self._path(nodeid) for nodeid in super().skipped_at_baseline()]

    def put_in(self) -> None:
        """Put the best version into the upstream tree; `settle` keeps it or puts upstream back."""
        best = self.incumbent()
        number = self.state.incumbent_round
        assert number is not None
        self.append(ledger.Integrating(time=now(), round=number, kernel=best.hashes))
        best.restore(self.root, over=self.baseline())

    def settle(
        self, *, apply: bool = True, beside: Callable[[Campaign], Sequence[Path]] = lambda _: ()
    ) -> None:
        """Commit an integration that was accepted, put upstream back otherwise; safe to repeat."""
        begun, final = self.state.integrating, self.state.integration_final
        if begun is None:
            return
        commit, restored = None, []
        is_kept = apply and final is not None and final.decision.keeps
        if is_kept and final is not None and (commits := self._commits):
            files: dict[str, Path | None] = dict.fromkeys(self.baseline().files)
            placed = self.state.rounds[begun.round].last.kernel_paths()
            files |= {self._path(path): place for path, place in placed.items()}
            commit = commits.of_round(self.state.rounds[begun.round], files, final.reason)
        elif not is_kept:
            restored = self.baseline().restore(self.root, over=self.incumbent())
        self.append(
            ledger.Integrated(time=now(), kept=is_kept, git_commit=commit, restored=restored)
        )

    def _has_moved(self, file: Extracted) -> bool:
        """Say whether a file is neither as extracted nor as a cut-off integration left it."""
        there, begun = sha256_of(self.root / file.path), self.state.integrating
        return there != file.sha256 and not (begun and there == begun.kernel.get(file.path, ""))

    def _path(self, place: str) -> str:
        """Return the upstream path of a file (or of a case in it) of the workspace."""
        path, separator, rest = place.partition("::")
        if path in self._upstream.files:
            return self._upstream.files[path].path + separator + rest
        # A kernel file that a round added lies where its neighbours do.
        neighbours = [(p, f.path) for p, f in self._upstream.files.items() if p.startswith("src/")]
        is_unmoved = all(place == path for place, path in neighbours)
        return place if is_unmoved else place.removeprefix("src/")
