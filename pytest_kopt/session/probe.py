"""A collection in a fresh process that says which cases there are and where modules come from."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import LOADED_BEFORE
from pytest_kopt.profiling import ncu, rocprof
from pytest_kopt.session.refusal import have_metric
from pytest_kopt.session.usage import is_marked


class ProbePlugin:
    """Notes the cases of a collection and what could not be collected."""

    def __init__(self, scratch: Path, metric: str) -> None:
        self._scratch = scratch
        self._metric = metric
        self.unknown_metric = ""
        self.cases: list[str] = []
        self.failures: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Have pytest-benchmark make its folder elsewhere: nothing is left in the project."""
        if hasattr(config.option, "benchmark_storage"):
            config.option.benchmark_storage = f"file://{self._scratch}"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failures.append(f"{report.nodeid}: {report.longreprtext}")

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note what stops pytest itself, a plugin that cannot be configured for one."""
        self.failures.append(f"pytest: {excinfo.exconly()}")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        cases = [test for test in session.items if is_marked(test)]
        self.cases = [test.nodeid for test in cases]
        try:
            if self._metric:
                have_metric(cases, self._metric)
        except BadInput as error:
            self.unknown_metric = f"{error.what} (legal: {error.legal})"


def gpu_profilers() -> list[str]:
    """Return what can tell the time of a GPU's kernels in this process; imports torch."""
    from torch.profiler import ProfilerActivity, supported_activities

    tools = [name for name in (ncu.TOOL, rocprof.TOOL) if shutil.which(name)]
    return [*tools, *(["torch"] if ProfilerActivity.CUDA in supported_activities() else [])]


def main() -> None:
    """Write what was found to the file given first.

    Then come whether to ask for profilers of GPUs (True or False), the metric that decides ("" for
    the default) and pytest's arguments.
    """
    sys.path.insert(0, "")
    answer, asks, metric, *arguments = sys.argv[1:]
    plugin = ProbePlugin(Path(answer).parent, metric)
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", *arguments, *LOADED_BEFORE]
    if pytest.main(words, plugins=[plugin]) == pytest.ExitCode.USAGE_ERROR:
        # Pytest has printed why, the caller shows it.
        return
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    document = {
        "cases": plugin.cases,
        "modules": sorted(str(Path(file).resolve()) for file in files if file),
        "path": list(dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path)),
        "profilers": gpu_profilers() if asks == "True" else [],
        "unknown_metric": plugin.unknown_metric,
        "failure": "\n".join(plugin.failures)[-1500:],
    }
    Path(answer).write_text(json.dumps(document))
