"""A case as arms of a comparison: versions ready to be timed block by block, on command.

The process that decides gives the commands and draws the order; this one only runs blocks. One
process holds the candidate, the incumbent and a second copy of the incumbent (the placebo), or,
where two versions cannot live together, the one version of its own tree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

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
    Bench,
    derive,
)
from pytest_kopt.cases.protocol import (
    Begin,
    CaseServed,
    Client,
    HandOver,
    JudgeLooks,
    Keep,
    Leave,
    LoadAlone,
    OfCase,
    Order,
    Prepare,
    Recompute,
    SayReach,
    StopWorker,
    Time,
    Write,
)
from pytest_kopt.cases.replies import (
    CannotLoad,
    Findings,
    HandedOver,
    Loaded,
    MachineCode,
    Reached,
    Ready,
    Timed,
    TriedShape,
    Written,
)
from pytest_kopt.cases.running.against_reference import with_gates
from pytest_kopt.cases.running.execution import make_inputs
from pytest_kopt.cases.running.heldout import reached, try_case
from pytest_kopt.cases.running.inspected_results import hand_over
from pytest_kopt.cases.running.loaded_versions import (
    Versions,
    in_one_order,
    is_reached,
    load_versions,
    one_call,
)
from pytest_kopt.cases.running.reference import observed
from pytest_kopt.cases.running.spot_checks import Spotted
from pytest_kopt.cases.running.steps.contents import still_busy
from pytest_kopt.cases.running.switches import new_operators
from pytest_kopt.cases.running.timing import (
    cpu_pool,
    engines_of,
    gpu_pool,
    not_captured,
    prepare_blocks,
)
from pytest_kopt.devices.lock import checking_lock
from pytest_kopt.measure.cold import InputPool
from pytest_kopt.measure.engine import agreed
from pytest_kopt.measure.memory_use import first_calls
from pytest_kopt.measure.wall import one_thread
from pytest_kopt.process_tree import children
from pytest_kopt.versions.affected_modules import NotLoadable, SameVersion

_Order = TypeVar("_Order")
#: The blocks of an arm: forward, and backward where there is one.
_Arm = list[Spotted]


def _engine(arm: _Arm) -> str:
    """Return what times an arm: `graph`, or `graph+events` with a backward."""
    return "+".join(block.engine for block in arm)


def _seed(case: Case, bench: Bench) -> int:
    """Return the seed of the input sets of a case."""
    return derive(bench.session_seed, case.nodeid, "pairs")


def prepared(
    case: Case, bench: Bench, names: Sequence[str], versions: Versions, order: Prepare
) -> tuple[dict[str, _Arm], Ready]:
    """Return arms that an engine times, and what is to be said of them.

    Without one in the order it is what can time them all: events where one of them is no graph.
    """
    seed = _seed(case, bench)
    versions = in_one_order(versions, case, make_inputs(case, seed))
    groups = [([case], {name: versions[name] for name in names})]
    uneven = {UNEVEN[name]: versions[name] for name in filter(UNEVEN.get, names)}
    if uneven and has_skew(case):
        groups.append((uneven_cases(case), uneven))

    def drawn() -> list[InputPool]:
        if bench.device == "cpu":
            return [
                cpu_pool(cases, seed, number)
                for (cases, _), number in zip(groups, order.sets, strict=False)
            ]
        return [gpu_pool(cases, bench, seed, [*functions.values()]) for cases, functions in groups]

    def timed_by(engines: Sequence[str]) -> dict[str, _Arm]:
        arms: dict[str, _Arm] = {}
        # Blocks write to the sets: others begin with sets as they are drawn.
        for (cases, functions), pool in zip(groups, drawn(), strict=True):
            arms |= prepare_blocks(functions, cases, pool, bench, seed, engines=engines)
        return arms

    arms = timed_by(order.engine.split("+") if order.engine else engines_of(case, bench))
    reasons: dict[str, str] = {}
    for name in (CANDIDATE, INCUMBENT):
        reasons |= not_captured(arms.get(name, ()), f"the {name}'s")
    common = agreed(map(_engine, arms.values()))
    if {*map(_engine, arms.values())} != {common}:
        # Their graphs hold memory that the others may need.
        arms.clear()
        arms = timed_by(common.split("+"))
    calls = {name: [block.calls for block in arm] for name, arm in arms.items()}
    places = {name: [block.places for block in arm] for name, arm in arms.items()}
    return arms, Ready(common, reasons, calls, places)


def _machine_code(
    case: Case, bench: Bench, order: ArmsOrder, versions: Versions
) -> MachineCode | None:
    """Return what the versions have a GPU do, where that is asked.

    Raises SameVersion where both do the same and need not be timed.
    """
    if bench.device != "cuda" or not (order.is_first_replica and order.changed):
        return None
    if not {CANDIDATE, INCUMBENT} <= versions.keys():
        return None
    from pytest_kopt.sameness.launch_recording import RECORDING
    from pytest_kopt.sameness.launches import architecture, record

    inputs = make_inputs(case, _seed(case, bench))
    before, after = (
        record(one_call(case, versions[name], inputs)) for name in (INCUMBENT, CANDIDATE)
    )
    on_device = {*engines_of(case, bench)} <= {"auto", "graph"}
    is_left_out = not bench.times_same
    if is_left_out and on_device and before.is_same(after):
        raise SameVersion("machine")
    old, new = (RECORDING.dump_python(recording, mode="json") for recording in (before, after))
    return MachineCode(old, new, architecture())


def _run_block(client: Client, order: Write, block: Spotted) -> None:
    """Write a block's content and, at the client's next order, run its calls."""
    if not order.is_look:
        block.write(order.seed, order.calls)
    client.send(Written())
    _ordered(client, Time)
    ms = 0.0
    if order.is_look:
        ms = block.look(order.seed)
    elif order.times:
        block.run_on(order.times)
    else:
        ms = block.run_written(order.seconds) * (order.calls or block.calls)
    client.send(Timed(ms))


def _leave(blocks: Sequence[Spotted], keep: Keep | None) -> None:
    """Have what the last run of these blocks gave be forgotten, but for what is to be kept."""
    for way, block in enumerate(blocks):
        if keep is not None:
            block.keep(keep.place, keep.calls[way])
        block.release()


def serve_arms(
    case: Case, bench: Bench, order: ArmsOrder, client: Client, set_by_tests: Collection[str] = ()
) -> None:
    """Load and prepare a case's arms, run blocks until no more is asked for, and hand over looks.

    The orders are those of `Runner` in `paired/`, of each block those of `Blocks.run`.
    """
    if (loaded := _loaded(case, bench, order, client, set_by_tests)) is None:
        return
    case, versions, reply = loaded
    with bench.waiting():
        # It is long, and read when the case's turn comes: nobody may wait for a lock meanwhile.
        client.send(reply)
        next_order: Order = _ordered(client, Prepare)
    arms, last = dict[str, _Arm](), list[Spotted]()
    with one_thread():
        while not isinstance(next_order, HandOver):
            match next_order:
                case Prepare():
                    # Their graphs hold memory that the others may need.
                    arms, last = {}, []
                    arms, ready = prepared(case, bench, order.names, versions, next_order)
                    with bench.waiting():
                        # Other processes of the replica prepare, too.
                        client.send(ready)
                        next_order = client.receive()
                    continue
                case Write(arm, _, way):
                    if way == 0:
                        _leave(last, next_order.keep)
                        last = arms[arm]
                    _run_block(client, next_order, last[way])
                case Begin() | OfCase() | Leave() | Time():
                    raise CaseServed
                case JudgeLooks() | Recompute() | SayReach() | LoadAlone() | StopWorker():
                    raise CaseServed
            next_order = client.receive()
        _leave(last, next_order.keep)
        findings = new_operators(bench)
        if children():
            findings += still_busy(lambda: None)
        suspects = arms.keys() - {INCUMBENT, PLACEBO, ALONE, UNEVEN[INCUMBENT]}
        looks = [
            hand_over(name, way, spot, client.scratch, next_order.secret)
            for name in suspects
            for way, block in zip(WAYS, arms[name], strict=False)
            for _, spot in block.spots()
        ]
    with bench.waiting():
        client.send(HandedOver(looks, [finding for finding in findings if finding.rejects]))


def _ordered(client: Client, kind: type[_Order]) -> _Order:
    """Return the next order, which is of this kind; any other leaves the case."""
    if not isinstance(order := client.receive(), kind):
        raise CaseServed
    return order


def try_nearby(
    case: Case,
    bench: Bench,
    order: ArmsOrder,
    client: Client,
    test: pytest.Function,
    secret: int,
    set_by_tests: Collection[str],
) -> None:
    """Load a case's arms, try them at shapes near that of `test`, and say what they give there."""
    if (loaded := _loaded(case, bench, order, client, set_by_tests)) is None:
        return
    case, versions, _ = loaded
    for tried in try_case(test, case, versions, bench, secret):
        client.send(TriedShape(tried))
    caught = new_operators(bench)
    secret = derive(secret, case.nodeid, "held out")
    # A round has the baseline's results to hold its own against.
    for name, function in versions.items() if bench.expected is None else ():
        with one_thread(), checking_lock(bench.uuid, bench.waiting), suppress(Exception):
            accuracy = reached(case, function, secret)
            client.send(Reached(name, accuracy))
    client.send(Findings(caught))


