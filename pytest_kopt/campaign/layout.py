"""Where the files of a campaign lie, and which names a campaign may have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.errors import BadInput

_RECORDS = ("rounds", "final", "replaced", "memory", "profiles", "logs")
_LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class _Below:
    """A path that lies in every campaign directory."""

    place: str

    def __get__(self, layout: Layout, owner: type[Layout]) -> Path:
        return layout.directory / self.place


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one campaign directory."""

    directory: Path

    manifest = _Below("manifest.yaml")
    ledger = _Below("ledger.jsonl")
    readme = _Below("README.md")
    baseline_report = _Below("baseline.md")
    #: The kernel as a workspace campaign took it from upstream.
    upstream = _Below("upstream")
    lock = _Below(".lock")
    #: The file that counts the ledger's events that the other files show.
    shown = _Below(".shown")
    #: The file that says how far a session is that runs now.
    running = _Below("running.json")
    optimize_log = _Below("logs/optimize.md")
    trend = _Below("logs/performance_trend.md")
    #: What torch compiled of earlier versions, by their content.
    builds = _Below("builds")
    profiles = _Below("profiles")
    quick_bench = _Below("quick_test_bench.py")

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def workspace(self) -> Path:
        return self.directory.parent

    @property
    def records(self) -> tuple[Path, ...]:
        """What sessions and commands wrote: no part of a workspace's project."""
        return tuple(self.directory / name for name in (*_RECORDS, "builds", "upstream"))

    @property
    def quick_baseline(self) -> Path:
        return self.artifacts(1) / "quick_baseline.log"

    def memory(self, version: int) -> Path:
        return self.directory / "memory" / f"v{version}.json"

    def round(self, number: int) -> Path:
        return self.directory / "rounds" / f"round-{number}"

    def summary(self, number: int) -> Path:
        return self.round(number) / "summary.md"

    def verdict(self, number: int) -> Path:
        return self.round(number) / "verdict.json"

    def snapshot(self, number: int) -> Path:
        return self.round(number) / "kernel_snapshot"

    def artifacts(self, number: int) -> Path:
        return self.round(number) / "artifacts"

    def attempt(self, number: int, attempt: int) -> Path:
        """Return the directory that keeps the evidence of one attempt."""
        return self.artifacts(number) / f"attempt-{attempt}"

    def replaced(self, number: int) -> Path:
        """Return the directory that keeps what lay in the tree before a `kopt restore`."""
        return self.directory / "replaced" / str(number)

    def final(self, attempt: int) -> Path:
        """Return the directory that keeps the evidence of one final comparison."""
        return self.directory / "final" / f"attempt-{attempt}"


def kept_records(workspace: Path) -> list[Path]:
    """Return what kernel code has no reason to read: the campaigns' evidence and ledgers."""
    names = (*_RECORDS, "ledger.jsonl")
    return [(workspace / each / name).resolve() for each in campaigns(workspace) for name in names]


def check_name(name: str) -> str:
    """Return a legal campaign name; BadInput for one that could leave the workspace."""
    if not _LEGAL_NAME.fullmatch(name) or ".." in name:
        legal = "letters, digits, '.', '_', '-', starting with a letter or digit, without '..'"
        raise BadInput(f"the name {name!r} is not usable", where="campaign", legal=legal)
    return name


def campaigns(workspace: Path) -> list[str]:
    found = (path.parent.name for path in workspace.glob("*/manifest.yaml"))
    return sorted(name for name in found if _LEGAL_NAME.fullmatch(name))


def find(workspace: Path, name: str) -> Layout:
    """Return an existing campaign's layout; BadInput names the campaigns there are."""
    layout = Layout(workspace / check_name(name))
    if not layout.manifest.is_file():
        known = campaigns(workspace) or "none yet; `kopt init NAME …` makes one"
        raise BadInput(f"{name!r} does not exist in {workspace}", where="campaign", legal=known)
    return layout
