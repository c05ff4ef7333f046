"""The gate of a pull request: cases as they are now, on today's kernel code and on the base's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from pytest_kopt import policies
from pytest_kopt.campaign import commands
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.details import with_details
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.gates import checked_shape
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.devices.idle import NoIdleGpu
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.comparison import CandidateDied, NotComparable, Versions
from pytest_kopt.paired.noise import Known
from pytest_kopt.paired.pairing import PairedMetric, judge
from pytest_kopt.paired.replica import Caught
from pytest_kopt.processes.worker_orders import WorkerOrders
from pytest_kopt.sameness.program import differing
from pytest_kopt.show.closing import Closing
from pytest_kopt.show.words import gate_outcome
from pytest_kopt.trials import judging
from pytest_kopt.trials.base import Base
from pytest_kopt.trials.inventory import Inventory, removed, take_inventory
from pytest_kopt.trials.trees import overlays, why_not_in_place
from pytest_kopt.trials.trial import Measurements
from pytest_kopt.versions.affected_modules import DATA_SUFFIXES, NATIVE_SUFFIXES

_STEP = PairedMetric("step speed", "step")
_COMPUTE = "compute what the cases ask for"
_NEXT = {
    Decision.ACCEPTED_WITH_NOTE: "mind the slower case",
    Decision.ROLLED_BACK: "the change makes a case slower; mend it, or ask for less",
    Decision.INCONCLUSIVE: "not decided: run it again, on a quieter machine if there is one",
}


class PullRequestGate:
    """`--kopt-base REF`: a verdict without a campaign; leaves nothing behind."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        assert settings.base is not None
        self._config = config
        self._settings = settings
        self.policy = policies.load(settings.policy or "primus")
        self._base = Base.of(settings.base, settings.root)
        self._orders: WorkerOrders | None = None
        self._then = Inventory()
        self._unbuilt = ""
        self._stack = ""
        now = {path: _content(self._base.root / path) for path in self._base.old}
        self._differing = frozenset(differing(self._base.old, now))

    @property
    def is_settled(self) -> bool:
        """Whether nothing that cases can run or read is other code than at the base."""
        told = {".py", ".md", ".rst", *DATA_SUFFIXES, *NATIVE_SUFFIXES}
        others = {path for path in self._base.old if PurePosixPath(path).suffix not in told}
        return not others and all(path.endswith((".md", ".rst")) for path in self._differing)

    @property
    def title(self) -> str:
        return f"{self._named()}, gate {self._settings.gate}, policy {self.policy.name}"

    @property
    def preface(self) -> Sequence[str]:
        return ()

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    @property
    def wants_replicas(self) -> bool:
        """Whether closing will need a comparison in processes that can be started early."""
        return not (self._settings.rebuild_command or self.is_settled)

    def orders(self, device: str, session_seed: int) -> WorkerOrders:
        self._orders = replace(
            WorkerOrders.of(self._settings, device, session_seed), cases_only=True
        )
        return self._orders

    def begin(self) -> str:
        """Learn which cases the base has, and build today's kernels; why that failed, or ""."""
        if self.is_settled:
            return ""
        assert self._orders is not None
        command = self._settings.rebuild_command
        problem = why_not_in_place(command) if command else ""
        if problem:
            raise BadInput(problem, where="kopt_rebuild_command")
        if self._base.old:
            self._then = take_inventory(self._config, self._orders, self._base)
        if command:
            done = commands.run(command, self._base.root, {})
            if not done.ok:
                text = f"`{command}` ended with status {done.returncode}\n{done.output}"
                self._unbuilt = text.rstrip()
        return self._unbuilt

    def no_idle_gpu(self, found: NoIdleGpu) -> None:
        """Nothing is recorded."""

    def release(self) -> None:
        """Nothing is held."""

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Raise BadInput when there is no case, or one whose file does not import at the base."""
        if not ids and not collector.collect_errors:
            raise BadInput(
                "no kopt case was collected", where="--kopt-base", legal="tests marked kopt"
            )
        for nodeid in ids:
            error = judging.under(nodeid, self._then.errors)
            if error:
                raise BadInput(
                    f"{nodeid.partition('::')[0]} does not import there: {error}",
                    where=self._named(),
                    legal="a base whose cases import",
                )

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge; nothing is recorded or changed."""
        if collector.refusals:
            raise BadInput("; ".join(collector.refusals))
        judging.fail_rows_of_failed_tests(collector)
        wanted = [nodeid for nodeid in collector.order if nodeid not in collector.skipped]
        if self.is_settled:
            verdict: Verdict | None = self._nothing([], f"the same code as {self._named()}")
        else:
            verdict = judging.cut_off(collector, wanted, interrupted, self.policy)
        if self._unbuilt:
            verdict = self._wrong([], f"the kernel does not build: {self._unbuilt.splitlines()[0]}")
        elif verdict is None:
            verdict = self._judge(collector, measurements)
        thresholds = self.policy.model_dump(mode="json")
        verdict = with_details(verdict, collector.in_order())
        told = {"base": self._base.commit, "outcome": gate_outcome(verdict)}
        verdict = verdict.model_copy(update={**told, "thresholds": thresholds})
        return Closing(verdict, self._unbuilt or self._stack)

    def _judge(self, collector: Collector, measurements: Measurements) -> Verdict:
        policy, results = self.policy, collector.in_order()
        harness = [self._in_tree(result.nodeid.partition("::")[0]) for result in results]
        sources = self._base.kernel_changes(harness, self._config.getini("python_files"))
        changed = [path for path in sources if path in self._differing]
        found = [item for result in results for item in result.findings]
        found += self._audit(results, changed)
        damning = judging.damning(results, found)
        if damning:
            return judging.overfit(results, damning, policy, _COMPUTE)
        failed = [result for result in results if result.check != "PASS"]
        if failed:
            names = ", ".join(result.nodeid for result in failed[:3])
            kinds = "/".join(sorted({result.check for result in failed}))
            return self._wrong(
                results, f"{len(failed)} of {len(results)} case(s) are {kinds}: {names}"
            )
        if judging.is_interpreted(results):
            return judging.incomplete(policy, *judging.INTERPRETED)
        gone = removed(self._config, self._then, self._base, collector, measurements)
        if changed:
            verdict = self._compare(results, changed, measurements)
        else:
            why = "the kernels are the same code as" if sources else "no kernel code changed since"
            verdict = self._nothing(results, f"{why} {self._named()}")
        flags = [*map(str, found), *(f"removed case: {nodeid}" for nodeid in gone)]
        verdict = judging.flagged(verdict, flags)
        return verdict if self._settings.allow_removed else _without(gone, verdict)

    def _audit(self, results: Sequence[CaseResult], changed: Sequence[str]) -> list[Finding]:
        """Audit the changed sources that the cases have loaded, and no other script's."""
        loaded = {file for result in results for file in result.evidence.get("loaded", ())}
        paths = sorted(set(changed) & {self._in_tree(file) for file in loaded})
        now = {path: (self._base.root / path).read_bytes() for path in paths}
        then = {path: self._base.old[path] or b"" for path in paths}
        return audit(now, then)

    def _compare(
        self, results: Sequence[CaseResult], changed: Sequence[str], measurements: Measurements
    ) -> Verdict:
        old = {path: self._base.old[path] for path in changed}
        try:
            with overlays(
                self._base.root,
                {path: content for path, content in old.items() if content is not None},
                absent=[path for path, content in old.items() if content is None],
                changed=changed,
                rebuild=self._settings.rebuild_command,
            ) as versions:
                new = self._without_twin(results, versions, measurements)
                known = [result for result in results if result.nodeid not in new]
                if not known:
                    nothing = self._nothing([], f"every case is new since {self._named()}")
                    nothing.shapes.extend(judging.shapes(results, new.keys()))
                    return judging.flagged(nothing, list(new.values()))
                noise = Known.here(self._settings.workspace, known)
                with measurements.compare(
                    [result.nodeid for result in known], versions
                ) as comparison:
                    found = judge(
                        comparison,
                        known,
                        [_STEP],
                        self.policy,
                        noise,
                        gate=self._settings.gate,
                        reached_only=True,
                    )
        except Caught as caught:
            return judging.overfit(results, caught.findings, self.policy, _COMPUTE)
        except CandidateDied as death:
            told = [
                judging.failed(result, "ERROR", str(death))
                if result.nodeid == death.case
                else result
                for result in results
            ]
            self._stack = judging.head(str(death))
            return self._wrong(told, str(death).splitlines()[0])
        except NotComparable as error:
            raise BadInput(
                f"its kernel code cannot be measured beside today's: {error}",
                where=self._named(),
                legal="a base whose kernels load and run these cases",
            ) from None
        if len(found.same) == len(known):
            nothing = self._nothing(
                [result for result in results if result.nodeid in found.same],
                f"the change since {self._named()} reaches no case",
            )
            nothing.shapes.extend(judging.shapes(results, new.keys()))
            return judging.flagged(nothing, list(new.values()))
        rest = judging.shapes(results, found.same | new.keys(), same=found.same)
        verdict = judging.flagged(found.verdict, list(new.values()))
        verdict = verdict.model_copy(update={"shapes": verdict.shapes + rest})
        if verdict.decision is Decision.INCOMPLETE:
            return verdict
        return verdict.model_copy(update={"next_step": _NEXT.get(verdict.decision, "")})

    def _without_twin(
        self, results: Sequence[CaseResult], versions: Versions, measurements: Measurements
    ) -> dict[str, str]:
        """Return the new cases that the base's kernels do not pass, each with what to say of it."""
        new = [r.nodeid for r in results if self._base.old and r.nodeid not in self._then.ids]
        if not new:
            return {}
        there = measurements.run_in(
            (versions.root, versions.trees[0]), new, check_only=True
        ).results
        found = {nodeid: there[nodeid].check if nodeid in there else "" for nodeid in new}
        return {
            nodeid: f"new case, not compared: {nodeid}" + (check and f" ({check} at the base)")
            for nodeid, check in found.items()
            if check != "PASS"
        }

    def _nothing(self, results: Sequence[CaseResult], why: str) -> Verdict:
        """Return the verdict on unchanged kernels: no regression, and no gain either."""
        if self._settings.gate == "improve":
            step = "the gate asks for a gain; there is none to measure"
            return judging.same_code(Decision.INCONCLUSIVE, why, results, self.policy, step)
        return judging.same_code(Decision.ACCEPTED, why, results, self.policy)

    def _wrong(self, results: Sequence[CaseResult], reason: str) -> Verdict:
        return Verdict(
            decision=Decision.REPAIR,
            reason=reason,
            next_step="mend the kernel; nothing was compared",
            compare="none",
            policy=self.policy.name,
            shapes=[checked_shape(result.row()) for result in results],
        )

    def _named(self) -> str:
        return f"--kopt-base {self._base.ref} ({self._base.commit[:12]})"

    def _in_tree(self, path: str) -> str:
        """Return a path below pytest's root as one below the work tree."""
        inside = self._settings.root.resolve().relative_to(self._base.root)
        return str(PurePosixPath(inside.as_posix()) / path)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _without(gone: Sequence[str], verdict: Verdict) -> Verdict:
    """Return the verdict on a change that removes cases: refused, unless it is worse as it is."""
    if not gone or not (verdict.decision.keeps or verdict.decision is Decision.INCONCLUSIVE):
        return verdict
    names = ", ".join(gone[:3]) + (", …" if len(gone) > 3 else "")
    return verdict.model_copy(
        update={
            "decision": Decision.ROLLED_BACK,
            "reason": f"{len(gone)} case(s) of the base are gone or skipped, and nothing says that "
            f"their shapes are not slower: {names}; of the others: {verdict.reason}",
            "next_step": "bring them back, or pass --kopt-allow-removed if they are meant to go",
            "removed": list(gone),
        }
    )
