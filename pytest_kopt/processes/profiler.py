"""Profiling a round's cases in fresh processes, by torch's profiler and by the vendor's tool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from pytest_kopt import wire
from pytest_kopt.cases.order import ProfileOrder
from pytest_kopt.processes.child import moved_environment, mover
from pytest_kopt.processes.launched import boot
from pytest_kopt.processes.worker_orders import WorkerOrders
from pytest_kopt.profiling import ncu, rocprof
from pytest_kopt.profiling.kernel_table import CaseProfile, rows_of

_START_SECONDS = 120.0
#: The vendors' tools, each with a command line, a report and how launches are read out of it.
_TOOLS = (ncu, rocprof)


@dataclass(frozen=True, slots=True)
class Profiler:
    """What a process of ours needs to run cases: the run it belongs to and its orders."""

    config: pytest.Config
    orders: WorkerOrders
    env: Mapping[str, str]

    def by_vendor(self, seen: Sequence[CaseProfile]) -> list[CaseProfile]:
        """Return what the vendor's tool sees of profiled cases, nothing where there is none.

        A process a case, since its report does not tell cases apart.
        """
        tools = [] if self.orders.device == "cpu" else [t for t in _TOOLS if shutil.which(t.TOOL)]
        return [self._vendor(tool, item) for tool in tools[:1] for item in seen]

    def by_torch(
        self, ids: Sequence[str], copy: tuple[Path, Path] | None = None
    ) -> list[CaseProfile]:
        """Return what torch's profiler saw of the cases in one fresh process.

        With `copy` (the project's root and a copy), of that. What could not be done is a note.
        """
        with tempfile.TemporaryDirectory(prefix="kopt-profile-") as name:
            log = self._run(Path(name), ids, copy, external=False)
            found = {item.nodeid: item for item in _answers(Path(name))}
        return [found.get(nodeid) or _nothing(nodeid, "torch.profiler", log) for nodeid in ids]

    def _vendor(self, tool: ModuleType, seen: CaseProfile) -> CaseProfile:
        nodeid = seen.nodeid
        with tempfile.TemporaryDirectory(prefix="kopt-profile-") as name:
            directory = Path(name)
            front = tool.command(directory)
            log = self._run(directory, [nodeid], None, external=True, front=front)
            try:
                launches = tool.launches(tool.report(directory))
            except (ValueError, OSError, KeyError) as error:
                return _nothing(nodeid, tool.TOOL, f"{error}\n{log}")
            steps = [item.steps for item in _answers(directory)]
        if not launches or not steps:
            return _nothing(nodeid, tool.TOOL, f"no kernel was seen\n{log}")
        return CaseProfile(nodeid, seen.label, tool.TOOL, "gpu", steps[0], rows_of(launches))

    def _run(
        self,
        directory: Path,
        ids: Sequence[str],
        copy: tuple[Path, Path] | None,
        *,
        external: bool,
        front: Sequence[str] = (),
    ) -> str:
        """Run the cases in a fresh process and return the end of what it printed."""
        config = self.config
        moved = mover(config, *copy) if copy else str
        orders = replace(self.orders, profile=ProfileOrder(str(directory), external))
        script = directory / "script.json"
        document = {
            "sys_path": [moved(entry) for entry in sys.path],
            "argv": sys.argv,
            "pytest_args": [moved(str(word)) for word in config.invocation_params.args],
            "orders": orders.to_json(),
            "ids": list(ids),
        }
        script.write_text(json.dumps(document))
        try:
            done = subprocess.run(
                [*front, *boot("pytest_kopt.session.scripted:main"), str(script)],
                cwd=moved(str(config.invocation_params.dir)),
                env=moved_environment({**os.environ, **self.env}, moved),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_START_SECONDS + self.orders.timeout * len(ids),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "it did not end in time"
        except OSError as error:
            return str(error)
        return done.stdout[-1500:]


def _answers(directory: Path) -> Iterator[CaseProfile]:
    for path in directory.glob("*.json"):
        if path.name != "script.json":
            yield wire.read(CaseProfile, json.loads(path.read_text()))


def _nothing(nodeid: str, tool: str, why: str) -> CaseProfile:
    return CaseProfile(nodeid, nodeid, tool, "gpu", 1, (), note=why.strip() or "nothing was seen")
