"""The paths of a campaign's files, and the names that a campaign may have."""

from __future__ import annotations

import re
from collections.abc import Callable
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
class _Numbered:
    """Paths in a campaign directory by their numbers: those of round, attempt or version."""

    place: str

    def __get__(self, layout: Layout, owner: type[Layout]) -> Callable[..., Path]:
        return lambda *numbers: layout.directory / self.place.format(*numbers)


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one campaign directory."""

    directory: Path

    manifest = _Below("manifest.yaml")
    ledger = _Below("ledger.jsonl")
    readme = _Below("README.md")
    baseline_report = _Below("baseline.md")
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
    quick_baseline = _Below("rounds/round-1/artifacts/quick_baseline.log")

    memory = _Numbered("memory/v{}.json")
    round = _Numbered("rounds/round-{}")
    summary = _Numbered("rounds/round-{}/summary.md")
    verdict = _Numbered("rounds/round-{}/verdict.json")
    snapshot = _Numbered("rounds/round-{}/kernel_snapshot")
    artifacts = _Numbered("rounds/round-{}/artifacts")
    #: The evidence of one attempt, by round and attempt.
    attempt = _Numbered("rounds/round-{}/artifacts/attempt-{}")
    #: The evidence of one final comparison.
    final = _Numbered("final/attempt-{}")
    #: What lay in the tree before a `kopt restore`.
    replaced = _Numbered("replaced/{}")

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def workspace(self) -> Path:
        return self.directory.parent


def kept_records(workspace: Path) -> list[Path]:
    """Return what kernel code has no reason to read: the campaigns' evidence and ledgers."""
    names = (*_RECORDS, "ledger.jsonl")
    return [
        (workspace / campaign / name).resolve()
        for campaign in campaigns(workspace)
        for name in names
    ]


def check_name(name: str) -> str:
    """Return a legal campaign name; BadInput for one that could leave the workspace."""
    if not _LEGAL_NAME.fullmatch(name) or ".." in name:
        legal = "letters, digits, '.', '_', '-', starting with a letter or digit, without '..'"
        raise BadInput(f"the name {name!r} is not usable", where="campaign", legal=legal)
    return name


def hide_from_git(folder: Path) -> None:
    """Have git ignore a folder by a file in it, in a repository that comes later too.

    A file that is there stays as it is: its owner may want to commit some of the folder.
    """
    file = folder / ".gitignore"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text("# Written by pytest-kopt.\n*\n", encoding="utf-8")


def campaigns(workspace: Path) -> list[str]:
    names = (path.parent.name for path in workspace.glob("*/manifest.yaml"))
    return sorted(name for name in names if _LEGAL_NAME.fullmatch(name))


def find(workspace: Path, name: str) -> Layout:
    """Return an existing campaign's layout; BadInput names the campaigns there are."""
    layout = Layout(workspace / check_name(name))
    if not layout.manifest.is_file():
        existing = campaigns(workspace) or "none yet; `kopt init NAME …` makes one"
        raise BadInput(f"{name!r} does not exist in {workspace}", where="campaign", legal=existing)
    return layout
