"""What a pull request's cases declare, held against what they declared at its base."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pytest_kopt.cases.result import CaseResult, observed_by
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.honesty.fingerprint import Harness
from pytest_kopt.trials.harness import PytestSetup
from pytest_kopt.trials.pull_request.gate import some


def harness_of(
    root: Path, results: Sequence[CaseResult], setup: PytestSetup, plugins: Collection[str]
) -> tuple[set[str], set[str]]:
    """Return the files, below a root, that decide what is right in these cases.

    Beside them those that importing the kernels runs: a file may be both. `plugins` are files that
    pytest loaded, conftest files among them. A function that stands in a test or in one of these
    calls kernels anywhere in what was imported.
    """
    observed = observed_by(results)
    tests = dict.fromkeys(result.nodeid.partition("::")[0] for result in results)
    around = {*tests, *plugins, *filter(is_conftest, observed.loaded)}
    homes = {result.evidence.home or "" for result in results}
    kernel = homes - {"", *around}
    if kernel != homes:
        kernel |= {*observed.loaded} - around - {*observed.judged_by}
    harness = Harness(root, tuple(tests), tuple(sorted(kernel)), setup.folders, setup.plugins)
    return {*harness.take({}, {}, observed).files}, harness.needed()


def is_conftest(path: str) -> bool:
    return PurePosixPath(path).name == "conftest.py"


@dataclass(frozen=True, slots=True)
class Difference:
    """What a case declares otherwise than at the base; one that `loosens` lets more pass."""

    text: str
    loosens: bool = True


def by_base(now: CaseResult, then: CaseResult | None) -> CaseResult:
    """Return a case with the limit and the weight that the base declares, where it has the case."""
    if then is None:
        return now
    limit_pct, weight = then.evidence.limit_pct, then.evidence.weight
    return replace(now, evidence=replace(now.evidence, limit_pct=limit_pct, weight=weight))


def differences(then: CaseResult, now: CaseResult, limit_pct: float) -> Iterator[Difference]:
    """Yield what a case declares otherwise than it did, or what else it draws.

    `limit_pct` is the policy's regression limit, that of a case without its own.
    """
    before, after = then.evidence, now.evidence
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
        ("excludes {} by its domain", before.domain, after.domain),
        ("declares input {} a weight", before.weights, after.weights),
        ("lets input {} hold results after a call (writes)", before.writes, after.writes),
        ("lets input {} hold anything after a call (consumes)", before.consumes, after.consumes),
    ):
        if more := sorted(map(str, {*(new or ())} - {*(old or ())})):
            yield Difference(text.format(", ".join(more)))
        if less := sorted(map(str, {*(old or ())} - {*(new or ())})):
            yield Difference(f"no longer {text.format(', '.join(less))}", loosens=False)
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
    limits = [evidence.limit_pct or limit_pct for evidence in (before, after)]
    if limits[0] != limits[1]:
        text = "may be slower by {1:g} %, at the base by {0:g} %".format(*limits)
        yield Difference(text, limits[1] > limits[0])
    if then.weight != now.weight:
        text = f"has weight {now.weight:g}, at the base {then.weight:g}"
        yield Difference(text, now.weight < then.weight)
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


def with_differences(
    verdict: Verdict, declared: Mapping[Difference, Sequence[str]]
) -> tuple[Verdict, list[str]]:
    """Return the verdict with what cases, by their labels, declare less, and flags on the rest."""
    texts = {
        difference: f"{some(labels)} {difference.text}" for difference, labels in declared.items()
    }
    if less := "; ".join(text for difference, text in texts.items() if difference.loosens):
        reason = f"the cases declare less than the base's: {less}; {verdict.reason}"
        verdict = verdict.model_copy(update={"reason": reason})
    same = "declared otherwise than at the base, and no looser"
    return verdict, [
        f"{same}: {text}" for difference, text in texts.items() if not difference.loosens
    ]
