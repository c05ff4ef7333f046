"""A race: of several candidates one becomes the round's, and is judged as any other.

The tree holds the incumbent, and pytest runs its cases: a race has nothing to say where they fail.
Each candidate is checked in a tree of its own; those that pass meet the incumbent in the same
processes. The best is put into the tree, and from there on the round is the ordinary one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from difflib import unified_diff
from functools import partial
from pathlib import Path, PurePosixPath

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import worktrees
from pytest_kopt.campaign.kernel import KernelFile, KernelVersion, files_of
from pytest_kopt.cases.details import in_a_line
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
from pytest_kopt.decide.verdict import Decision, RaceCandidate, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.paired.arms import NotComparable, Versions
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.judge import Caught
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.pairing import Criteria, PairedResult, series_of
from pytest_kopt.paired.runner import Unloadable
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.sameness.sources import differing
from pytest_kopt.schema.metrics import parse_primary
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import (
    CampaignTrial,
    Racer,
    add_error_rows,
    record_round,
)
from pytest_kopt.trials.rounds.candidate import audited, judge_candidate, open_against_incumbent
from pytest_kopt.versions.tree import Tree

#: What the best of a race may turn out to be, and the next best is judged in its place.
_FOUND_OUT = (Decision.REPAIR, Decision.REJECTED_OVERFIT)
_refused = partial(BadInput, where="--kopt-candidates")


class Race(CampaignTrial):
    """A round of several candidates."""

    runs_benchmark = False
    only_checks = True

    def open(self) -> None:
        settings, campaign = self.settings, self.campaign
        unfit = "this option does not fit a race"
        if settings.compare == "stored":
            raise _refused(unfit, fix="--kopt-compare paired")
        if not settings.apply:
            fix = "remove --kopt-no-apply: a race puts the best version into the tree"
            raise _refused(unfit, fix=fix)
        open_against_incumbent(self)
        self.candidates = candidates_of(campaign, settings.candidates, Path.cwd())
        self.title += f", a race of {', '.join(self.candidates)}"

    def prepare(self) -> None:
        """Have the incumbent in the tree, where a race that was killed left a candidate."""
        campaign, kernel = self.campaign, self.campaign.candidate()
        if any(kernel.same_content(version) for version in self.candidates.values()):
            campaign.incumbent().restore(campaign.root, over=kernel)

    def conclude(self) -> Closing:
        """Check, race, put the best into the tree and close its round; one found out gives way."""
        self.gather()
        if unfit := by_ground(_observed(self), self.policy_of_cases):
            return record_round(self, unfit)
        root, incumbent, level = self.campaign.root, self.kernel, self.level
        versions = {"": incumbent, **self.candidates}
        changed = tuple(sorted({path for version in versions.values() for path in version.files}))
        trees = {
            name: self.trees.tree({**dict.fromkeys(changed), **version.sources})
            for name, version in versions.items()
        }
        racers, out = _raced(self, trees, changed)
        while True:
            first, *rest = [*racers, *out]
            first.kernel.restore(root, over=incumbent)
            try:
                for place, racer in enumerate((first, *rest), 1):
                    racer.say(place=place)
                self.kernel, self.raced = self.campaign.candidate(), (first, *rest)
                self.level = level
                verdict, paired, detail = _judged(self, trees)
                closing = None
                if len(racers) < 2 or verdict.decision not in _FOUND_OUT:
                    closing = record_round(self, verdict, paired, detail)
            except BaseException:
                incumbent.restore(root, over=first.kernel)
                raise
            if closing is None or closing.verdict.decision is Decision.INCOMPLETE:
                incumbent.restore(root, over=first.kernel)
            if closing is not None:
                return closing
            racers.remove(first)
            # A race shows the flags of no other than the best.
            cheats = [finding for finding in verdict.findings if finding.rejects][:1]
            reason = "; ".join([verdict.reason, *(f"{one.check}: {one.message}" for one in cheats)])
            first.say(**verdict.model_dump(include={"decision"}), reason=reason)
            out.insert(0, first)


def _judged(
    trial: CampaignTrial, trees: Mapping[str, Tree]
) -> tuple[Verdict, PairedResult | None, str]:
    """Judge the best, which lies in the tree, as a lone candidate is."""
    first = trial.raced[0]
    full = first.collector
    if first.record.decision is Decision.ROLLED_BACK:
        copies, ids = [trees[first.name].copy], [*trial.frozen]
        (full,) = trial.measurements.run_in(copies, ids, "checking the winner", times=True)
    trial.collector.take_over(full)
    return judge_candidate(trial)


def _observed(trial: CampaignTrial) -> Iterator[Observation | None]:
    """Yield why the incumbent's own cases cannot be relied on."""
    results = trial.results
    yield from judging.unfinished(trial.collector, trial.frozen, trial.interrupted)
    yield judging.interpreted(results)
    failed = [result.nodeid for result in results if result.check != "PASS"]
    if failed or trial.edits:
        why = f"the current best itself fails {failed[0]}" if failed else judging.EDITED_HARNESS
        yield Observation(Ground.UNSOUND, why, "nothing was raced: find out why")


