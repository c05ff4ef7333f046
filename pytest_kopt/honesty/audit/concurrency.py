"""Work that goes on after the call has returned: threads, processes, executors, side streams."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.audit.trace import Call, Site
from pytest_kopt.honesty.audit.values import Fact, flat, join_all
from pytest_kopt.honesty.audit.vocabulary import names

_WORKERS = "Thread", "Process", "Timer", "Popen"
_EXECUTORS = "ThreadPoolExecutor", "ProcessPoolExecutor", "Pool", "ThreadPool"
_AT_ONCE = names(
    "_thread.start_new_thread os.fork os.forkpty asyncio.create_task asyncio.ensure_future"
    " asyncio.run_coroutine_threadsafe"
)
_WAITS = names("join wait communicate result shutdown map close terminate exception")
_WAITING = names("concurrent.futures.wait concurrent.futures.as_completed")
#: What else can be waited for, and whose `get` waits.
_SIGNALS = "Event", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"
_ADVICE = "wait for all work before returning"


def suspicions(evidence: Evidence) -> Iterator[Suspicion]:
    """Yield workers that nobody waits for and streams that nobody joins."""
    yield from _workers(evidence)
    yield from _streams(evidence)


def _workers(evidence: Evidence) -> Iterator[Suspicion]:
    # By the call of the kernel in which it happens, in whatever function: helpers start and join.
    waits: dict[int, list[frozenset[Fact]]] = defaultdict(list)
    entered: set[int] = set()
    for call in evidence.trace.calls:
        if call.name in _WAITING or _waits(call):
            # Whether there is a handle to wait for is no condition that lets work go on.
            handles = flat(join_all([call.base, *call.arguments])).facts
            waits[call.site.root.number].append(call.site.controls - handles)
    for read in evidence.trace.reads:
        if read.name.startswith("with ") and any(f"{e}()" in read.name for e in _EXECUTORS):
            entered.add(read.site.root.number)
    for call in evidence.trace.calls:
        root = call.site.root.number
        if not evidence.runs(call.site) or not _starts(call):
            continue
        joined = root in entered or any(wait <= call.site.controls for wait in waits[root])
        if not joined or call.name in _AT_ONCE:
            yield Suspicion(
                "background-work",
                "work is started that may go on after the call",
                call.site,
                _ADVICE,
            )


def _waits(call: Call) -> bool:
    last = call.name.rpartition(".")[2]
    if last == "get":
        return _made_by(call, _EXECUTORS)
    return last in _WAITS and _made_by(call, _WORKERS + _EXECUTORS + _SIGNALS)


def _starts(call: Call) -> bool:
    last = call.name.rpartition(".")[2]
    if call.name in _AT_ONCE:
        return True
    if last == "start":
        return _made_by(call, _WORKERS)
    if last in ("submit", "apply_async", "map_async", "run_in_executor"):
        return _made_by(call, _EXECUTORS)
    return last == "Popen" and call.name.startswith("subprocess")


def _made_by(call: Call, makers: tuple[str, ...]) -> bool:
    return any(f".{maker}()" in f".{call.name}" for maker in makers)


def _streams(evidence: Evidence) -> Iterator[Suspicion]:
    for returned in evidence.trace.returns:
        root = returned.site.root
        handed_on = any("vent" in name for name in returned.value.externals)
        if root.called or handed_on or not evidence.runs(returned.site):
            continue
        for node in returned.pending:
            place = Site(returned.site.path, root.name, _header(node), root, frozenset())
            yield Suspicion(
                "unjoined-stream",
                "work on a side stream that the caller's stream does not wait for",
                place,
                "join it: current_stream().wait_stream(side) before returning",
            )
    switches: dict[int, dict[ast.AST, Site]] = defaultdict(dict)
    for call in evidence.trace.calls:
        switch = call.name.endswith(".cuda.set_stream") and not call.site.root.called
        if switch and evidence.runs(call.site):
            switches[call.site.root.number][call.site.node] = call.site
    for sites in switches.values():
        if len(sites) == 1:
            (site,) = sites.values()
            yield Suspicion(
                "stream-switch",
                "another stream is left current when the call returns",
                site,
                "use `with torch.cuda.stream(side):` and join it",
            )


def _header(node: ast.AST) -> ast.AST:
    """Return the part of a `with` that says which stream, without what runs there."""
    return node.items[0].context_expr if isinstance(node, ast.With | ast.AsyncWith) else node
