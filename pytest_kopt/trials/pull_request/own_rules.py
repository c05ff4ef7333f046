"""A pull request does not choose what judges it: options, the policy's file, what cases declare.

Conftest files and plugins may edit `config.option` and pytest's ini values as they like: only the
command and the settings files count.
"""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.config.findpaths import get_common_ancestor, locate_config

from pytest_kopt.cases.details import in_a_line
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.decide.grounds import some
from pytest_kopt.decide.policy import Policy
from pytest_kopt.devices.states import COLD
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.nearby_shapes import USES
from pytest_kopt.options.declare import CHOICES, NAMED, options, settings_keys
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired import noise
from pytest_kopt.processes.child import mover
from pytest_kopt.trials.harness import pytest_section
from pytest_kopt.trials.judging import under
from pytest_kopt.trials.pull_request.base import Base, is_conftest
from pytest_kopt.versions.affected_modules import project_modules

#: Where pytest looks for its settings.
_SETTINGS_FILES = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"),
    *("pyproject.toml", "tox.ini", "setup.cfg"),
)
#: Options that decide nothing.
_IDLE = frozenset({"kopt_summary_csv", "kopt_gpu_wait", "kopt_campaign"})
_DEFAULTS = {name: legal[0] for name, legal in CHOICES.items()} | {"kopt_policy": "primus"}


def check_rules(
    config: pytest.Config,
    settings: Settings,
    base: Base,
    section: Mapping[str, Any],
    differing: Collection[str],
    where: Sequence[str],
) -> None:
    """Raise BadInput where a change, in paths that are `differing`, sets what judges it.

    That is what the command line, the environment and the `section` of the base's settings say, the
    policy's file, and what is recorded of the noise. `where` is what `edited_around` returned.
    """
    root = base.root.resolve()
    places = {root / path: path for path in differing}
    records = noise.path_of(settings.workspace, "").parent.resolve()
    edited = [path for place, path in places.items() if place.is_relative_to(records)]
    edited += [places.get(Path(settings.policy).resolve(), "")] if settings.policy else []
    what = next((f"the change edits {path}, which judges it" for path in edited if path), "")
    commanded_values = commanded(config, section)
    here = _plain(vars(config.option), {key: config.getini(key) for key in settings_keys()})
    # What the base's conftest files and plugins set is the base's.
    own = (name for name in here if where and commanded_values[name] != here[name])
    if name := next(own, ""):
        by_settings = commanded(config, pytest_section(config.inipath))
        if by_settings[name] == here[name] and config.inipath:
            where = [os.path.relpath(config.inipath.resolve(), root)]
        # An option as a command has it; a key without one has its name.
        spelled = {properties["dest"]: names[-1] for names, properties in options()}
        what = (
            f"{' or '.join(where)} sets {spelled.get(name, name)} to "
            f"{here[name] or 'nothing'} instead of {commanded_values[name] or 'nothing'}: a change "
            "may not choose its own rules"
        )
    if what:
        raise BadInput(
            what,
            where=str(base),
            fix="give the option on the command line, or merge it in an earlier pull request",
        )


def edited_around(
    config: pytest.Config, root: Path, section: Mapping[str, Any], differing: Collection[str]
) -> list[str]:
    """Return what differs of the conftest files, of what this process imported, and of settings.

    This process imports conftest files, plugins and what they import, and no kernels.
    """
    imported = {path.relative_to(root).as_posix() for path in project_modules(root).values()}
    edited = {path for path in differing if is_conftest(path) or path in imported}
    return sorted(edited | edited_settings(config, section, differing))


def edited_settings(
    config: pytest.Config, section: Mapping[str, Any], differing: Collection[str]
) -> set[str]:
    """Return the settings files that differ, where pytest's section is another than the base's."""
    if section == pytest_section(config.inipath):
        return set()
    return {path for path in differing if Path(path).name in _SETTINGS_FILES}


def settings_of(config: pytest.Config, copy: tuple[Path, Path]) -> Mapping[str, Any]:
    """Return the section of settings that pytest finds for the same command in a copy of a root."""
    moved = mover(config, *copy)
    here = Path(moved(str(config.invocation_params.dir)))
    if file := config.option.inifilename:
        return pytest_section(here / moved(file))
    places = [here / moved(word.partition("::")[0]) for word in config.stash.get(NAMED, ())]
    above = get_common_ancestor(here, [place for place in places if place.exists()])
    return pytest_section(locate_config(here, [above])[1])


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(message, where="a command's words")


def commanded(config: pytest.Config, section: Mapping[str, Any]) -> dict[str, str]:
    """Return what the command line, the environment and a section of settings say, by option.

    The section is pytest's of a settings file. A key without an option stands under its own name.
    """
    words = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    words += map(str, config.invocation_params.args)
    section = {**section, **_overrides(_parsed(words)["override_ini"])}
    addopts = section.get("addopts", "")
    before = shlex.split(addopts) if isinstance(addopts, str) else [*map(str, addopts)]
    parsed = _parsed([*before, *words])
    return _plain(parsed, {**section, **_overrides(parsed["override_ini"])})