def _raced(
    trial: Race, trees: Mapping[str, Tree], changed: tuple[str, ...]
) -> tuple[list[Racer], list[Racer]]:
    """Return the candidates that passed their checks, the best first, and the others."""
    copies = [trees[name].copy for name in trial.candidates]
    collectors = trial.measurements.run_in(copies, [*trial.frozen], "checking candidate")
    racers = [
        Racer(kernel, collector, _check(name, kernel, collector, trial))
        for (name, kernel), collector in zip(trial.candidates.items(), collectors, strict=True)
    ]
    passed = [racer for racer in racers if not racer.record.reason]
    out = [racer for racer in racers if racer.record.reason]
    if len(passed) < 2:
        return passed, out
    standings, left, tables = _race(trial, [racer.name for racer in passed], trees, changed)
    sizes = {racer.name: lines_changed(racer.kernel, trial.kernel) for racer in passed}
    first = winner(tables, left, sizes) if left else ""

    def rank(racer: Racer) -> tuple[bool, bool, float]:
        return racer.name != first, racer.name not in left, -standings[racer.name].mean

    passed.sort(key=rank)
    for racer in passed:
        name = racer.name
        figures = interval(tables[name]) if name in tables else {}
        racer.say(reason=standings[name].out or f"not better than {passed[0].name}", **figures)
    return passed, out


def _check(
    name: str, kernel: KernelVersion, collector: Collector, trial: CampaignTrial
) -> RaceCandidate:
    """Judge what a candidate's check came to; one that races has no reason not to."""
    add_error_rows(collector, trial.frozen)
    judging.fail_rows_of_failed_tests(collector)
    results = collector.in_order()
    findings = [*judging.findings_of(results), *audited(trial.campaign, kernel)]
    damning = judging.rejecting(findings)
    observed = [Observation(Ground.DISHONEST, str(finding)) for finding in damning]
    observed += (
        Observation(Ground.WRONG, f"{case.nodeid} is {case.check}: {in_a_line(case.diagnosis)}")
        for case in results
        if case.check != "PASS"
    )
    # A case that its own version keeps from speaking is wrong.
    lost = judging.unfinished(collector, trial.frozen, "")
    observed += (Observation(Ground.WRONG, missing.reason) for missing in lost)
    return by_checks(name, kernel.hashes, by_ground(observed, trial.policy))


