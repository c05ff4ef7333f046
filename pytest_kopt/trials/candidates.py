"""The candidates of a race: read from folders and refs, before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from pathlib import Path, PurePosixPath

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import lineage
from pytest_kopt.campaign.kernel import KernelFile, KernelVersion, files_of
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.sameness.sources import differing

refused = partial(BadInput, where="--kopt-candidates")


@dataclass(frozen=True, slots=True)
class RaceEntrant:
    """A version to race; `size` is how many lines it changes."""

    name: str
    kernel: KernelVersion
    size: int


def candidates_of(campaign: Campaign, paths: Iterable[str], here: Path) -> tuple[RaceEntrant, ...]:
    """Return what is to race, each version once; `paths` are folders, relative to `here`, and refs.

    Raises BadInput for what cannot race, and for an edit in the tree that the winner would replace.
    """
    number, following = campaign.state.incumbent_round, campaign.state.next_round
    begun = campaign.state.rounds.get(following)
    decided = begun.last.decided if begun else None
    if decided and decided.decision is Decision.REPAIR:
        raise refused(f"round {following} is open", legal="mend it, or kopt discard")
    if campaign.manifest.rebuild_command:
        what = "versions that rebuild_command builds cannot race in one process"
        raise refused(what, legal="a round for each")
    incumbent = campaign.incumbent()
    versions: dict[str, KernelVersion] = {}
    for name in paths:
        version = _version(campaign, incumbent, name, here)
        if not differing(incumbent.sources, version.sources):
            what = f"{name!r} is the same code as round {number}"
            raise refused(what, legal="a candidate with other code")
        same = (n for n, raced in versions.items() if not differing(raced.sources, version.sources))
        twin = next(same, None)
        if twin is None:
            versions[name] = version
        elif name not in twin.split(", "):
            versions[f"{twin}, {name}"] = versions.pop(twin)
    edited = lineage.edited(campaign.root, campaign.manifest, campaign.state)
    if edited and not any(campaign.candidate().same_content(v) for v in versions.values()):
        raise refused(
            f"in the tree, {', '.join(edited)} is not round {number}'s, and the winner would "
            "replace it",
            legal=f"make the edit a candidate, or `kopt restore {number}`",
        )
    return tuple(
        RaceEntrant(name, version, _size(version, incumbent)) for name, version in versions.items()
    )


def _version(campaign: Campaign, incumbent: KernelVersion, name: str, here: Path) -> KernelVersion:
    folder = here / name
    sources = campaign.manifest.kernel_source
    if folder.is_dir():
        known = {p.relative_to(folder).as_posix(): p.read_bytes() for p in files_of(folder)}
        foreign = [path for path in known if not _belongs(path, sources)]
        if foreign or not known:
            what = f"{foreign[0]!r}, which is no kernel file" if foreign else "no file"
            legal = f"files of kernel_source: {', '.join(sources)}"
            raise refused(f"{name!r} holds {what}", legal=legal)
        files = {path: file for path, file in incumbent.files.items() if path not in known}
    else:
        known, files = _at(campaign, name), {}
    modes = {path: file.mode for path, file in incumbent.files.items()}
    for path, content in known.items():
        files[path] = KernelFile(content, modes.get(path, 0o644))
    return KernelVersion(files)


def _at(campaign: Campaign, ref: str) -> dict[str, bytes]:
    repository = campaign.repository
    commit = repository.commit_of(ref) if repository else None
    if repository is None or commit is None:
        raise refused(f"{ref!r} is neither a folder nor a ref", legal="a folder, or a commit")
    inside = repository.relative(campaign.root, ".")
    prefix = "" if inside == "." else f"{inside}/"
    below = (p.removeprefix(prefix) for p in repository.blobs(commit) if p.startswith(prefix))
    found = {
        path: repository.content(commit, prefix + path)
        for path in below
        if _belongs(path, campaign.manifest.kernel_source)
    }
    if not found:
        raise refused(f"{ref!r} has no kernel file", legal="a commit that has one")
    return found


def _belongs(path: str, sources: Iterable[str]) -> bool:
    place = PurePosixPath(path)
    return any(place.is_relative_to(source) for source in sources)


def _size(version: KernelVersion, other: KernelVersion) -> int:
    """Return how many lines two versions differ in, a file that only one has as a whole."""
    return sum(
        line[:1] in "+-"
        for path in version.files.keys() | other.files.keys()
        for line in list(unified_diff(_lines(other, path), _lines(version, path), lineterm=""))[2:]
    )


def _lines(version: KernelVersion, path: str) -> list[str]:
    file = version.files.get(path)
    return file.content.decode(errors="replace").splitlines() if file else []
