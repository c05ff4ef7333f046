"""The plugin of the process that decides: collects, has the round judged, shows, sets the exit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.devices.idle import NoIdleGpu
from pytest_kopt.errors import BadInput, CannotFinish, storage_told
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options.settings import Settings
from pytest_kopt.session.arguments import NARROWED
from pytest_kopt.session.brief import Brief
from pytest_kopt.session.collector import Collector
from pytest_kopt.session.interruption import Interruption
from pytest_kopt.session.placement import ON_CPU, Placement, place
from pytest_kopt.session.spares import Spares

if TYPE_CHECKING:
    from pytest_kopt.devices.vendor import Device
    from pytest_kopt.profiling.table import CaseProfile
    from pytest_kopt.roofline import Roofline
    from pytest_kopt.session.comparison import Comparison, Versions
    from pytest_kopt.session.trial import Closing, Trial


class Controller:
    """Registered in the main process; without a trial it only collects and shows."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        brief: Brief,
        trial: Trial | None,
    ) -> None:
        self.settings = settings
        self.brief = brief
        self.trial = trial
        self.placement: Placement = ON_CPU
        self.collector = Collector()
        self._config = config
        self._closing: Closing | None = None
        self.noise: dict[str, Any] | None = None
        self._rooflines: Sequence[Roofline] = ()
        self._interruption = Interruption()
        self._spares = Spares()
        self._unwritten: list[str] = []
        self._session: pytest.Session | None = None

    @property
    def common_environment(self) -> dict[str, str]:
        """What every worker gets before it imports kernel code, on whatever host."""
        return dict(self.trial.environment) if self.trial else {}

    @property
    def environment(self) -> dict[str, str]:
        """What a process on the most idle device of this host gets."""
        return self._local_environment | self.placement.pin_to(self.placement.best)

    @property
    def _local_environment(self) -> dict[str, str]:
        from pytest_kopt.devices.choice import interpreter_environment

        return interpreter_environment(self.brief.device) | self.common_environment

    def environment_of_worker(self, place: int) -> dict[str, str]:
        """Return what the `place`-th worker of this host gets: all that, and its device."""
        return self._local_environment | self.placement.pin(place)

    @property
    def wait_minutes(self) -> float | None:
        """How long to wait for an idle GPU; None where nothing is timed for the record."""
        timed = self.settings.active and self.settings.suite == "standard"
        return self.settings.gpu_wait if timed else None

    def say(self, line: str) -> None:
        """Show a line at once."""
        from pytest_kopt.show.terminal import write

        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            write(reporter, [line])
            reporter.flush()

    def collected(self, ids: list[str]) -> list[str]:
        """Take over a collection and return what has to run; UsageError when the cases drifted."""
        self.collector.collected(ids)
        if self.trial:
            try:
                self.trial.check_collection(
                    ids, self.collector, self._config.stash.get(NARROWED, False)
                )
            except BadInput as error:
                raise pytest.UsageError(str(error)) from None
        return ids

    def pytest_report_header(self) -> list[str]:
        if not self.settings.active:
            return []
        if self.trial is None:
            return [f"kopt: {self.brief.device}, rows go to {self.settings.summary_csv}"]
        from pytest_kopt.show.words import printed

        lines = [f"kopt: {self.trial.title}, {self.brief.device}", *self.trial.preface]
        return [piece for line in lines for piece in printed(line)]

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session
        if self.trial:
            self._interruption.take_over()
        with _told("nothing was measured or changed"):
            self._take_place()
            blocked = self.trial.begin() if self.trial else ""
        if blocked:
            self.collector.startup_death = blocked
            self._config.pluginmanager.register(Blocked(), "kopt-blocked")
        elif self.settings.calibrate or (self.trial and self.trial.wants_replicas):
            self._start_spares()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take over an in-process collection."""
        self.collected([item.nodeid for item in session.items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collector.add_collect_error(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take over a case's result; every later reader of the report finds plain properties."""
        self.collector.add_report(report)
        if report.user_properties:
            from pytest_kopt.show.junit import unpack

            unpack(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        ours = {ExitCode.OK, ExitCode.FAILED, int(pytest.ExitCode.NO_TESTS_COLLECTED)}
        if self._closing and exitstatus in ours:
            session.exitstatus = int(self._closing.verdict.exit_code)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from pytest_kopt.show import terminal

        results = self.collector.in_order()
        if not results and self._closing is None:
            return
        shown = list(
            terminal.result_lines(
                results, self._closing, self._rooflines, terminalreporter.verbosity
            )
        )
        if shown or self.noise:
            terminalreporter.section("kopt")
        terminal.write(terminalreporter, shown)
        if self._closing:
            from pytest_kopt.show.github import annotation_lines

            for line in (
                *self._unwritten,
                *annotation_lines(os.environ, self._closing.verdict, results),
            ):
                terminalreporter.write_line(line)
        if self.noise:
            from pytest_kopt.session.calibration import lines

            for line in lines(self.noise):
                terminalreporter.write_line(line)
            if self.settings.verdict_path:
                self.settings.verdict_path.write_text(json.dumps(self.noise, indent=1))

    def pytest_unconfigure(self) -> None:
        self._interruption.give_back()
        self._spares.end()
        if self.trial:
            self.trial.release()

    def close(self, interrupted: str = "") -> None:
        """Have the round judged and write what was asked for; UsageError for unusable input."""
        undisturbed = self._interruption.held_off() if interrupted else nullcontext()
        with undisturbed, _told("nothing is lost: the next session finishes what this one began"):
            if self.trial:
                if not interrupted:
                    self._second_runs()
                self._closing = self.trial.close(self.collector, self, interrupted)
                self._write_verdict()
                self._publish()
            elif self.collector.refusals:
                raise BadInput("; ".join(self.collector.refusals))
            elif self.settings.calibrate and not interrupted:
                self._calibrate(self.settings.calibrate)
            self._draw_rooflines()
            self._write_csv()

    def measure_again(self) -> Sequence[CaseResult]:
        """Run the round's cases once more, each device's in a fresh process there."""
        from pytest_kopt.session.remeasure import measure_again

        found: list[CaseResult] = []
        measured = [nodeid for nodeid in self.collector.order if nodeid in self.collector.results]
        for device, ids in self._lanes(measured).items():
            env = self._local_environment | self.placement.pin_to(device)
            found += measure_again(self._config, self.brief, env, ids).results.values()
        return found

    def check_also(self, ids: Sequence[str]) -> None:
        """Check and measure further cases, each in a fresh process where its incumbent was.

        Their reports are those of this session, and its orders include them from now on.
        """
        from pytest_kopt.session.child import Child, filter_known
        from pytest_kopt.session.replay import Replay

        self._lanes(list(self.collector.results))
        kept = tuple(nodeid for nodeid in self.brief.ignored if nodeid not in ids)
        self.brief = replace(self.brief, ignored=kept)
        assert self._session is not None
        self._session.testscollected += len(ids)
        replay = Replay(self._config, self.collector)
        for device, members in self._homes(ids).items():
            env = self._local_environment | self.placement.pin_to(device)
            start = partial(Child, self._config, self.brief, env, members)
            replay.run(start, partial(filter_known, members))

    def compare(self, ids: Sequence[str], versions: Versions) -> Comparison:
        """Return a comparison of two versions over these cases in fresh processes."""
        from pytest_kopt.decide.inference import FINAL_LOOK
        from pytest_kopt.session.comparison import Comparison
        from pytest_kopt.show.progress import Progress

        lanes = self._lanes(ids)
        env = self._local_environment
        processes = (self.settings.calibrate or FINAL_LOOK) * len(lanes)
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        progress = Progress(reporter, processes).measured
        return Comparison(
            self._config,
            self.brief,
            env,
            lanes,
            versions,
            self.placement,
            progress,
            self._spares,
        )

    def _lanes(self, ids: Sequence[str]) -> dict[Device, list[str]]:
        """Return the cases by the device that measured them; BadInput for another host's."""
        results = [self.collector.results[nodeid] for nodeid in ids]
        for result in results:
            device = result.evidence.get("device")
            if device and self.placement.find(device) is None:
                raise BadInput(
                    f"measured on {device} of another host, and what has to be measured now has "
                    "to be measured there",
                    where=f"case {result.nodeid}",
                    legal="workers on this host, or the whole run on that one",
                )
        return self.placement.group(results)

    def _homes(self, ids: Sequence[str]) -> dict[Device, list[str]]:
        """Return cases that were not measured yet by the device that measured their incumbent."""
        devices = {case.nodeid: case.device for case in self.brief.expected or ()}
        found: dict[Device, list[str]] = {}
        for nodeid in ids:
            home = self.placement.find(devices.get(nodeid)) or self.placement.best
            found.setdefault(home, []).append(nodeid)
        return found

    def _start_spares(self) -> None:
        """Have the first replicas wake on the GPUs while the cases are checked there."""
        from pytest_kopt.session import xdist
        from pytest_kopt.session.comparison import ahead, replica_environment

        config, kind = self._config, self.brief.device
        if kind != "cuda" or config.option.collectonly:
            return
        devices: Sequence[Device] = [self.placement.best]
        if xdist.is_distributed(config):
            devices = self.placement.devices[: xdist.local_workers(config)]
        for device in devices:
            env = replica_environment(self._local_environment, self.placement, device)
            directory = str(config.invocation_params.dir)
            self._spares.start(ahead(kind, len(devices)), env, directory, kind)

    def _take_place(self) -> None:
        """Find the devices of this host to measure on, and pin this process if it measures."""
        from pytest_kopt.session import xdist

        config = self._config
        multi = self.settings.suite == "multigpu"
        if multi or config.option.collectonly or not xdist.has_local_workers(config):
            return
        self.placement = place(self.brief.device, self.wait_minutes, self.say)
        if self.trial is None and not xdist.is_distributed(config):
            os.environ.update(self.placement.pin_to(self.placement.best))

    def profile(
        self, ids: Sequence[str], copy: tuple[Path, Path] | None = None
    ) -> list[CaseProfile]:
        """Return profiles of these cases, taken in fresh processes."""
        from pytest_kopt.session.profiled import Profiler

        return Profiler(self._config, self.brief, self.environment).profile(ids, copy)

    def _draw_rooflines(self) -> None:
        from pytest_kopt.session.rooflines import rooflines

        recorded = self._closing.verdict.rooflines if self._closing else []
        self._rooflines = recorded or rooflines(self.collector.in_order(), self.settings.workspace)

    def _second_runs(self) -> None:
        """Run cases that killed an xdist worker once more, to tell the case from bad luck."""
        from pytest_kopt.session.remeasure import measure_again

        for nodeid, how in self.collector.crashed.items():
            again = measure_again(self._config, self.brief, self.environment, [nodeid], lives=1)
            if nodeid in again.dead:
                self.collector.dead[nodeid] = f"{how}\n{again.dead[nodeid]}"
            else:
                self.collector.lost.append(f"{nodeid}: {how.splitlines()[0]}")
                self.collector.results |= again.results

    def _calibrate(self, count: int) -> None:
        from pytest_kopt.session.calibration import calibration
        from pytest_kopt.session.comparison import NotComparable
        from pytest_kopt.session.replica import Caught
        from pytest_kopt.session.trees import overlays

        results = [result for result in self.collector.in_order() if result.check == "PASS"]
        if not results:
            raise BadInput("no case passed", where="--kopt-calibrate", legal="cases that pass")
        try:
            with overlays(self._config.rootpath.resolve(), {}) as versions:
                comparison = self.compare([result.nodeid for result in results], versions)
                replicas = list(comparison.replicas(count))
        except (Caught, NotComparable) as error:
            raise BadInput(str(error), where="--kopt-calibrate") from None
        self.noise = calibration(results, replicas, comparison.how)

    def _write_csv(self) -> None:
        if self.settings.summary_csv is None:
            return
        from pytest_kopt.schema.table import format_csv, write_atomically

        table = self._closing.table if self._closing else self.collector.table()
        if table is not None:
            path = self.settings.summary_csv
            write_atomically(path, format_csv(table.header, table.rows))
            evidence = [asdict(result) for result in self.collector.in_order()]
            sidecar = path.with_name(f"{path.name}.evidence.json")
            write_atomically(sidecar, json.dumps(evidence, indent=1) + "\n")
            from pytest_kopt.clock import now
            from pytest_kopt.show.benchmark_json import benchmark_json

            benchmark = path.with_name(f"{path.name}.benchmark.json")
            write_atomically(benchmark, benchmark_json(self.collector.in_order(), now()))

    def _publish(self) -> None:
        from pytest_kopt.show.publish import publish

        assert self._closing is not None
        self._unwritten += publish(
            self._closing.verdict,
            self.settings.comment_path,
            os.environ,
            self._config.pluginmanager,
        )

    def _write_verdict(self) -> None:
        path: Path | None = self.settings.verdict_path
        if path is None or self._closing is None:
            return
        from pytest_kopt.schema.table import write_atomically

        write_atomically(path, self._closing.verdict.model_dump_json(indent=1) + "\n")


@contextmanager
def _told(consequence: str) -> Iterator[None]:
    """Turn what a user can mend into pytest's own ways of ending with a message and a code."""
    try:
        with storage_told():
            yield
    except BadInput as error:
        raise pytest.UsageError(str(error)) from None
    except NoIdleGpu as error:
        pytest.exit(str(error), returncode=int(ExitCode.NO_IDLE_GPU))
    except CannotFinish as error:
        pytest.exit(f"{error}; {consequence}", returncode=int(ExitCode.INCOMPLETE))


class Blocked:
    """Keeps every test from running when a command in front of the round failed."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        return True
