"""What a session measures: fresh processes on the devices of this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.devices.placement import ON_CPU, Placement, place
from pytest_kopt.errors import BadInput
from pytest_kopt.options.settings import Settings
from pytest_kopt.processes.launcher import launcher_of
from pytest_kopt.processes.worker_orders import WorkerOrders
from pytest_kopt.session.distribution import has_local_workers, is_distributed, local_workers

if TYPE_CHECKING:
    from pytest_kopt.decide.kernel_time import ProfilePair
    from pytest_kopt.devices.vendor import Device
    from pytest_kopt.paired.comparison import Comparison, Versions
    from pytest_kopt.processes.profiler import Profiler
    from pytest_kopt.profiling.table import CaseProfile


class HostMeasurements:
    """Measures what is asked for by a session's orders, each case on the device it is at home on.

    `common_environment` is what every process that runs kernel code gets, on whatever host. The
    orders grow by the cases that are checked later.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        orders: WorkerOrders,
        collector: Collector,
        common_environment: Mapping[str, str],
    ) -> None:
        self.orders = orders
        self.common_environment = dict(common_environment)
        self.session: pytest.Session | None = None
        self._config = config
        self._settings = settings
        self._collector = collector
        self._placement: Placement = ON_CPU
        self._prestarted = False

    @property
    def environment(self) -> dict[str, str]:
        """What a process on the most idle device of this host gets."""
        return self._local_environment | self._placement.pin_to(self._placement.best)

    @property
    def _local_environment(self) -> dict[str, str]:
        from pytest_kopt.devices.choice import interpreter_environment

        return interpreter_environment(self.orders.device) | self.common_environment

    def environment_of_worker(self, place: int) -> dict[str, str]:
        """Return what the `place`-th worker of this host gets: all that, and its device."""
        return self._local_environment | self._placement.pin(place)

    def take_place(
        self, wait_minutes: float | None, say: Callable[[str], None], *, serves_itself: bool
    ) -> None:
        """Find the devices of this host; pin this process where it runs serial cases itself."""
        config = self._config
        multi = self._settings.suite == "multigpu"
        if multi or config.option.collectonly or not has_local_workers(config):
            return
        self._placement = place(self.orders.device, self.orders.target, wait_minutes, say)
        if serves_itself and not is_distributed(config):
            os.environ.update(self._placement.pin_to(self._placement.best))

    def measure_again(self) -> Sequence[CaseResult]:
        """Run the round's cases once more, each device's in a fresh process there."""
        from pytest_kopt.paired.remeasure import measure_again

        found: list[CaseResult] = []
        measured = [nodeid for nodeid in self._collector.order if nodeid in self._collector.results]
        for device, ids in self._lanes(measured).items():
            env = self._local_environment | self._placement.pin_to(device)
            found += measure_again(self._config, self.orders, env, ids).results.values()
        return found

    def check_also(self, ids: Sequence[str]) -> None:
        """Check and measure further cases, each in a fresh process where its incumbent was.

        Their reports are those of this session, and its orders include them from now on.
        """
        from pytest_kopt.processes.child import Child, filter_known
        from pytest_kopt.session.replay import Replay

        self._lanes(list(self._collector.results))
        kept = tuple(nodeid for nodeid in self.orders.ignored if nodeid not in ids)
        self.orders = replace(self.orders, ignored=kept)
        assert self.session is not None
        self.session.testscollected += len(ids)
        replay = Replay(self._config, self._collector)
        for device, members in self._homes(ids).items():
            env = self._local_environment | self._placement.pin_to(device)
            start = partial(Child, self._config, self.orders, env, members)
            replay.run(start, partial(filter_known, members))

    def run_in(self, copy: tuple[Path, Path], ids: Sequence[str], **changes: Any) -> Collector:
        """Run cases in a copy of the project under orders that are changed so."""
        from pytest_kopt.paired.remeasure import measure_again

        orders = replace(self.orders, **changes)
        return measure_again(self._config, orders, self.environment, ids, copy=copy)

    def compare(self, ids: Sequence[str], versions: Versions) -> Comparison:
        """Return a comparison of two versions over these cases in fresh processes."""
        from pytest_kopt.decide.inference import FINAL_LOOK
        from pytest_kopt.paired.comparison import Comparison
        from pytest_kopt.show.progress import Progress

        lanes = self._lanes(ids)
        env = self._local_environment
        most = self._settings.calibrate or FINAL_LOOK
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        progress = Progress(reporter, most * len(lanes)).measured
        return Comparison(
            self._config,
            self.orders,
            env,
            lanes,
            versions,
            self._placement,
            progress,
            most,
        )

    def _lanes(self, ids: Sequence[str]) -> dict[Device, list[str]]:
        """Return the cases by the device that measured them; BadInput for another host's."""
        results = self._collector.results
        uuids = {nodeid: results[nodeid].evidence.get("device") for nodeid in ids}
        for nodeid, device in uuids.items():
            if device and self._placement.find(device) is None:
                raise BadInput(
                    f"measured on {device} of another host, and what has to be measured now has "
                    "to be measured there",
                    where=f"case {nodeid}",
                    legal="workers on this host, or the whole run on that one",
                )
        return self._placement.group(uuids)

    def _homes(self, ids: Sequence[str]) -> dict[Device, list[str]]:
        """Return cases that were not measured yet by the device that measured their incumbent."""
        devices = {case.nodeid: case.device for case in self.orders.expected or ()}
        return self._placement.group({nodeid: devices.get(nodeid) for nodeid in ids})

    def warm_up(self) -> None:
        """Have the processes to come start sooner; what they import is imported meanwhile."""
        if not self._settings.forks:
            return
        directory = str(self._config.invocation_params.dir)
        launcher_of(self._config).warm(self._local_environment, directory)

    def prestart_replicas(self) -> None:
        """Have the first replicas wake on the GPUs while the cases are checked there."""
        from pytest_kopt.paired.comparison import ahead, replica_environment

        config, kind = self._config, self.orders.device
        if kind != "cuda" or config.option.collectonly or self._prestarted:
            return
        self._prestarted = True
        devices: Sequence[Device] = [self._placement.best]
        if is_distributed(config):
            devices = self._placement.devices[: local_workers(config)]
        for device in devices:
            env = replica_environment(self._local_environment, self._placement, device)
            directory = str(config.invocation_params.dir)
            launcher_of(config).prestart(
                ahead(kind, len(devices)), {**os.environ, **env}, directory, kind
            )

    def profile(self, ids: Sequence[str], *, vendor: bool) -> list[CaseProfile]:
        """Return profiles of these cases by torch and, if asked for, by the vendor's tool."""
        found = self._profiler.by_torch(ids)
        return [*found, *self._profiler.by_vendor(found)] if vendor else found

    def profile_pairs(self, ids: Sequence[str], copy: tuple[Path, Path]) -> list[ProfilePair]:
        """Return torch's profiles of the candidate and of the version in a copy of the project.

        Fresh processes on one device, in the order ABBA: what drifts meets both alike.
        """

        def taken(*copies: tuple[Path, Path] | None) -> Iterator[list[CaseProfile]]:
            for each in copies:
                self._placement.keep_strangers_off(self._placement.best)
                yield self._profiler.by_torch(ids, each)

        first, second, third, fourth = taken(None, copy, copy, None)
        return [(first, second), (fourth, third)]

    @property
    def _profiler(self) -> Profiler:
        from pytest_kopt.processes.profiler import Profiler

        return Profiler(self._config, self.orders, self.environment)

    def second_runs(self) -> None:
        """Run cases that killed an xdist worker once more, to tell the case from bad luck."""
        from pytest_kopt.paired.remeasure import measure_again

        # A session without a trial runs other tests as well; those are not run again.
        orders = replace(self.orders, cases_only=True)
        for nodeid, how in self._collector.crashed.items():
            again = measure_again(self._config, orders, self.environment, [nodeid], lives=1)
            self._collector.results |= again.results
            if nodeid in again.dead:
                self._collector.dead[nodeid] = f"{how}\n{again.dead[nodeid]}"
            elif nodeid in again.order or self.orders.cases_only:
                self._collector.lost.append(f"{nodeid}: {how.splitlines()[0]}")

    def calibrate(self, count: int) -> dict[str, Any]:
        from pytest_kopt.paired.comparison import NotComparable
        from pytest_kopt.paired.replica import Caught
        from pytest_kopt.trials.calibration import calibration
        from pytest_kopt.trials.trees import overlays

        results = [result for result in self._collector.in_order() if result.check == "PASS"]
        if not results:
            raise BadInput("no case passed", where="--kopt-calibrate", legal="cases that pass")
        try:
            ids = [result.nodeid for result in results]
            with (
                overlays(self._config.rootpath.resolve(), {}) as versions,
                self.compare(ids, versions) as comparison,
            ):
                replicas = list(comparison.replicas(count))
        except (Caught, NotComparable) as error:
            raise BadInput(str(error), where="--kopt-calibrate") from None
        return calibration(results, replicas, comparison.how)

    def end(self) -> None:
        """End the processes that wait to be used."""
        launcher_of(self._config).end()