def _loaded(
    case: Case, bench: Bench, order: ArmsOrder, client: Client, set_by_tests: Collection[str]
) -> tuple[Case, Versions, Loaded] | None:
    """Load a case's arms; return it as it is observed, them, and what is to be said of them.

    None where they cannot be held or are the same: the client knows by then.
    """
    seed = _seed(case, bench)
    try:
        # Loading is no timing: others may check meanwhile, and the device is asked for after it.
        locked = checking_lock(bench.uuid, bench.waiting)
        with one_thread(), locked:
            case = observed(case, seed)
            memory: dict[str, int] = {}
            first_call_ms: dict[str, float] = {}

            def first_call(arm: str, call: Callable[[], Any]) -> None:
                if order.is_first_replica and arm in (CANDIDATE, INCUMBENT):
                    memory[arm], first_call_ms[arm] = first_calls(call, bench.device)
                else:
                    call()

            versions = load_versions(case, order, seed, bench.audit_hook, first_call, set_by_tests)
            case = with_gates(case, bench, versions.get(INCUMBENT, case.function))
            code = _machine_code(case, bench, order, versions)
            reached = not order.concerning or is_reached(case, order, seed, bench.audit_hook)
    except SameVersion as found:
        client.send(Loaded(same=found.by))
    except NotLoadable as reason:
        client.send(CannotLoad(str(reason)))
    else:
        loaded = Loaded(reached=reached, memory=memory, first_call_ms=first_call_ms, code=code)
        return case, versions, loaded
    return None
