"""A race: of several candidates one becomes the round's, and is judged as any other.

The tree holds the incumbent, and pytest runs its cases: a race has nothing to say where they fail.
Each candidate is checked in a tree of its own; those that pass meet the incumbent in the same
processes. The best is put into the tree, and from there on the round is the ordinary one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import worktrees
from pytest_kopt.campaign.kernel import KernelFile, KernelVersion, files_of
from pytest_kopt.cases.details import in_a_line
from pytest_kopt.cases.order import Depth
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.decide.grounds import Ground, Observation, by_ground
from pytest_kopt.decide.race_rule import (
    LAST_LOOK,
    RACE_LOOKS,
    Standing,
    by_checks,
    heat,
    interval,
    is_over,
    winner,
)
from pytest_kopt.decide.series import SeriesTable
from pytest_kopt.decide.verdict import Decision, RaceCandidate
from pytest_kopt.errors import BadInput
from pytest_kopt.paired.arms import NotComparable, Versions
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.pairing import Criteria, series_of
from pytest_kopt.paired.replica import Caught, Unloadable
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.sameness.sources import differing
from pytest_kopt.schema.metrics import parse_primary
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import CampaignTrial
from pytest_kopt.trials.measurements import InCopies, Measurements
from pytest_kopt.trials.rounds.candidate import (
    Examination,
    judge_candidate,
    open_against_incumbent,
    record,
)
from pytest_kopt.trials.stages import (
    Begun,
    Gathered,
    Judged,
    OpenTrial,
    RacedCandidate,
    RaceEntrant,
    Ran,
    add_error_rows,
    gather,
)
from pytest_kopt.versions.tree import Tree

#: What the best of a race may turn out to be, and the next best is judged in its place.
_FOUND_OUT = (Decision.REPAIR, Decision.REJECTED_OVERFIT)
_refused = partial(BadInput, where="--kopt-candidates")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A candidate as far as it has come; the `record` has its change while it raced, if it did."""

    candidate: RaceEntrant
    collector: Collector
    record: RaceCandidate

    @property
    def name(self) -> str:
        return self.candidate.name

    def saying(self, update: Mapping[str, Any]) -> _Entry:
        return replace(self, record=self.record.model_copy(update=update))

    def at(self, place: int) -> RacedCandidate:
        record = self.saying({"place": place}).record
        return RacedCandidate(record, self.candidate.kernel, self.collector.table())


@dataclass(frozen=True, slots=True)
class RaceTrees:
    """Trees of the project: one of the incumbent (its copy in the race), one for each candidate.

    `ids` are the cases that run in them.
    """

    ids: tuple[str, ...]
    changed: tuple[str, ...]
    incumbent: Tree
    by_name: Mapping[str, Tree]

    @classmethod
    def of(cls, begun: Begun) -> RaceTrees:
        versions = {"": begun.kernel}
        versions |= {raced.name: raced.kernel for raced in begun.opened.candidates}
        changed = sorted({path for version in versions.values() for path in version.files})
        trees = {
            name: begun.trees.tree({path: version.sources.get(path) for path in changed})
            for name, version in versions.items()
        }
        return cls(tuple(begun.opened.frozen), tuple(changed), trees.pop(""), trees)

    def checked(self) -> InCopies:
        """Return what checks all candidates."""
        return InCopies([tree.copy for tree in self.by_name.values()], self.ids)

    def timed(self, name: str) -> InCopies:
        """Return what checks and times a candidate as a lone one is."""
        return InCopies([self.by_name[name].copy], self.ids, Depth.TIMES)

    def together(self, names: Sequence[str]) -> Versions:
        trees = (self.incumbent, *(self.by_name[name] for name in names))
        return Versions(trees, self.changed, raced=tuple(names))


