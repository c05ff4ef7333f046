"""A case as arms of a comparison: versions ready to be timed block by block, on command.

The process that decides gives the commands and draws the order; this one only runs blocks. One
process holds the candidate, the incumbent and a second copy of the incumbent (the placebo), or,
where two versions cannot live together, the one version of its own tree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import has_skew, uneven_cases
from pytest_kopt.cases.order import (
    ALONE,
    CANDIDATE,
    INCUMBENT,
    PLACEBO,
    UNEVEN,
    WAYS,
    ArmsOrder,
    Commander,
)
from pytest_kopt.cases.running.bench import Bench
from pytest_kopt.cases.running.compiled import forget_compiled
from pytest_kopt.cases.running.execution import make_inputs
from pytest_kopt.cases.running.heldout import (
    held_out_cases,
    reached,
    time_shape,
    try_shape,
)
from pytest_kopt.cases.running.inspected_results import floors
from pytest_kopt.cases.running.loaded_versions import Versions, is_reached, load_versions, one_call
from pytest_kopt.cases.running.reference import observed
from pytest_kopt.cases.running.spot_checks import Spotted, known_content, wrong_results
from pytest_kopt.cases.running.steps.aftermath import still_busy
from pytest_kopt.cases.running.timing import (
    engines_of,
    not_captured,
    pool_of,
    prepare_blocks,
)
from pytest_kopt.cases.running.verifier import SLACK_DB, hand_over
from pytest_kopt.cases.seeds import derive
from pytest_kopt.devices.lock import checking_lock, timing_lock
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.nearby_shapes import SIZES, Tried
from pytest_kopt.measure.engine import agreed
from pytest_kopt.measure.memory_use import peak_bytes
from pytest_kopt.measure.wall import one_thread
from pytest_kopt.numerics.nested import tensors
from pytest_kopt.process_tree import children
from pytest_kopt.versions.load_errors import NotLoadable, Unreached

#: So many other shapes and inputs are tried however long they take, and more for so long.
_TRIED, _TRYING_SECONDS = 4, 3.0


#: Why something was not tried.
_NO_TIME = f"{_TRYING_SECONDS:g} s a case were over"


_NO_SIZE = "no size of its parameters or inputs could be moved"


#: Others wait so long for a device that is tried on, and this for every turn of theirs.
_AT_ONCE_SECONDS = 0.1


#: The blocks of an arm: forward, and backward where there is one.
_Arm = list[Spotted]


def _engine(arm: _Arm) -> str:
    """Return what times an arm: `graph`, or `graph+events` with a backward."""
    return "+".join(block.engine for block in arm)


@dataclass(frozen=True, slots=True)
class _Arms:
    """A case whose arms somebody orders; `seed` is that of its input sets."""

    case: Case
    bench: Bench
    order: ArmsOrder
    commander: Commander
    seed: int

    def time(self, versions: Versions) -> None:
        """Run blocks of the versions until no more is asked for, and hand in what they gave."""
        bench, commander = self.bench, self.commander
        with one_thread():
            arms = self.prepared(versions)
            calls = {name: [block.calls for block in arm] for name, arm in arms.items()}
            places = {name: [block.places for block in arm] for name, arm in arms.items()}
            commander.tell("ready", calls=calls, places=places)
            last: list[Spotted] = []
            while True:
                order = commander.hear()
                keeps = order.get("keeps")
                for way, block in enumerate(last):
                    if keeps is not None:
                        block.keep(keeps["place"], keeps["calls"][way])
                    block.release()
                if not order.get("arm"):
                    break
                last, is_looked_at = arms[order["arm"]], order["is_looked_at"]
                for block in last:
                    block.write(order["seed"], is_looked_at=is_looked_at)
                commander.tell("written")
                for block in last:
                    commander.hear()
                    if times := order.get("times", 0):
                        block.run_on(times)
                    ms = 0.0 if times else block.run_written() * block.calls
                    commander.tell("time", ms=ms)
                    if is_looked_at:
                        # The backward's replay writes to memory of the forward's results.
                        block.look()
                        commander.tell("looked")
            findings = bench.heard()
            if children():
                findings += still_busy(lambda: None)
            suspects = arms.keys() - {INCUMBENT, PLACEBO, ALONE, UNEVEN[INCUMBENT]}
            looks = [
                hand_over(name, way, spot, commander.scratch, order.get("seed", 0))
                for name in suspects
                for way, block in zip(WAYS, arms[name], strict=False)
                for spot in block.spots
            ]
            for name in suspects:
                # Once a comparison is enough: it takes as long as a fifth of the blocks.
                asks_known = self.order.tells_more and name == CANDIDATE
                findings += known_content(arms[name]) if asks_known else ()
        with bench.waiting():
            commander.tell("kept", looks=looks)
            accuracy = commander.hear().get("accuracy")
        if accuracy is not None:
            known = floors({name: Accuracy(**told) for name, told in accuracy.items()}, SLACK_DB)
            for name in suspects:
                findings += wrong_results(arms[name], known)
        commander.tell("caught", findings=[asdict(found) for found in findings if found.rejects])

    def prepared(self, versions: Versions) -> dict[str, _Arm]:
        """Return the arms, by events where one of them, here or elsewhere, is no graph."""
        case, bench = self.case, self.bench
        groups = [([case], {name: versions[name] for name in self.order.names})]
        if has_skew(case):
            others = {UNEVEN[name]: versions[name] for name in filter(UNEVEN.get, self.order.names)}
            groups.append((uneven_cases(case), others))
        pools = [
            replace(pool_of(cases, bench, self.seed, [*functions.values()]), rounds=1)
            for cases, functions in groups
        ]

        def prepare(engines: Sequence[str]) -> dict[str, _Arm]:
            arms: dict[str, _Arm] = {}
            for (cases, functions), pool in zip(groups, pools, strict=True):
                arms |= prepare_blocks(functions, cases, pool, bench, self.seed, engines=engines)
            return arms

        arms = prepare(engines_of(case, bench))
        reasons: dict[str, str] = {}
        for name in (CANDIDATE, INCUMBENT):
            reasons |= not_captured(arms.get(name, ()), f"the {name}'s")
        with bench.waiting():
            own = agreed(map(_engine, arms.values()))
            own_sets = [len(pool.sets) for pool in pools]
            self.commander.tell("prepared", engine=own, sets=own_sets, not_captured=reasons)
            common = self.commander.hear()
            engine, sets = common.get("engine", own), common.get("sets", own_sets)
        # Blocks of all processes have the same calls.
        is_equal = bench.device != "cpu" or sets == own_sets
        if is_equal and {*map(_engine, arms.values())} == {engine}:
            return arms
        # Their graphs hold memory that the others may need.
        arms.clear()
        if not is_equal:
            pools = [replace(p, sets=p.sets[:count]) for p, count in zip(pools, sets, strict=True)]
        return prepare(engine.split("+"))

    def try_nearby(self, versions: Versions, item: pytest.Function) -> None:
        """Try the arms near the case's own shape, but not while somebody times on the device."""
        case, bench, commander = self.case, self.bench, self.commander
        secret = derive(commander.hear().get("seed", 0), case.nodeid, "held out")
        cases = enumerate(held_out_cases(item, case, bench.device, secret))
        # Without what it waited for others: what is tried must not depend on them.
        spent, is_over, moves = 0.0, False, False
        while not is_over:
            to_time: list[tuple[Tried, Case]] = []
            with one_thread(), checking_lock(bench.uuid, bench.waiting):
                start, took, is_over = time.perf_counter(), 0.0, True
                for number, variant in cases:
                    tried = try_shape(variant, versions, bench.device, secret)
                    forget_compiled()
                    moves = moves or (tried is not None and tried.is_another_shape)
                    if tried is not None and tried.asks_for_times:
                        to_time.append((tried, variant.case))
                    elif tried is not None:
                        commander.tell("tried", shape=asdict(tried))
                    took = time.perf_counter() - start
                    is_over = number + 1 >= _TRIED and spent + took > _TRYING_SECONDS
                    if is_over or took > _AT_ONCE_SECONDS:
                        break
                spent += took
            for tried, near in to_time:
                with one_thread(), timing_lock(bench.uuid, bench.waiting):
                    time_shape(tried, case, near, versions, bench.device, secret)
                commander.tell("tried", shape=asdict(tried))
        left = dict.fromkeys({variant.kind for _, variant in cases}, _NO_TIME)
        if not (moves or SIZES in case.domain):
            left["uneven"] = _NO_SIZE
        for kind, why in left.items():
            known = Tried(case.nodeid, kind, dict(case.dims), untried=why)
            commander.tell("tried", shape=asdict(known))
        caught = [found for found in bench.heard() if found.rejects]
        # A round has the baseline's accuracy to hold its results against.
        for name, function in versions.items() if bench.is_first else ():
            with one_thread(), checking_lock(bench.uuid, bench.waiting), suppress(Exception):
                accuracy = reached(case, function, secret)
                elements = sum(item.numel() for item in tensors([*make_inputs(case, secret)]))
                told = {result: asdict(known) for result, known in accuracy.items()}
                commander.tell("reached", version=name, accuracy=told, elements=elements)
        commander.tell("caught", findings=[*map(asdict, caught)])

    def machine_code(self, versions: Versions) -> dict[str, Any] | None:
        """Return the message of what the versions have a GPU do: the same and no more, or both."""
        case, order = self.case, self.order
        if self.bench.device != "cuda" or not (order.tells_more and order.changed):
            return None
        if not {CANDIDATE, INCUMBENT} <= versions.keys():
            return None
        from pytest_kopt.sameness.launch_recording import RECORDING
        from pytest_kopt.sameness.launches import architecture, record

        given = make_inputs(case, self.seed)
        before, after = (
            record(one_call(case, versions[name], given)) for name in (INCUMBENT, CANDIDATE)
        )
        on_device = {*engines_of(case, self.bench)} <= {"auto", "graph"}
        if before.is_same(after) and on_device and not order.measure_same:
            return {"kind": "same", "how": "machine"}
        recorded = {"before": before, "after": after}.items()
        both = {name: RECORDING.dump_python(found, mode="json") for name, found in recorded}
        return {"kind": "changed", "arch": architecture(), **both}