def _race(
    trial: CampaignTrial, names: Sequence[str], trees: Mapping[str, Tree], changed: tuple[str, ...]
) -> _Outcome:
    policy = trial.policy_of_cases
    results = [result for result in trial.results if result.nodeid not in trial.untimed]
    campaign = trial.campaign
    metric = parse_primary(campaign.manifest.primary_metric, trial.rows, policy.directions)[0]
    history = NoiseHistory.here(trial.settings.workspace, results, campaign)
    criteria = Criteria([metric], policy, history, trial.rows.by_key(), core=trial.core)

    def start(names: Sequence[str], most: int) -> Comparison:
        places = (trees[""], *(trees[name] for name in names))
        versions = Versions(places, changed, raced=tuple(names))
        return trial.measurements.compare(results, versions, most, "racing")

    try:
        return run_race(start, names, results, criteria)
    except NotComparable as error:
        what = f"the candidates cannot be measured in one process: {error}"
        raise _refused(what, fix="measure each in a round of its own") from None


#: Begins a comparison of candidates in so many replicates at most.
Start = Callable[[Sequence[str], int], AbstractContextManager[Comparison]]
#: Each candidate's last standing, who is left, and what was measured of each.
_Outcome = tuple[dict[str, Standing], list[str], dict[str, SeriesTable]]


def run_race(
    start: Start,
    names: Iterable[str],
    results: Sequence[CaseResult],
    criteria: Criteria,
) -> _Outcome:
    """Measure look by look, without those that are out, until one is left or the race is over.

    The first metric of the criteria decides.

    A candidate that ends or fails the processes it shares with others is out, and takes nobody with
    it. Raises NotComparable if only all together fail, and for a candidate that no process can hold
    next to the incumbent: it may be the best.
    """
    metric, left = criteria.metrics[0], list(names)
    #: Of all who are left: each was in every one of them.
    measured: list[dict[str, CaseQuads]] = []
    standings: dict[str, Standing] = {}
    tables: dict[str, SeriesTable] = {}
    with ExitStack() as heats:
        comparison: Comparison | None = None
        for look in RACE_LOOKS:
            so_far = len(measured)
            while left and len(measured) == so_far:
                most = LAST_LOOK - so_far
                comparison = comparison or heats.enter_context(start(left, most))
                comparison.race(left)
                try:
                    measured += list(comparison.replicas(look - so_far))
                except (NotComparable, Caught) as together:
                    comparison = None
                    heats.close()
                    for name, why in _broken(start, left, together).items():
                        standings[name] = Standing(None, float("-inf"), why)
                        left.remove(name)
            for name in left:
                raced = series_of(metric, results, measured, criteria, name)
                tables[name] = SeriesTable(tuple(raced))
            standings |= heat({name: tables[name] for name in left}, criteria.policy)
            left = [name for name in left if not standings[name].out]
            if is_over(standings, left):
                break
    return standings, left, tables


def _broken(start: Start, names: Sequence[str], together: NotComparable | Caught) -> dict[str, str]:
    """Return who cannot be measured alone either, and why; NotComparable if nobody is to blame."""
    if len(names) == 1:
        if isinstance(together.__cause__, Unloadable):
            raise NotComparable(f"{names[0]}: {together}") from None
        return {names[0]: str(together)}
    broken: dict[str, str] = {}
    for name in names:
        try:
            with start([name], 1) as comparison:
                comparison.race([name])
                list(comparison.replicas(1))
        except (NotComparable, Caught) as alone:
            broken |= _broken(start, [name], alone)
    if not broken:
        raise NotComparable(str(together))
    return broken


def candidates_of(campaign: Campaign, paths: Iterable[str], here: Path) -> dict[str, KernelVersion]:
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
    return versions


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


def lines_changed(version: KernelVersion, best: KernelVersion) -> int:
    """Return how many lines two versions differ in, a file that only one has as a whole."""
    return sum(
        line[:1] in "+-"
        for path in version.files.keys() | best.files.keys()
        for line in list(unified_diff(_lines(best, path), _lines(version, path), lineterm=""))[2:]
    )


def _lines(version: KernelVersion, path: str) -> list[str]:
    file = version.files.get(path)
    return file.content.decode(errors="replace").splitlines() if file else []
