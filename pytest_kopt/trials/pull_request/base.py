"""The project as it was where a pull request branched off: its cases, and what they declare."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import pytest

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import contents_at
from pytest_kopt.cases.details import in_a_line
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.result import CaseResult, Collector, observed_by
from pytest_kopt.decide.hard_gates import some
from pytest_kopt.decide.policy import Policy
from pytest_kopt.devices.states import COLD
from pytest_kopt.devices.vendor import interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.fingerprint import Harness
from pytest_kopt.honesty.nearby_shapes import USES
from pytest_kopt.options.declare import NAMED
from pytest_kopt.processes.case_processes import Rerun
from pytest_kopt.processes.child import Child, mover
from pytest_kopt.trials.harness import PytestSetup
from pytest_kopt.trials.judging import under
from pytest_kopt.trials.measurements import InCopies, Measurements
from pytest_kopt.versions.tree import contents_of


@dataclass(frozen=True, slots=True)
class Base:
    """The merge base of a ref and HEAD, or files elsewhere, and what the tree has otherwise."""

    #: As the user's command has it: a git ref or a path.
    name: str
    #: The merge base's hash; "" for files.
    commit: str
    #: The work tree; for files, pytest's root directory.
    root: Path
    #: The base's content of each changed path below the root, None where it did not exist.
    old: Mapping[str, bytes | None]

    def __str__(self) -> str:
        return f"--kopt-base {self.name} ({self.commit[:12]})" if self.commit else self.name

    @classmethod
    def of(cls, name: str, root: Path, here: Path, shown: str = "") -> Base:
        """Find what a ref, or a path relative to `here`, stands for; BadInput for anything else.

        `root` is pytest's root directory. A word that git knows is a ref. It is `shown` to the user
        as another one if the session runs in a tree that the user does not know.
        """
        repository = Repository.around(root)
        is_ref = repository is not None and repository.commit_of(name) is not None
        if name and not is_ref and (here / name).exists():
            old = contents_of(here / name, root.resolve())
            return cls(shown or name, "", root.resolve(), old)
        found = cls._of_ref(name, repository)
        return replace(found, name=shown or name)

    @classmethod
    def _of_ref(cls, ref: str, repository: Repository | None) -> Base:
        """Find the merge base and the changes; BadInput where there is none."""
        refused = partial(BadInput, where=f"--kopt-base {ref}")
        if repository is None or repository.head is None:
            what = "it is no path, and this is no git repository with a commit"
            fix = "name a folder or file that holds the other version"
            raise refused(what, fix=fix)
        named = repository.commit_of(ref)
        cut = (
            "get the history that this shallow clone lacks: git fetch --unshallow (in CI: "
            "fetch-depth: 0)"
            if repository.is_shallow
            else ""
        )
        if named is None:
            fix = cut or "name a branch, tag or commit that is here, or a path; git fetch gets refs"
            raise refused("is unknown here", fix=fix)
        commit = repository.merge_base(named)
        if commit is None:
            what = "has no common history with HEAD here"
            raise refused(what, fix=cut or "name a branch that shares commits with HEAD")
        return cls(ref, commit, repository.root.resolve(), contents_at(repository, commit))


def take_inventory(
    config: pytest.Config, orders: WorkerOrders, base: Base, copy: tuple[Path, Path]
) -> Collector:
    """Collect the base's cases of this session's files; BadInput where they cannot be collected.

    `copy` is the project's root and a tree of the base.
    """
    found = Collector()
    args = _arguments(config, mover(config, *copy))
    if args is None or args:
        env = interpreter_environment(orders.device)
        start = partial(Child, config, orders, env, args, copy)
        # What is collected is told, and none of it asked for.
        found = Rerun(config, start, ids=(), lives=1).run()
        errors = found.collect_errors.items()
        found.collect_errors = {i: text.replace(f"{copy[1]}/", "") for i, text in errors}
    if death := found.startup_death:
        raise BadInput(
            f"pytest cannot collect its tests: {death}",
            where=str(base),
            fix="name a base whose tests load",
        )
    return found


def removed(
    config: pytest.Config,
    then: Collector,
    copy: tuple[Path, Path],
    now: Collector,
    measurements: Measurements,
) -> list[str]:
    """Return the base's cases that are gone or newly skipped; nothing of single tests' files."""
    if any("::" in word for word in config.stash[NAMED]):
        return []
    skipped = [nodeid for nodeid in then.order if nodeid in now.skipped]
    ran = set[str]()
    if skipped:
        (there,) = measurements.run_in(InCopies([copy], skipped))
        # What a test only has parameters for is no sign that it came to its case.
        came = {nodeid for nodeid, row in there.undecided.items() if not row.evidence.guessed}
        ran = came.difference(there.xfailed())
    return [nodeid for nodeid in then.order if nodeid not in now.order or nodeid in ran]


def _arguments(config: pytest.Config, moved: Callable[[str], str]) -> list[str] | None:
    """Return the command's files and folders that the base has, without "::": cases may be new.

    None where it names none, or modules: then the same words name the base's.
    """
    named = config.stash[NAMED]
    if not named or (config.option.pyargs and not any("::" in word for word in named)):
        return None
    here = Path(moved(str(config.invocation_params.dir)))
    paths = dict.fromkeys(here / moved(word.partition("::")[0]) for word in named)
    return [str(path) for path in paths if path.exists()]


def harness_of(
    root: Path, results: Sequence[CaseResult], setup: PytestSetup, plugins: Collection[str]
) -> tuple[set[str], set[str]]:
    """Return the files, below a root, that decide what is right in these cases.

    The files that importing the kernels runs belong to it too: a file may be both. `plugins` are
    files that pytest loaded, conftest files among them. A function that stands in a test or in one
    of these calls kernels anywhere in what was imported.
    """
    observed = observed_by(results)
    tests = dict.fromkeys(result.nodeid.partition("::")[0] for result in results)
    around = {*tests, *plugins, *filter(is_conftest, observed.loaded)}
    homes = {result.evidence.home or "" for result in results}
    kernel = {home for home in homes if home and not os.path.isabs(home)} - around
    if kernel != homes:
        kernel |= {*observed.loaded} - around - {*observed.judged_by}
    harness = Harness(root, tuple(tests), tuple(sorted(kernel)), setup.folders, setup.plugins)
    return {*harness.take({}, {}, observed).files}, harness.needed()


def is_conftest(path: str) -> bool:
    return PurePosixPath(path).name == "conftest.py"


@dataclass(frozen=True, slots=True)
class Difference:
    """The change of a case's declaration since the base; one that `loosens` lets more pass."""

    text: str
    loosens: bool = True


