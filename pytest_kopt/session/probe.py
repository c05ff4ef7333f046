"""A collection in a fresh process that says which cases there are and where modules come from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_kopt.options.declare import LOADED_BEFORE
from pytest_kopt.session.usage import is_marked


class ProbePlugin:
    """Notes the cases of a collection and what could not be collected."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
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
        self.cases = [test.nodeid for test in session.items if is_marked(test)]


def main() -> None:
    """Write the collection to the file given first; pytest's arguments follow."""
    sys.path.insert(0, "")
    answer, *arguments = sys.argv[1:]
    plugin = ProbePlugin(Path(answer).parent)
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", *arguments, *LOADED_BEFORE]
    if pytest.main(words, plugins=[plugin]) == pytest.ExitCode.USAGE_ERROR:
        # Pytest has printed why, the caller shows it.
        return
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    document = {
        "cases": plugin.cases,
        "modules": sorted(str(Path(file).resolve()) for file in files if file),
        "path": list(dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path)),
        "failure": "\n".join(plugin.failures)[-1500:],
    }
    Path(answer).write_text(json.dumps(document), encoding="utf-8")