class Race(CampaignTrial):
    """A round of several candidates."""

    runs_benchmark = False
    depth = Depth.CHECKS

    def open(self) -> OpenTrial:
        settings, campaign = self.asked.settings, self.campaign
        for wrong, fix in (
            (settings.compare == "stored", "--kopt-compare paired"),
            (
                not settings.apply,
                "remove --kopt-no-apply: a race puts the best version into the tree",
            ),
        ):
            if wrong:
                raise _refused("this option does not fit a race", fix=fix)
        opened = open_against_incumbent(self.asked)
        candidates = candidates_of(campaign, settings.candidates, Path.cwd())
        names = ", ".join(candidate.name for candidate in candidates)
        return replace(opened, candidates=candidates, title=f"{opened.title}, a race of {names}")

    def prepare(self, opened: OpenTrial, stack: ExitStack) -> OpenTrial:
        """Have the incumbent in the tree, where a race that was killed left a candidate."""
        campaign, kernel = self.campaign, self.campaign.candidate()
        if any(kernel.same_content(candidate.kernel) for candidate in opened.candidates):
            campaign.incumbent().restore(campaign.root, over=kernel)
        return opened

    def conclude(self, ran: Ran) -> Closing:
        """Check, race, put the best into the tree and close its round; one found out gives way."""
        gathered = gather(ran)
        if unfit := by_ground(_observed(gathered), gathered.policy):
            return record(Judged(gathered, unfit))
        root, incumbent = self.campaign.root, ran.begun.kernel
        trees = RaceTrees.of(ran.begun)
        racers, out = _raced(gathered, trees)
        while True:
            first, *rest = [*racers, *out]
            kernel = first.candidate.kernel
            kernel.restore(root, over=incumbent)
            try:
                raced = tuple(entry.at(place) for place, entry in enumerate([first, *rest], 1))
                judged = _judged(ran, first, raced, trees)
                verdict = judged.verdict
                closing = None
                if len(racers) < 2 or verdict.decision not in _FOUND_OUT:
                    closing = record(judged)
            except BaseException:
                incumbent.restore(root, over=kernel)
                raise
            if closing is None or closing.verdict.decision is Decision.INCOMPLETE:
                incumbent.restore(root, over=kernel)
            if closing is not None:
                return closing
            racers.remove(first)
            # A race shows the flags of no other than the best.
            seen = [found for found in verdict.findings if found.rejects][:1]
            reason = "; ".join([verdict.reason, *(f"{one.check}: {one.message}" for one in seen)])
            decided = verdict.model_dump(include={"decision"})
            out.insert(0, first.saying({**decided, "reason": reason}))


def _judged(ran: Ran, first: _Entry, raced: tuple[RacedCandidate, ...], trees: RaceTrees) -> Judged:
    """Judge the best, which lies in the tree, as a lone candidate is."""
    campaign, full = ran.opened.campaign, first.collector
    opened = replace(ran.opened, raced=raced)
    begun = replace(ran.begun, opened=opened, kernel=campaign.candidate())
    if first.record.decision is Decision.ROLLED_BACK:
        (full,) = ran.measurements.run_in(trees.timed(first.name), "checking the winner")
    ran.collector.take_over(full)
    return judge_candidate(replace(ran, begun=begun))


def _observed(gathered: Gathered) -> Iterator[Observation | None]:
    """Yield why the incumbent's own cases cannot be relied on."""
    ran, results = gathered.ran, gathered.results
    yield from judging.unfinished(ran.collector, ran.opened.frozen, ran.interrupted)
    yield judging.interpreted(results)
    failed = [result.nodeid for result in results if result.check != "PASS"]
    if failed or gathered.edits:
        why = f"the current best itself fails {failed[0]}" if failed else judging.EDITED_HARNESS
        yield Observation(Ground.UNSOUND, why, "nothing was raced: find out why")