@dataclass(frozen=True, slots=True)
class ChangedCases:
    """The cases as they are `judged`, and what of them is not as at the base.

    Those `by_base` are judged by the base's tests. `together` are those of the base that only their
    changed tests can run. `looser` says what cases declare less than they did.
    """

    judged: Sequence[CaseResult]
    by_base: Collection[str]
    new: Sequence[str]
    together: Sequence[str]
    looser: Sequence[str]
    flags: Sequence[str]


def changed_cases(
    results: Sequence[CaseResult],
    there: Collector | None,
    known: Collection[str],
    policy: Policy,
    *,
    other: bool,
) -> ChangedCases:
    """Return which cases changed; `there` is what the base's tests say of the base's `known` ones.

    It is None where both have the same tests. If no kernel is an `other` one, a case that the base
    fails as well is judged by its own test.
    """
    by_base, together, flags = dict[str, CaseResult](), list[str](), list[str]()
    declared: dict[Difference, list[str]] = {}
    then_of = {result.nodeid: result for result in there.in_order()} if there else {}
    for now in (result for result in results if there and result.nodeid in known):
        then = then_of.get(now.nodeid)
        another = _other_function(then, now) if then and other and then.check == "PASS" else ""
        if then is None or then.check == "ERROR" or another:
            errors = {**there.collect_errors, **there.failures} if there else {}
            error = another or (then.diagnosis if then else under(now.nodeid, errors))
            why = f" ({in_a_line(error)})" if error else ""
            together += [now.nodeid] if other else []
            what = "changed together: not compared" if other else "not run by the base's test"
            flags.append(f"{what}: {now.nodeid}{why}")
            continue
        for difference in differences(then, now, policy) if now.check == "PASS" else ():
            declared.setdefault(difference, []).append(now.label)
        if then.check == "PASS" != now.check:
            text = f"{now.nodeid}: {in_a_line(now.diagnosis)}"
            flags.append(f"fails by its changed test: {text}")
        if other or then.check == "PASS":
            by_base[now.nodeid] = then
    looser = [f"{some(labels)} {d.text}" for d, labels in declared.items() if d.loosens]
    flags += [f"declares less than at the base: {text}" for text in looser]
    same = "declared otherwise than at the base, and no looser"
    flags += [f"{same}: {some(on)} {d.text}" for d, on in declared.items() if not d.loosens]
    judged = [by_base.get(result.nodeid, result) for result in results]
    new = [result.nodeid for result in results if result.nodeid not in known]
    flags += [f"new case, not compared: {nodeid}" for nodeid in new]
    return ChangedCases(judged, by_base.keys(), new, together, looser, flags)


