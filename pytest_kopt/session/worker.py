"""The plugin of a process that runs cases: which tests run, and a row for every case."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Generator
from contextlib import nullcontext, suppress
from dataclasses import fields, replace
from importlib.machinery import SourceFileLoader
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kopt.cases.fixture import (
    FALLBACK,
    Kopt,
    marked_schema,
    send,
    send_fallback,
    skip_outside,
)
from pytest_kopt.cases.order import Bench, WorkerOrders, derive, seed_everything
from pytest_kopt.cases.protocol import CaseServed, Client, LoadVersions
from pytest_kopt.cases.result import LOST, NEVER, PROPERTY, CaseResult, named
from pytest_kopt.cases.running.switches import replaced_operators, switches_kept
from pytest_kopt.devices import context
from pytest_kopt.devices.vendor import interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.measure.wall import WallEngine
from pytest_kopt.options.declare import SERVE, STDERR, SUITES
from pytest_kopt.processes.bytecode import kept_bytecode
from pytest_kopt.processes.channel import TimeLimit
from pytest_kopt.schema.columns import resolve
from pytest_kopt.session.refusal import check_cases, refusing
from pytest_kopt.session.usage import is_marked, uses_kopt
from pytest_kopt.versions.twin import note_imports

if TYPE_CHECKING:
    from pytest_kopt.honesty.audit_hook import AuditHook

#: A block of a pair on the CPU and on a GPU: short, so that candidate and incumbent see the same
#: machine. At its power cap an H200 moves its clock every 20 to 50 ms.
_PAIR_CALLS, _PAIR_SECONDS = 256, 0.02
_PAIR_GPU_MS = 2.5
#: A block on the CPU where nothing is judged: a slow kernel is called once in it.
_PLAIN_CALLS, _PLAIN_SECONDS = 50, 0.5

#: The name that the plugin is registered by.
WORKER = "kopt-worker"
_HOOK: pytest.StashKey[AuditHook] = pytest.StashKey()
#: As `repr` has it.
_ADDRESS = re.compile(r" at 0x[0-9a-f]{8,}")
#: Everything that measures, torch included: imported before kernel code, from what is installed.
_MEASURING = (
    *("pytest_kopt.cases.running.run_case", "pytest_kopt.cases.running.timed_versions"),
    *("pytest_kopt.cases.running.judge_orders", "pytest_kopt.cases.fixture"),
)


class Worker:
    """Registered in every process that runs tests; knows its orders, decides nothing."""

    def __init__(
        self, config: pytest.Config, orders: WorkerOrders, client: Client | None = None
    ) -> None:
        self.orders = orders
        self._config = config
        self._client = client
        self._bench: Bench | None = None
        self._operators: frozenset[str] = frozenset()
        self._limit = TimeLimit(orders.timeout, config.stash[STDERR])
        #: Whether a case took the GPU's context along, so that this process can run no other.
        self.context_lost = False

    def fixture(self, request: pytest.FixtureRequest) -> Kopt:
        """Return the value of the `kopt` fixture for a test."""
        test = request.node
        try:
            return Kopt(test, marked_schema(test), self._bench_now(), self._client)
        except BadInput as error:
            send(test, CaseResult(test.nodeid, refusal=str(error)))
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    @pytest.fixture(autouse=True)
    def _switches_kept(self, request: pytest.FixtureRequest) -> Generator[None, None, None]:
        """Give torch's switches back as a test's own fixtures and its case found them."""
        with switches_kept() if is_marked(request.node) else nullcontext():
            yield

    def _bench_now(self) -> Bench:
        if self._bench is None:
            self._bench = bench_of(
                self.orders,
                audit_hook=audit_hook_of(self._config),
                operators=self._operators,
                waiting=self._limit.waiting,
            )
        match self._client and self._client.order:
            case LoadVersions(seed=seed):
                return replace(self._bench, session_seed=seed)
            case _:
                return self._bench

    def prepare_imports(self) -> None:
        """Set up Triton's interpreter, and the audit hook, before kernel code is imported."""
        os.environ.update(interpreter_environment(self.orders.device))
        audit_hook_of(self._config)
        self._operators = replaced_operators()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Limit the import of a test file and of the kernel with it.

        If nothing is judged, a module that builds for long at its import may do so.
        """
        if not self.orders.decides or not isinstance(collector, pytest.Module):
            return (yield)
        self._seed(collector.nodeid, "import")
        with self._limit.watching():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Have the ids of cases be the same in other processes, which look for them."""
        parametrize = metafunc.parametrize

        def numbered(*args: Any, **keywords: Any) -> None:
            bound = signature(parametrize).bind(*args, **keywords)
            bound.arguments["ids"] = _numbered(bound.arguments.get("ids"))
            parametrize(*bound.args, **bound.kwargs)

        if is_marked(metafunc.definition):
            metafunc.parametrize = numbered  # type: ignore[method-assign]

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> None:
        self._seed(request.node.nodeid, fixturedef.argname)

    def _seed(self, nodeid: str, purpose: str) -> None:
        """Have what a project draws without a seed of its own be the same in all processes."""
        if self.orders.decides:
            seed_everything(derive(self.orders.setup_seed, nodeid, purpose))

    def select(self, items: list[pytest.Item]) -> None:
        """Leave the cases of the round, and of the special suites only what was asked for."""
        if self.orders.decides:
            keep = [test for test in items if self._is_case(test)]
            dropped = [test for test in items if not self._is_case(test)]
            if dropped:
                items[:] = keep
                self._config.hook.pytest_deselected(items=dropped)
        for test in filter(uses_kopt, items):
            reason = self._skip_reason(test)
            if reason:
                test.add_marker(pytest.mark.skip(reason=reason))
        if self._config.option.collectonly:
            return
        with refusing(self._config):
            cases = [i for i in items if is_marked(i) and not i.get_closest_marker("skip")]
            check_cases(cases, self.orders)
            if self.orders.device == "cuda" and any(map(is_marked, items)):
                # Start-up is nobody's time; the first case's would else be the longest.
                context.rouse(self.orders.device)

    # Inside of what runs a test in a fork: a fork has none of its parent's clocks.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """End this process, with its stacks shown, when a case takes longer than it may."""
        with self._limit.watching() if is_marked(item) else nullcontext():
            return (yield)

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Declare the row that a case gets if it ends its process."""
        guess = self._error_result(item) if is_marked(item) and not self.orders.expected else None
        if guess is not None:
            send_fallback(item, guess, self._client)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Have a test that was left since its case was served end as one that returned."""
        self._seed(pyfuncitem.nodeid, "call")
        with suppress(CaseServed):
            return (yield from self._called(pyfuncitem))
        return True

    def _called(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Make a row of what pytest-benchmark's fixture measured; note a case without any."""
        if not is_marked(pyfuncitem):
            return (yield)
        if "benchmark" not in pyfuncitem.fixturenames:
            outcome = yield
            if not _has_row(pyfuncitem):
                pyfuncitem.user_properties.append((NEVER, True))
            return outcome
        from pytest_kopt.cases import benchmark

        dims = scalar_parameters(pyfuncitem, None)
        label = named(pyfuncitem.nodeid, dims)
        skip_outside(pyfuncitem, label, self.orders.selected)
        only_checks = self.orders.only_checks
        with nullcontext() if only_checks else benchmark.stand_in(pyfuncitem) as timed:
            outcome = yield
        if _has_row(pyfuncitem):
            return outcome
        measured = benchmark.result(pyfuncitem, timed, dims, label)
        if measured is not None and self.orders.decides:
            measured = CaseResult(pyfuncitem.nodeid, refusal=str(benchmark.undecidable(pyfuncitem)))
        if measured is not None:
            send(pyfuncitem, measured)
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a marked test that failed before it could measure an ERROR row."""
        report = yield
        if report.failed and is_marked(item) and not self.context_lost:
            self.context_lost = context.is_lost(self.orders.device)
        if report.failed and not _has_row(item) and is_marked(item) and call.when != "teardown":
            result = item.stash.get(FALLBACK, None) or self._error_result(item)
            if result is not None:
                send(item, replace(result, diagnosis=report.longreprtext))
                report.user_properties = list(item.user_properties)
        if self.context_lost:
            report.user_properties = [*report.user_properties, (LOST, True)]
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None and is_marked(item):
            # On CI pytest's summary repeats the whole message, with what it says of the traceback.
            crash.message = crash.message.partition("\n")[0]
        return report

    def _is_case(self, test: pytest.Item) -> bool:
        special = any(test.get_closest_marker(name) for name in SUITES)
        return is_marked(test) and not special and test.nodeid not in self.orders.ignored

    def _skip_reason(self, test: pytest.Item) -> str | None:
        suite = self.orders.suite
        if test.get_closest_marker("multigpu") and hasattr(test.config, "workerinput"):
            return "multigpu suite: not under xdist, run with --kopt-dist-only alone"
        if suite != "standard":
            is_of_suite = test.get_closest_marker(suite) is not None
            return None if is_of_suite else f"only the {suite} suite runs"
        for name, option in SUITES.items():
            if test.get_closest_marker(name):
                return f"{name} suite: run with {option}"
        return None

    def _error_result(self, test: pytest.Item) -> CaseResult | None:
        """Return the ERROR result of a test that never called the fixture, if dims tell."""
        frozen = {case.nodeid: case for case in self.orders.expected or ()}.get(test.nodeid)
        if frozen is not None:
            return CaseResult.failed(test.nodeid, frozen, "")
        with suppress(BadInput):  # Its parameters do not fit the schema.
            schema = resolve(marked_schema(test), test.nodeid)
            dims = schema.complete_dims(scalar_parameters(test, schema.dims), test.nodeid)
            label = named(test.nodeid, dims)
            return CaseResult.undecided(test.nodeid, schema, dims, label, guessed=True)
        return None


def bench_of(orders: WorkerOrders, **more: Any) -> Bench:
    """Return how cases are measured here, with `more` fields of the bench; imports torch."""
    from pytest_kopt.cases.running.switches import compile_here
    from pytest_kopt.devices.pinning import discover, in_use
    from pytest_kopt.devices.processes import announce

    host = discover(orders.device)
    device = in_use(host)
    compile_here()
    if orders.device == "cuda":
        announce(device.uuid)
    if orders.arms:
        more["cpu"] = WallEngine(iterations=_PAIR_CALLS, block_seconds=_PAIR_SECONDS)
        more["gpu_block_ms"] = _PAIR_GPU_MS
    elif orders.iterations:
        more["cpu"] = WallEngine(iterations=orders.iterations)
    elif not orders.decides:
        calls, seconds = _PLAIN_CALLS, _PLAIN_SECONDS
        more["cpu"] = WallEngine(iterations=calls, block_seconds=seconds, fewest=1)
    more |= {part.name: getattr(orders, part.name) for part in fields(orders)}
    return Bench(uuid=device.uuid, read=lambda: host.read(device), **more)


def audit_hook_of(config: pytest.Config) -> AuditHook:
    """Return the audit hook of this process, installed now unless it is; imports torch.

    Called before the first file that could import a kernel.
    """
    if _HOOK not in config.stash:
        serve = config.pluginmanager.get_plugin(SERVE)
        with kept_bytecode():
            from pytest_kopt.honesty.audit_hook import AuditHook
            from pytest_kopt.processes.isolation import compilers_caches

            arms = serve.orders.arms if serve is not None else None
            config.stash[_HOOK] = hook = AuditHook(
                config.rootpath,
                # As the environment names them before kernel code can.
                compilers_caches(),
                is_confined=getattr(serve, "is_confined", False),
            )
            hook.install()
            if arms is not None and arms.trees:
                # pytest imports the modules of some packages itself, to rewrite their assertions.
                rewriting = type(config.pluginmanager.rewrite_hook)
                note_imports(Path(arms.tree or arms.root), SourceFileLoader, rewriting)
            for name in _MEASURING:
                importlib.import_module(name)
    return config.stash[_HOOK]


def worker_of(config: pytest.Config) -> Worker:
    worker = config.pluginmanager.get_plugin(WORKER)
    assert isinstance(worker, Worker)
    return worker


def _numbered(ids: Any) -> Any:
    """Return the ids of parameters, or what makes them, with a number for each address."""
    numbers: dict[str, str] = {}

    def plain(name: Any) -> Any:
        for address in _ADDRESS.findall(name) if isinstance(name, str) else ():
            name = name.replace(address, numbers.setdefault(address, f" at 0x{len(numbers) + 1:x}"))
        return name

    if callable(ids):
        return lambda value: plain(ids(value))
    return [*map(plain, ids)] if isinstance(ids, list | tuple) else ids


def _has_row(test: pytest.Item) -> bool:
    return any(name == PROPERTY for name, _ in test.user_properties)


def scalar_parameters(test: pytest.Item, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return a test's parameters that can be dims: those of `names`, or every scalar one."""
    callspec = getattr(test, "callspec", None)
    parameters: dict[str, Any] = dict(callspec.params) if callspec else {}
    if names is not None:
        return {name: parameters[name] for name in names if name in parameters}
    return {k: v for k, v in parameters.items() if isinstance(v, int | float | str | bool)}