def _raced(gathered: Gathered, trees: RaceTrees) -> tuple[list[_Entry], list[_Entry]]:
    """Return the candidates that passed their checks, the best first, and the others."""
    ran, candidates = gathered.ran, gathered.opened.candidates
    collectors = ran.measurements.run_in(trees.checked(), "checking candidate")
    checks = zip(candidates, collectors, strict=True)
    entries = [_checked(candidate, collector, ran) for candidate, collector in checks]
    passed = [entry for entry in entries if not entry.record.reason]
    out = [entry for entry in entries if entry.record.reason]
    if len(passed) < 2:
        return passed, out
    race = _race(gathered, [entry.candidate for entry in passed], trees)
    sizes = {entry.name: entry.candidate.size for entry in passed}
    first = winner(race.tables, race.left, sizes) if race.left else ""

    def rank(entry: _Entry) -> tuple[bool, bool, float]:
        name = entry.name
        return name != first, name not in race.left, -race.standings[name].mean

    passed.sort(key=rank)
    behind = f"not better than {passed[0].name}"
    return [
        entry.saying(
            {
                "reason": race.standings[entry.name].out or behind,
                **(interval(race.tables[entry.name]) if entry.name in race.tables else {}),
            }
        )
        for entry in passed
    ], out


def _checked(candidate: RaceEntrant, collector: Collector, ran: Ran) -> _Entry:
    """Judge what a candidate's check came to; one that races has no reason not to."""
    opened = ran.opened
    add_error_rows(collector, opened.frozen)
    judging.fail_rows_of_failed_tests(collector)
    results = collector.in_order()
    damning = judging.rejecting(Examination(opened.campaign, candidate.kernel).findings(results))
    observed = [Observation(Ground.DISHONEST, str(finding)) for finding in damning]
    observed += (
        Observation(Ground.WRONG, f"{case.nodeid} is {case.check}: {in_a_line(case.diagnosis)}")
        for case in results
        if case.check != "PASS"
    )
    # A case that its own version keeps from speaking is wrong.
    lost = judging.unfinished(collector, opened.frozen, "")
    observed += (replace(missing, ground=Ground.WRONG) for missing in lost)
    refused = by_ground(observed, opened.asked.policy)
    record = by_checks(candidate.name, candidate.kernel.hashes, refused)
    return _Entry(candidate, collector, record)


def _race(gathered: Gathered, passed: Sequence[RaceEntrant], trees: RaceTrees) -> Raced:
    opened, policy = gathered.opened, gathered.policy
    results = [result for result in gathered.results if result.nodeid in opened.timed]
    campaign = opened.campaign
    metric = parse_primary(campaign.manifest.primary_metric, gathered.rows, policy.directions)[0]
    history = NoiseHistory.here(opened.asked.settings.workspace, results, campaign)
    names = [entrant.name for entrant in passed]
    criteria = Criteria([metric], policy, history, gathered.rows.by_key(), core=opened.core)
    try:
        return run_race(gathered.ran.measurements, trees, names, results, criteria)
    except NotComparable as error:
        what = f"the candidates cannot be measured in one process: {error}"
        raise _refused(what, fix="measure each in a round of its own") from None


_Replicas = list[dict[str, CaseQuads]]


@dataclass(frozen=True, slots=True)
class Raced:
    """How a race went: each candidate's last standing, who is left, what was measured of each."""

    standings: Mapping[str, Standing]
    left: tuple[str, ...]
    tables: Mapping[str, SeriesTable]


def run_race(
    measurements: Measurements,
    trees: RaceTrees,
    names: Iterable[str],
    results: Sequence[CaseResult],
    criteria: Criteria,
) -> Raced:
    """Measure look by look, without those that are out, until one is left or the race is over.

    The first metric of the criteria decides.

    A candidate that ends or fails the processes it shares with others is out, and takes nobody with
    it. Raises NotComparable if only all together fail, and for a candidate that no process can hold
    next to the incumbent: it may be the best.
    """
    metric, left = criteria.metrics[0], list(names)
    #: Of all who are left: each was in every one of them.
    measured: _Replicas = []
    standings: dict[str, Standing] = {}
    tables: dict[str, SeriesTable] = {}
    with _Heats(measurements, trees, [result.nodeid for result in results]) as heats:
        for look in RACE_LOOKS:
            so_far = len(measured)
            replicas, broken = heats.run(left, look - so_far, LAST_LOOK - so_far)
            measured += replicas
            standings |= {name: Standing(None, float("-inf"), why) for name, why in broken.items()}
            left = [name for name in left if name not in broken]
            for name in left:
                raced = series_of(metric, results, measured, criteria, name)
                tables[name] = SeriesTable(tuple(raced))
            standings |= heat({name: tables[name] for name in left}, criteria.policy)
            left = [name for name in left if not standings[name].out]
            if is_over(standings, left):
                break
    return Raced(standings, tuple(left), tables)