def _other_function(then: CaseResult, now: CaseResult) -> str:
    """Say which function a case calls and which it called, "" for the same one.

    The name of what a test defines itself depends on how its file is imported.
    """
    before, after = then.evidence, now.evidence
    if before.function == after.function or after.home == now.nodeid.partition("::")[0]:
        return ""
    return f"calls {after.function}, the base {before.function}"


def differences(then: CaseResult, now: CaseResult, policy: Policy) -> Iterator[Difference]:
    """Yield what a case declares otherwise than it did, or what else it draws.

    The policy has the regression limit of a case without its own.
    """
    before, after = then.evidence, now.evidence
    if another := _other_function(then, now):
        yield Difference(another)
    gates, gates_now = before.tolerances or {}, after.tolerances or {}
    for name, gate in gates.items():
        if name not in gates_now:
            yield Difference(f"does not check {name} any more")
        elif gates_now[name] != gate:
            text = f"accepts {gates_now[name].describe()} for {name}, the base {gate.describe()}"
            yield Difference(text, not gates_now[name].implies(gate))
    for name in gates_now if gates else ():
        if name not in gates:
            yield Difference(f"checks {name} as well", loosens=False)
    for text, old, new in (
        (
            "excludes {} by its domain",
            {*(before.domain or ())}.difference(USES),
            {*(after.domain or ())}.difference(USES),
        ),
        ("declares input {} a weight", before.weights, after.weights),
        ("lets input {} hold results after a call (writes)", before.writes, after.writes),
        ("lets input {} hold anything after a call (consumes)", before.consumes, after.consumes),
    ):
        if more := sorted(map(str, {*(new or ())} - {*(old or ())})):
            yield Difference(text.format(", ".join(more)))
        if less := sorted(map(str, {*(old or ())} - {*(new or ())})):
            yield Difference(f"no longer {text.format(', '.join(less))}", loosens=False)
    uses, uses_now = (
        {*(domain or ())}.intersection(USES) for domain in (before.domain, after.domain)
    )
    if dropped := ", ".join(sorted(uses - uses_now)):
        yield Difference(f"no longer requires {dropped} by its domain")
    if added := ", ".join(sorted(uses_now - uses)):
        yield Difference(f"requires {added} by its domain", loosens=False)
    if before.nan != after.nan:
        yield Difference(f"declares nan={after.nan!r}, the base {before.nan!r}", bool(after.nan))
    for name in ("deterministic", "batch_invariant"):
        asked, asks = bool(getattr(before, name)), bool(getattr(after, name))
        if asked != asks:
            yield Difference(f"declares {name}={asks}, the base {asked}", asked)
    multiples = before.group_multiple or 1, after.group_multiple or 1
    if multiples[0] != multiples[1]:
        text = "draws group sizes in multiples of {1}, the base of {0}".format(*multiples)
        yield Difference(text, multiples[0] % multiples[1] != 0)
    if before.groups and not after.groups:
        yield Difference("draws no other group sizes")
    # The time of a call is the same in both: any will do.
    limit, limit_now = (
        policy.limit(side.limit_pct, side.limit_us, 1.0) for side in (before, after)
    )
    if limit != limit_now:
        text = f"may be slower by {limit_now}, at the base by {limit}"
        yield Difference(text, limit_now.pct > limit.pct or limit_now.us > limit.us)
    if then.weight != now.weight:
        text = f"has weight {now.weight:g}, at the base {then.weight:g}"
        yield Difference(text, now.weight < then.weight)
    for name, default in (("cache", COLD), ("operating_point", None)):
        measured, measures = (getattr(side, name) or default for side in (before, after))
        if measured != measures:
            yield Difference(f"declares {name}={measures!r}, the base {measured!r}")
    for unit in ("flops", "nbytes"):
        old_work, new_work = getattr(before, unit), getattr(after, unit)
        if old_work != new_work:
            pairs = zip(new_work or (0.0, 0.0), old_work or (0.0, 0.0), strict=True)
            text = f"declares {unit}={new_work}, the base {old_work}"
            yield Difference(text, any(new < old for new, old in pairs))
    if before.schema != after.schema:
        yield Difference(f"has the schema {after.schema!r}, at the base {before.schema!r}")
    if before.dims != after.dims:
        yield Difference(f"has the dims {after.dims}, at the base {before.dims}")
    elif before.drawn != after.drawn:
        yield Difference("draws other inputs")
