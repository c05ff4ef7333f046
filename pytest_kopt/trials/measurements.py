"""The measurements that judging may ask for: fresh processes on the devices of this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from pytest_kopt.campaign.running import COMPARING
from pytest_kopt.cases.details import choices_of, merged_choices
from pytest_kopt.cases.order import CANDIDATE, ArmsOrder, Choices, WorkerOrders
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.devices.pinning import place
from pytest_kopt.imports import Finder
from pytest_kopt.options.settings import Settings
from pytest_kopt.processes.child import NO_MEMORY, Child, without_records
from pytest_kopt.processes.launcher import launcher_of
from pytest_kopt.processes.sites import Place, Sites, connect
from pytest_kopt.show.progress import Progress
from pytest_kopt.versions.tree import project_files

#: Most of what a check on a GPU needs of the host is not its kernel's one thread.
_CORES_OF_A_CHECK = {"cpu": 1, "cuda": 2}
#: What Triton imports at the first launch on a GPU.
_LAUNCHING = ("triton.experimental.gluon", "triton.compiler.code_generator")
#: In the source of a kernel that Triton times configurations of.
_AUTOTUNED = b"autotune"

if TYPE_CHECKING:
    from pytest_kopt.honesty.finding import Finding
    from pytest_kopt.paired.arms import Versions
    from pytest_kopt.paired.comparison import Comparison
    from pytest_kopt.processes.case_processes import CaseProcesses
    from pytest_kopt.processes.profiler import Profiler
    from pytest_kopt.processes.remote_host import RemoteHost
    from pytest_kopt.profiling.kernel_table import CaseProfile


class Measurements:
    """Measures by a session's orders, which grow, each case on the device that it is at home on."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        orders: WorkerOrders,
        collector: Collector,
        common_environment: Mapping[str, str],
        progress: Progress,
    ) -> None:
        self.orders = orders
        self.common_environment = dict(common_environment)
        self.progress = progress
        self._config = config
        self._settings = settings
        self._collector = collector
        variables = {**self.common_environment, **without_records(os.environ)}
        self.sites = Sites(config, orders.device, variables)
        self._root = config.rootpath.resolve()
        self._run = uuid4().hex
        #: Results of checks in trees, by tree and node id.
        self._checked: dict[Path, dict[str, CaseResult]] = {}

    @property
    def environment(self) -> dict[str, str]:
        site = self.sites.first
        return site.environment_on(site.placement.best)

    def checker(self, place: int) -> Child:
        """Start the process at a place, below the number of `checkers`, that checks cases."""
        orders, lanes = self.orders, len(self.sites.asked)
        site, device = self.sites.lane(place)
        env = site.environment_on(device)
        if lanes:
            worker = self._as_worker_of_xdist(f"gw{place}", lanes)
            orders = replace(orders, device=site.kind, workerinput=worker)
            env |= {
                "PYTEST_XDIST_WORKER": worker["workerid"],
                "PYTEST_XDIST_WORKER_COUNT": str(lanes),
                "PYTEST_XDIST_TESTRUNUID": self._run,
            }
        return Child(self._config, orders, env, None, site.copy(self._root), site.starter)

    def _as_worker_of_xdist(self, name: str, count: int) -> dict[str, Any]:
        """Return what fixtures of the project, and of plugins, ask for in a worker of xdist."""
        found = {"workerid": name, "workercount": count, "testrunuid": self._run}
        # Plugins and conftest files give a worker what their own part there reads.
        gateway = SimpleNamespace(id=name, spec=None)
        node = SimpleNamespace(config=self._config, workerinput=found, gateway=gateway)
        self._config.hook.pytest_configure_node(node=node)
        return found

    def in_their_order(self, ids: list[str]) -> list[str]:
        """Return cases in the order in which processes check them.

        In several lanes the longest come first: at the end no device is left with one.
        """
        seconds = {case.nodeid: case.seconds for case in self.orders.expected or ()}
        several = len(self.sites.asked) > 1
        return sorted(ids, key=lambda nodeid: -seconds.get(nodeid, 0.0)) if several else ids

    @property
    def checkers(self) -> int:
        """How many processes check cases at once, one a lane."""
        return len(self.sites.asked) or 1

    @property
    def foreseen(self) -> int:
        """How many cases of the baseline's this session is to run, before they are collected."""
        expected = self.orders.expected or ()
        return sum(case.nodeid not in self.orders.ignored for case in expected)

    def take_place(
        self, wait_minutes: float | None, say: Callable[[str], None], *, serves_itself: bool
    ) -> None:
        """Find the devices of this host; pin this process where it runs serial cases itself."""
        config = self._config
        multi = self._settings.suite == "multigpu"
        if multi or config.option.collectonly:
            return
        if not serves_itself:
            self.sites.reach(partial(self._site_there, wait_minutes, say))
        if not self.sites.has_here:
            return
        placement = place(self.orders.device, self.orders.target, wait_minutes, say)
        self.sites.here.placement = placement
        if serves_itself and not self.sites.asked:
            os.environ.update(placement.host.pin(placement.best))

    def measure_again(self) -> Sequence[CaseResult]:
        """Run the cases once more and return their results."""
        results: list[CaseResult] = []
        measured = [nodeid for nodeid in self._collector.order if nodeid in self._collector.results]
        choices = self._choices_of(self._root)
        for where in self._lanes(measured):
            results += self._rerun(where, candidate_choices=choices).run().results.values()
        return results

    def _rerun(
        self, where: Place, copy: tuple[Path, Path] | None = None, **changes: Any
    ) -> CaseProcesses:
        from pytest_kopt.processes.case_processes import CaseProcesses

        return CaseProcesses(self._config, self._starts(where, copy, **changes), where.ids)

    def _starts(
        self, where: Place, copy: tuple[Path, Path] | None = None, **changes: Any
    ) -> Callable[[int], Child]:
        """Return what starts a process for cases, with `copy` (a root and a copy of it) there."""
        site, device, ids = where
        orders = replace(self.orders, device=site.kind, **changes)
        env, there = site.environment_on(device), site.copy(*(copy or (self._root,)))
        return lambda _: Child(self._config, orders, env, ids, there, site.starter)

    def time_also(self, ids: Sequence[str]) -> None:
        """Check and time cases that this session has only checked, as the others."""
        self.orders, collector = replace(self.orders, untimed=()), self._collector
        self.progress.begin("checking", len(ids))
        homes = {c.nodeid: c.device for c in self.orders.expected or () if c.nodeid in ids}
        for where in self.sites.lanes(homes, measured=False):
            again = self._rerun(where).run()
            collector.results |= again.results
            collector.dead |= again.dead
            collector.failures |= again.failures
        self.progress.begin("deciding")

    def run_in(
        self,
        copies: Sequence[tuple[Path, Path]],
        ids: Sequence[str],
        phase: str = "",
        *,
        times: bool = False,
    ) -> list[Collector]:
        """Return what cases come to in each copy of the project, side by side.

        A copy is the project's root and what stands for it; `phase` is shown meanwhile.
        """
        several = len(copies) > 1
        if phase:
            self.progress.begin(phase, len(copies) if several else 0, says=True)
        collectors = self._side_by_side(copies, ids, times, self.progress.advance)
        for number, there in enumerate(collectors):
            if several and any(NO_MEMORY in text for text in there.failures.values()):
                alone = copies[number : number + 1]
                (collectors[number],) = self._side_by_side(alone, ids, times, lambda: None)
        for (_, tree), there in zip(copies, collectors, strict=True):
            self._checked.setdefault(tree, {}).update(there.results)
        return collectors

    def _side_by_side(
        self,
        copies: Sequence[tuple[Path, Path]],
        ids: Sequence[str],
        times: bool,
        progress: Callable[[], None],
    ) -> list[Collector]:
        from pytest_kopt.processes.case_processes import run_side_by_side

        site = self.sites.first
        room = max(1, site.cores // _CORES_OF_A_CHECK[site.kind])
        runs = [
            self._rerun(
                Place(site, device, [*ids]),
                copy,
                only_checks=not times,
                candidate_choices=self._choices_of(copy[1]),
            )
            for copy, device in zip(copies, cycle(self.sites.at_once), strict=False)
        ]
        return run_side_by_side(runs, room, progress)

    def compare(
        self,
        cases: Iterable[CaseResult],
        versions: Versions,
        most: int | None = None,
        phase: str = COMPARING,
    ) -> Comparison:
        """Return a comparison of versions over these cases, nothing measured yet.

        `most` is how many processes there can be, where that is not up to the looks; `phase` is
        what is shown meanwhile.
        """
        from pytest_kopt.decide.inference import FINAL_LOOK
        from pytest_kopt.paired.comparison import Comparison

        ids = [case.nodeid for case in cases]
        lanes = self._lanes(ids)
        # What is calibrated is how processes differ; of a race's two to four each counts.
        most = most or self._settings.calibrate or FINAL_LOOK
        current_best = [versions.trees[0].place / path for path in versions.changed]
        is_mentioned = self._is_autotuned or _mention_autotuning(current_best)
        if is_mentioned or self._choices_of(self._root):
            self._tune(ids, versions)
        self.progress.begin(phase, most * len(lanes), "replicates")
        return Comparison(self._config, self.orders, lanes, versions, self.progress, most)

    @cached_property
    def _is_autotuned(self) -> bool:
        """Whether kernels of the cases are autotuned, by the baseline or their sources."""
        expected = self.orders.expected or ()
        return any(case.autotuned for case in expected) or _mention_autotuning(self._reached[1])

    def _tune(self, ids: Sequence[str], versions: Versions) -> None:
        """Have each version of the cases choose its kernels' configurations, for all processes.

        A candidate has chosen in its check. The current best chooses in a process without any.
        """
        trees = [self._root, *(tree.place for tree in versions.trees[1:])]
        if not versions.raced:
            trees = [versions.trees[0].place, self._root]
        results = self._collector.results if versions.raced else self._checked.get(trees[0], {})
        if missing := [nodeid for nodeid in ids if nodeid not in results]:
            self.run_in([(versions.root, trees[0])], missing, "tuning the current best")
        candidates = merged_choices(map(self._choices_of, trees[1:]))
        self.orders = replace(
            self.orders, choices=self._choices_of(trees[0]), candidate_choices=candidates
        )

    def _choices_of(self, tree: Path) -> Choices:
        """Return the choices of the version in a tree, as its checks made them."""
        is_here = tree == self._root
        results = self._collector.results if is_here else self._checked.get(tree, {})
        return choices_of(results.values())

    def _lanes(self, ids: Sequence[str]) -> list[Place]:
        results = self._collector.results
        devices = {nodeid: results[nodeid].evidence.device for nodeid in ids}
        return self.sites.lanes(devices, measured=True)

    def _site_there(
        self, wait_minutes: float | None, say: Callable[[str], None], name: str
    ) -> RemoteHost:
        """Connect to another host; AllGpusBusy or BadInput where nothing can be measured there."""
        remote = connect(self._config, name, say)
        option, target = self._settings.device, self.orders.target
        remote.open(option, target, self.common_environment, wait_minutes)
        return remote

    @cached_property
    def _reached(self) -> tuple[set[str], set[Path]]:
        """The libraries that the tests' files import, and the project's files."""
        root = self._root.resolve()
        finder = Finder(root, [root, *self._config.getini("pythonpath"), root / "src"])
        return finder.libraries_and_files(_test_files(self._config))

    def warm_up(self) -> None:
        """Have the processes to come start sooner; what they import is imported meanwhile."""
        config = self._config
        plugins = [plugin for plugin, _ in config.pluginmanager.list_plugin_distinfo()]
        modules = [name for plugin in plugins if (name := getattr(plugin, "__name__", ""))]
        expected = self.orders.expected or ()
        modules += sorted({name for case in expected for name in case.libraries})
        if self.orders.device == "cuda":
            modules += _LAUNCHING
        modules += sorted(self._reached[0])
        directory = str(config.invocation_params.dir)
        launcher_of(config).warm(self.sites.here.environment, directory, modules)

    def try_nearby(self, ids: Sequence[str]) -> list[Finding]:
        """Return what the project's version shows near the cases' inputs, in a process of its own.

        An interpreted kernel may end its process at another size.
        """
        from pytest_kopt.paired.nearby import notes_nearby

        if not (ids and self.sites.has_here) or self._settings.suite == "multigpu":
            return []
        arms, choices = ArmsOrder((CANDIDATE,), str(self._root)), self._choices_of(self._root)

        def start(left: list[str]) -> Child:
            where = Place(self.sites.here, self.sites.at_once[0], left)
            return self._starts(where, arms=arms, candidate_choices=choices)(0)

        self.progress.begin("trying near inputs", says=True)
        return [*notes_nearby(start, ids, self.orders.session_seed)]

    def profile(self, ids: Sequence[str], *, vendor: bool) -> list[CaseProfile]:
        """Return profiles of the cases by torch and, if asked for, by the vendor's tool."""
        profiles = self._profiler.by_torch(ids)
        return [*profiles, *self._profiler.by_vendor(profiles)] if vendor else profiles

    def sanitized(self, nodeid: str, tool: str) -> str:
        """Return what a tool of compute-sanitizer says against a case, "" for nothing."""
        return self._profiler.sanitized(nodeid, tool)

    @property
    def _profiler(self) -> Profiler:
        from pytest_kopt.processes.profiler import Profiler

        here = self.sites.here
        return Profiler(self._config, self.orders, here.environment_on(here.placement.best))

    def end(self) -> None:
        launcher_of(self._config).end()
        self.sites.end()


def _mention_autotuning(files: Iterable[Path]) -> bool:
    return any(
        path.suffix == ".py" and path.is_file() and _AUTOTUNED in path.read_bytes()
        for path in files
    )


def _test_files(config: pytest.Config) -> Iterator[Path]:
    """Yield the files that pytest is about to collect tests from, by their names."""
    asked = [config.invocation_params.dir / str(word).partition("::")[0] for word in config.args]
    yield from (path for path in asked if path.is_file())
    is_left_out = partial(_is_matched, config, "norecursedirs")
    for top in filter(Path.is_dir, asked):
        files = project_files(top, is_left_out)
        yield from (top / path for path in files if _is_matched(config, "python_files", path.name))


def _is_matched(config: pytest.Config, setting: str, name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in config.getini(setting))