def serve_arms(
    case: Case, bench: Bench, order: ArmsOrder, commander: Commander, item: pytest.Function
) -> None:
    """Load and prepare a case's arms, then run blocks, or try shapes near that of `item`."""
    seed = derive(bench.session_seed, case.nodeid, "pairs")
    order = order.without(commander.out)
    try:
        # Loading is no timing: others may check meanwhile, and the device is asked for after it.
        with one_thread(), checking_lock(bench.uuid, bench.waiting):
            case = observed(case, seed)
            memory: dict[str, int] = {}

            def first_call(arm: str, call: Callable[[], Any]) -> None:
                if order.tells_more and arm in (CANDIDATE, INCUMBENT):
                    memory[arm] = peak_bytes(call, bench.device)
                else:
                    call()

            versions = load_versions(case, order, seed, bench.audit_hook, first_call)
            arms = _Arms(case, bench, order, commander, seed)
            code = arms.machine_code(versions)
            reached = order.measure_same or not order.changed or bool(order.trees)
            reached = reached or is_reached(case, order, seed, bench.audit_hook)
    except Unreached:
        commander.tell("same", how="source")
        return
    except NotLoadable as reason:
        commander.tell("refused", reason=str(reason))
        return
    if order.nearby:
        arms.try_nearby(versions, item)
        return
    with bench.waiting():
        # It is long, and read when the case's turn comes: nobody may wait for a lock meanwhile.
        if code:
            commander.tell(**code)
            if code["kind"] == "same":
                return
        commander.tell("loaded", reached=reached, memory=memory)
        if commander.hear().get("kind") == "skip":
            return
    arms.time(versions)
