"""Profiling cases in workers: by torch's profiler, and by the vendor's tool around one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.protocol import Profile, StopWorker
from pytest_kopt.cases.replies import Profiled
from pytest_kopt.cases.result import Collector
from pytest_kopt.libraries import session_path
from pytest_kopt.processes.case_processes import CaseProcesses
from pytest_kopt.processes.channel import read_replies, write_orders
from pytest_kopt.processes.child import Child, begin_of
from pytest_kopt.processes.launched import boot
from pytest_kopt.profiling import kernel_table, sanitizer
from pytest_kopt.profiling.kernel_table import CaseProfile, rows_of
from pytest_kopt.profiling.vendor_tools import VENDOR_TOOLS, VendorTool

_START_SECONDS = 120.0
#: Files in the folder of a worker that a tool starts.
_ORDERS, _REPLIES = "orders", "replies"
#: A vendor's profiler replays every launch; a sanitizer takes hundreds of times as long.
_VENDOR_STEPS, _SANITIZED_STEPS = 20, 1


@dataclass(frozen=True, slots=True)
class Profiler:
    """The profiler of a session's cases: it knows the session, and a worker's environment."""

    config: pytest.Config
    orders: WorkerOrders
    env: Mapping[str, str]

    def by_vendor(self, profiles: Sequence[CaseProfile]) -> list[CaseProfile]:
        """Return what the vendor's tool sees of profiled cases, nothing where there is none.

        A process a case, since its report does not tell cases apart.
        """
        on_gpu = VENDOR_TOOLS if self.orders.device != "cpu" else ()
        tools = [tool for tool in on_gpu if shutil.which(tool.name)]
        return [self._vendor(tool, profile) for tool in tools[:1] for profile in profiles]

    def by_torch(self, ids: Sequence[str]) -> list[CaseProfile]:
        """Return what torch's profiler saw of the cases in one fresh process.

        A case that could not be profiled has a note.
        """

        def start(_: int) -> Child:
            return Child(self.config, self.orders, self.env, ids)

        processes = CaseProcesses(self.config, start, ids, lives=1, order=Profile)
        why, profiles = partial(_why_none, processes.run()), processes.profiles
        return [
            profiles.get(nodeid) or _nothing(nodeid, kernel_table.TOOL, why(nodeid))
            for nodeid in ids
        ]

    def _vendor(self, tool: VendorTool, profile: CaseProfile) -> CaseProfile:
        """Profile a case by a tool that starts the worker itself."""
        nodeid = profile.nodeid
        with tempfile.TemporaryDirectory(prefix="kopt-profile-") as name:
            directory = Path(name)
            log = self._run_under(tool.command(directory), directory, nodeid, _VENDOR_STEPS)
            try:
                launches = tool.launches(tool.report(directory))
                steps = _steps(directory)
            except (ValueError, OSError, KeyError) as error:
                return _nothing(nodeid, tool.name, f"{error}\n{log}")
        if not launches or not steps:
            return _nothing(nodeid, tool.name, f"no kernel was seen\n{log}")
        return CaseProfile(nodeid, profile.label, tool.name, "gpu", steps[0], rows_of(launches))

    def sanitized(self, nodeid: str, tool: str) -> str:
        """Return what a tool of compute-sanitizer says against a case, "" for nothing."""
        with tempfile.TemporaryDirectory(prefix="kopt-sanitizer-") as name:
            directory = Path(name)
            profiler = replace(self, env={**self.env, **sanitizer.ENVIRONMENT})
            words = sanitizer.command(tool, directory)
            output = profiler._run_under(words, directory, nodeid, _SANITIZED_STEPS)
            try:
                reported = sanitizer.errors(sanitizer.log(directory))
                finished = bool(reported or _steps(directory))
            except (ValueError, OSError, KeyError) as error:
                output, finished = f"{error}\n{output}", False
        if not finished:
            return f"the case did not run to its end under {tool}: {output.strip()}"
        return "\n".join(map(str, reported))

    def _run_under(
        self, tool_words: Sequence[str], directory: Path, nodeid: str, steps: int
    ) -> str:
        """Run steps of a case in a worker that a tool starts: orders and replies are files.

        Returns the last of what was printed.
        """
        path = session_path()
        begin = begin_of(self.config, self.orders, [nodeid], str, path, is_watched=True)
        orders, replies = directory / _ORDERS, directory / _REPLIES
        write_orders(orders, begin, Profile(nodeid, marked_steps=steps), StopWorker())
        worker = boot("pytest_kopt.processes.served:main")
        try:
            process = subprocess.run(
                [*tool_words, *worker, *map(str, (orders, replies, directory))],
                cwd=self.config.invocation_params.dir,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                timeout=_START_SECONDS + self.orders.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "it did not end in time"
        except OSError as error:
            return str(error)
        return process.stdout[-1500:]


def _steps(directory: Path) -> list[int]:
    """Return how many steps ran, in a list of one; an empty one where the case did not end."""
    replies = read_replies(directory / _REPLIES)
    return [reply.profile.steps for reply in replies if isinstance(reply, Profiled)]


def _why_none(collector: Collector, nodeid: str) -> str:
    """Return the end of what a case that was not profiled, or its collection, failed with."""
    failures = (collector.failures.get(nodeid), collector.dead.get(nodeid))
    not_collected = (*collector.collect_errors.values(), collector.startup_death)
    return next(filter(None, (*failures, *not_collected)), "")[-1500:]


def _nothing(nodeid: str, tool: str, why: str) -> CaseProfile:
    return CaseProfile(nodeid, nodeid, tool, "gpu", 1, (), note=why.strip() or "nothing was seen")