def _parsed(words: Sequence[str]) -> dict[str, Any]:
    parser = _Parser(add_help=False, allow_abbrev=False, fromfile_prefix_chars="@")
    parser.add_argument("-o", "--override-ini", action="append", default=[])
    for names, properties in options():
        parser.add_argument(*names, **properties)
    return vars(parser.parse_known_args(words)[0])


def _overrides(settings: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (setting.partition("=") for setting in settings)}


def _plain(given: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, str]:
    """Return what is asked for as text, "" for what is not."""
    names = {properties["dest"] for _, properties in options()} | settings_keys()
    return {
        name: str(given.get(name) or section.get(name) or _DEFAULTS.get(name) or "")
        for name in sorted(names - _IDLE)
    }


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

    It is None where both have the same tests. A case that its own test alone fails is judged by
    that; if no kernel is an `other` one, so is a case that the base fails as well.
    """
    by_base, together, flags = dict[str, CaseResult](), list[str](), list[str]()
    declared: dict[tuple[str, bool], list[str]] = {}
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
        elif other or then.check == "PASS":
            by_base[now.nodeid] = then
    looser = [f"{some(on)} {text}" for (text, loosens), on in declared.items() if loosens]
    flags += [f"declares less than at the base: {text}" for text in looser]
    same = "declared otherwise than at the base, and no looser"
    flags += [
        f"{same}: {some(on)} {text}" for (text, loosens), on in declared.items() if not loosens
    ]
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


def differences(then: CaseResult, now: CaseResult, policy: Policy) -> Iterator[tuple[str, bool]]:
    """Yield what a case declares otherwise than it did, or what else it draws.

    Each comes with whether it lets more pass. The policy has the regression limit of a case without
    its own.
    """
    before, after = then.evidence, now.evidence
    if another := _other_function(then, now):
        yield another, True
    gates, gates_now = before.tolerances or {}, after.tolerances or {}
    for name, gate in gates.items():
        if name not in gates_now:
            yield f"does not check {name} any more", True
        elif gates_now[name] != gate:
            text = f"accepts {gates_now[name].describe()} for {name}, the base {gate.describe()}"
            yield text, not gates_now[name].implies(gate)
    for name in gates_now if gates else ():
        if name not in gates:
            yield f"checks {name} as well", False
    domain, domain_now = ({*(side.domain or ())} for side in (before, after))
    for text, old, new, loosens in (
        ("excludes {} by its domain", domain.difference(USES), domain_now.difference(USES), True),
        ("declares input {} a weight", before.weights, after.weights, True),
        ("lets input {} hold results after a call (writes)", before.writes, after.writes, True),
        (
            "lets input {} hold anything after a call (consumes)",
            before.consumes,
            after.consumes,
            True,
        ),
        ("requires {} by its domain", domain & {*USES}, domain_now & {*USES}, False),
    ):
        if more := sorted(map(str, {*(new or ())} - {*(old or ())})):
            yield text.format(", ".join(more)), loosens
        if less := sorted(map(str, {*(old or ())} - {*(new or ())})):
            yield f"no longer {text.format(', '.join(less))}", not loosens
    if before.nan != after.nan:
        yield f"declares nan={after.nan!r}, the base {before.nan!r}", bool(after.nan)
    for name in ("deterministic", "batch_invariant"):
        asked, asks = bool(getattr(before, name)), bool(getattr(after, name))
        if asked != asks:
            yield f"declares {name}={asks}, the base {asked}", asked
    multiples = before.group_multiple or 1, after.group_multiple or 1
    if multiples[0] != multiples[1]:
        text = "draws group sizes in multiples of {1}, the base of {0}".format(*multiples)
        yield text, multiples[0] % multiples[1] != 0
    if before.groups and not after.groups:
        yield "draws no other group sizes", True
    # The time of a call is the same in both: any will do.
    limit, limit_now = (
        policy.limit(side.limit_pct, side.limit_us, 1.0) for side in (before, after)
    )
    if limit != limit_now:
        text = f"may be slower by {limit_now}, at the base by {limit}"
        yield text, limit_now.pct > limit.pct or limit_now.us > limit.us
    if then.weight != now.weight:
        text = f"has weight {now.weight:g}, at the base {then.weight:g}"
        yield text, now.weight < then.weight
    for name, default in (("cache", COLD), ("operating_point", None)):
        measured, measures = (getattr(side, name) or default for side in (before, after))
        if measured != measures:
            yield f"declares {name}={measures!r}, the base {measured!r}", True
    for unit in ("flops", "nbytes"):
        old_work, new_work = getattr(before, unit), getattr(after, unit)
        if old_work != new_work:
            pairs = zip(new_work or (0.0, 0.0), old_work or (0.0, 0.0), strict=True)
            text = f"declares {unit}={new_work}, the base {old_work}"
            yield text, any(new < old for new, old in pairs)
    if before.schema != after.schema:
        yield f"has the schema {after.schema!r}, at the base {before.schema!r}", True
    if before.dims != after.dims:
        yield f"has the dims {after.dims}, at the base {before.dims}", True
    elif before.drawn != after.drawn:
        yield "draws other inputs", True