class _Heats(ExitStack):
    """The heats: they measure the candidates that are left, from one look to the next."""

    def __init__(self, measurements: Measurements, trees: RaceTrees, ids: list[str]) -> None:
        super().__init__()
        self._measurements, self._trees, self._ids = measurements, trees, ids
        self._running: Comparison | None = None

    def run(self, names: Sequence[str], count: int, most: int) -> tuple[_Replicas, dict[str, str]]:
        """Return replicas of who can be measured together, and why others cannot; `most` in all."""
        if self._running is None:
            versions = self._trees.together(names)
            comparison = self._measurements.compare(self._ids, versions, most, "racing")
            self._running = self.enter_context(comparison)
        self._running.race(names)
        try:
            return list(self._running.replicas(count)), {}
        except (NotComparable, Caught) as error:
            self._running = None
            self.close()
            if len(names) == 1 and isinstance(error.__cause__, Unloadable):
                raise NotComparable(f"{names[0]}: {error}") from None
            if len(names) == 1:
                return [], {names[0]: str(error)}
            whole = error
        broken: dict[str, str] = {}
        for name in names:
            with _Heats(self._measurements, self._trees, self._ids) as alone:
                broken |= alone.run([name], 1, 1)[1]
        if not broken:
            raise NotComparable(str(whole))
        rest = [name for name in names if name not in broken]
        if not rest:
            return [], broken
        replicas, more = self.run(rest, count, most)
        return replicas, broken | more


def candidates_of(campaign: Campaign, paths: Iterable[str], here: Path) -> tuple[RaceEntrant, ...]:
    """Return what is to race, each version once; `paths` are folders, relative to `here`, and refs.

    Raises BadInput for what cannot race, and for an edit in the tree that the winner would replace.
    """
    number, following = campaign.state.incumbent_round, campaign.state.next_round
    begun = campaign.state.rounds.get(following)
    decided = begun.last.decided if begun else None
    if decided and decided.decision is Decision.REPAIR:
        raise _refused(
            f"round {following} is open", fix=f"pytest --kopt-round {following}, or kopt discard"
        )
    if campaign.manifest.rebuild_command:
        what = "versions that rebuild_command builds cannot race in one process"
        raise _refused(what, fix="measure each in a round of its own")
    incumbent = campaign.incumbent()
    versions: dict[str, KernelVersion] = {}
    for name in paths:
        version = _version(campaign, incumbent, name, here)
        if not differing(incumbent.sources, version.sources):
            what = f"{name!r} is the same code as round {number}"
            raise _refused(what, fix="change its code, or leave it out")
        same = (n for n, raced in versions.items() if not differing(raced.sources, version.sources))
        twin = next(same, None)
        if twin is None:
            versions[name] = version
        elif name not in twin.split(", "):
            versions[f"{twin}, {name}"] = versions.pop(twin)
    edited = worktrees.edited(campaign.root, campaign.manifest, campaign.state)
    if edited and not any(campaign.candidate().same_content(v) for v in versions.values()):
        raise _refused(
            f"{', '.join(edited)} differs from round {number}, and the winner would replace it",
            fix=f"make the edit a candidate, or kopt restore {campaign.name} {number}",
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
            raise _refused(f"{name!r} holds {what}", legal=legal)
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
        raise _refused(f"{ref!r} is neither a folder nor a ref", legal="a folder, or a commit")
    inside = repository.relative(campaign.root, ".")
    prefix = "" if inside == "." else f"{inside}/"
    below = (p.removeprefix(prefix) for p in repository.blobs(commit) if p.startswith(prefix))
    found = {
        path: repository.content(commit, prefix + path)
        for path in below
        if _belongs(path, campaign.manifest.kernel_source)
    }
    if not found:
        raise _refused(f"{ref!r} has no kernel file", fix="name a commit that has one")
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
