"""The plugin of the process that decides: collects, has the round judged, shows, sets the exit."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.result import Collector
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.errors import REPORT, BadInput, CannotFinish, NoVerdict, storage_told
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.libraries import own_fault
from pytest_kopt.options.settings import Settings
from pytest_kopt.processes.child import why_open
from pytest_kopt.session.arguments import NARROWED
from pytest_kopt.session.interruption import as_ctrl_c, held_off
from pytest_kopt.session.refusal import refused
from pytest_kopt.show.progress import Progress
from pytest_kopt.trials.measurements import Measurements

if TYPE_CHECKING:
    from pytest_kopt.decide.verdict import Verdict
    from pytest_kopt.honesty.finding import Finding
    from pytest_kopt.roofline import Roofline
    from pytest_kopt.show.standing import Closing
    from pytest_kopt.trials.campaign_trial import CampaignTrial
    from pytest_kopt.trials.pull_request.against_base import PullRequestGate

    Trial: TypeAlias = CampaignTrial | PullRequestGate


class Controller:
    """Registered in the main process; without a trial it only collects and shows.

    It has the trial begin when the session starts, check what was collected, and close when all
    cases ran.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        orders: WorkerOrders,
        trial: Trial | None,
    ) -> None:
        self.settings = settings
        self.trial = trial
        self.collector = Collector()
        environment = trial.environment if trial else {}
        self.progress = Progress(
            config.pluginmanager.get_plugin("terminalreporter") if settings.shows else None,
            trial.running_file if trial else None,
        )
        self.measurements = Measurements(
            config, settings, orders, self.collector, environment, self.progress
        )
        self._config = config
        self._closing: Closing | None = None
        #: What failures said, with the first line of the one that said it first.
        self._told: dict[str, str] = {}
        #: Why the session ends before it is closed, which pytest shows below all else.
        self._refusal = ""
        self.noise: dict[str, Any] | None = None
        self._rooflines: Sequence[Roofline] = ()
        self._signals = ExitStack()
        self._published: list[str] = []
        #: What cases that pass show near their declared inputs, of a check alone.
        self._near: list[Finding] = []

    @property
    def orders(self) -> WorkerOrders:
        return self.measurements.orders

    @property
    def has_verdict(self) -> bool:
        return self._closing is not None

    @property
    def is_settled(self) -> bool:
        return self.trial is not None and self.trial.is_settled

    def say(self, line: str) -> None:
        from pytest_kopt.show.lines import write

        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            write(reporter, [line])
            reporter.flush()

    def collected(self, ids: list[str]) -> list[str]:
        self.collector.collected(ids)
        if self.trial:
            with told("nothing was measured", self):
                self.trial.check_collection(
                    ids, self.collector, self._config.stash.get(NARROWED, False)
                )
        if self.settings.shows:
            self.progress.begin("checking", len(ids))
        return ids

    def pytest_report_header(self) -> list[str]:
        if self.settings.check_only:
            return [f"kopt: {self.orders.device}, check only: nothing is timed"]
        if tools := self.settings.sanitize:
            return [f"kopt: {self.orders.device}, under {', '.join(tools)}: nothing is timed"]
        if not self.settings.active:
            return []
        if self.trial is None:
            return [f"kopt: {self.orders.device}, rows go to {self.settings.summary_csv}"]
        from pytest_kopt.show.lines import columns_of, rows

        lines = [f"kopt: {self.trial.title}, {self.orders.device}", *self.trial.preface]
        lines += [f"kopt: {why}"] if (why := why_open(self._config)) else []
        columns = columns_of(self._config.pluginmanager.get_plugin("terminalreporter"))
        return [row for line in lines for row in rows(line, columns)]

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say that an ordinary run times nothing: which tests use kopt is known only now."""
        if self.settings.shows or self.settings.sanitize:
            return []
        return [f"kopt: {self.orders.device}, check only; --summary-csv=PATH times the cases"]

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self.trial:
            self._signals.enter_context(as_ctrl_c())
            self.progress.begin("starting")
        with told("nothing was measured or changed", self):
            if not self.is_settled:
                # Where nothing is timed for the record no idle GPU is waited for.
                timed = self.settings.times and self.settings.suite == "standard"
                wait_minutes = self.settings.gpu_wait if timed else None
                self.measurements.take_place(
                    wait_minutes, self.say, serves_itself=not self.settings.active
                )
            if self.trial:
                self.collector.startup_death = self.trial.begin()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected([test.nodeid for test in session.items])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if refused(report):
            raise pytest.UsageError(refused(report))
        if report.failed:
            self.collector.add_collect_error(report)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.progress.started(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        self.progress.advance()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Leave the line to our own progress on a terminal: no dot for what passed."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if not (self.trial and reporter and reporter.isatty and reporter.verbosity == 0):
            return None
        reporter.showfspath = False
        return ("passed", "", "") if report.when == "call" and report.passed else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take over a case's result; every later reader of the report finds plain properties."""
        self.collector.add_report(report)
        if isinstance(report.longrepr, str):
            from pytest_kopt.show.words import told_once

            report.longrepr = told_once(report.longrepr, self._told)
        if report.user_properties:
            from pytest_kopt.show.exports.junit import unpack

            unpack(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        ours = {ExitCode.OK, ExitCode.FAILED, int(pytest.ExitCode.NO_TESTS_COLLECTED)}
        if self._closing and exitstatus in ours:
            session.exitstatus = int(self._closing.verdict.exit_code)
        self.progress.end(int(session.exitstatus))
        self._tell_refusals_once()

    def _tell_refusals_once(self) -> None:
        """Have cases whose refusal pytest shows at the end say no more than that."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        stats = reporter.stats if reporter else {}
        refusals = [
            text
            for text in self.collector.refusals()
            if (text.partition(": ")[2] or text) in self._refusal
        ]
        for report in (*stats.get("failed", ()), *stats.get("error", ())) if refusals else ():
            if any(text in report.longreprtext for text in refusals):
                report.longrepr = "refused: the ERROR at the end says why"

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        self._show_results(terminalreporter)
        if self.trial and not self._closing and exitstatus == pytest.ExitCode.INTERRUPTED:
            from pytest_kopt.show.lines import write

            line = (
                "interrupted before a verdict: nothing is decided, the kernel is as it was; the "
                "same command measures it again"
            )
            write(terminalreporter, [line])

    def _show_results(self, terminalreporter: pytest.TerminalReporter) -> None:
        from pytest_kopt.show import terminal
        from pytest_kopt.show.lines import write

        results = self.collector.in_order()
        flags = [] if self._closing else [*self.collector.never_called(), *self._near]
        if not results and self._closing is None and not flags:
            return
        lines = list(
            terminal.result_lines(
                results, self._closing, self._rooflines, terminalreporter.verbosity
            )
        )
        lines += [terminal.flag_line(str(flag)) for flag in flags]
        if self.settings.check_only:
            lines += terminal.blind_spot_lines(results)
        if lines or self.noise:
            terminalreporter.section("kopt")
        write(terminalreporter, lines)
        if self._closing:
            terminal.close_with(terminalreporter, self._closing.verdict)
        if self.trial is None:
            lost = self.collector.lost_after_all()
            write(
                terminalreporter, (f"run again, as its process was lost: {text}" for text in lost)
            )
        if self._closing:
            for line in self._published:
                terminalreporter.write_line(line)
        if self.noise:
            write(terminalreporter, terminal.noise_lines(self.noise))

    def pytest_unconfigure(self) -> None:
        self._signals.close()
        self.progress.end(None)
        self.measurements.end()
        if self.trial:
            self.trial.release()

    def ended_by(self, error: NoVerdict) -> None:
        """Put down that nothing is decided, and why."""
        self._refusal = str(error)
        self.progress.end(int(error.exit_code), error)
        if self.trial and isinstance(error, AllGpusBusy):
            self.trial.no_idle_gpu(error)

    def close(self, interrupted: str = "") -> None:
        """Have the round judged and write what was asked for; UsageError for unusable input.

        `Activation.pytest_runtestloop` calls it once all cases ran.
        """
        from pytest_kopt.trials import judging

        undisturbed = held_off() if interrupted else nullcontext()
        lasting = "nothing is lost: the next session finishes what this one began"
        if self.trial:
            self.progress.begin("deciding")
        with undisturbed, told(lasting, self):
            if self.trial:
                self._closing = self.trial.close(self.collector, self.measurements, interrupted)
                self._publish(self._closing.verdict)
            else:
                judging.refuse(self.collector.refusals())
            if self.settings.calibrate and not interrupted:
                self.noise = self._calibrate(self.settings.calibrate)
            try:
                if self.settings.check_only and not interrupted:
                    self._try_nearby()
            finally:
                self._write_rows()
        self.progress.stop()

    def _write_rows(self) -> None:
        from pytest_kopt.cases.case_rooflines import rooflines
        from pytest_kopt.show.exports.output_files import rows_by_test, write_rows

        settings, results = self.settings, self.collector.in_order()
        recorded = self._closing.verdict.rooflines if self._closing else []
        self._rooflines = recorded or rooflines(results, settings.workspace)
        if (path := settings.summary_csv) and results:
            write_rows(rows_by_test(path, results) if settings.csv_is_folder else {path: results})

    def _try_nearby(self) -> None:
        """Have cases that pass tried near their inputs; what shows there is a note of the case."""
        self._near = self.measurements.try_nearby(self.collector.passed())
        results = self.collector.results
        for finding in self._near:
            case = results[finding.where]
            results[finding.where] = replace(case, findings=(*case.findings, finding))

    def _calibrate(self, processes: int) -> dict[str, Any]:
        from pytest_kopt.trials.calibration import calibrate

        root, results = self._config.rootpath.resolve(), self.collector.in_order()
        noise = calibrate(results, root, processes, self.measurements)
        self._write_verdict(noise)
        return noise

    def _publish(self, verdict: Verdict) -> None:
        from pytest_kopt.show.exports.publish import publish

        self._write_verdict(json.loads(verdict.model_dump_json()))
        self._published += publish(self._config, verdict, self.collector.in_order())

    def _write_verdict(self, document: Mapping[str, Any]) -> None:
        from pytest_kopt.schema.table import write_atomically

        if path := self.settings.verdict_path:
            write_atomically(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


@contextmanager
def told(consequence: str, controller: Controller | None = None) -> Iterator[None]:
    """Turn an error that a user can correct into pytest's ways of ending."""
    try:
        with storage_told():
            yield
    except NoVerdict as error:
        if controller:
            controller.ended_by(error)
        if isinstance(error, BadInput):
            raise pytest.UsageError(str(error)) from None
        rest = f"; {consequence}" if isinstance(error, CannotFinish) else ""
        pytest.exit(f"{error}{rest}", returncode=int(error.exit_code))
    except (pytest.UsageError, pytest.exit.Exception, pytest.Session.Failed):
        raise
    except Exception as error:
        if not (fault := own_fault(error)):
            raise
        traceback.print_exc()
        raise pytest.UsageError(f"{fault}; {consequence}. Fix: {REPORT}") from None
