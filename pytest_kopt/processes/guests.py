"""Plugins and conftest files of others, in a process that runs kernel code.

It does pytest's collecting and calling: plugins that report, run a test in their own way or keep a
clock are set aside. The worker reports the first call of such a plugin, or of a conftest file, that
the confinement refuses: it is no fault of a kernel.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.fixtures import FixtureFunctionDefinition

from pytest_kopt.libraries import is_library

#: What a plugin of an installed package stays for, beside fixtures: it finds tests, chooses their
#: arguments or calls them.
_COLLECTS_AND_CALLS = (
    *("pytest_load_initial_conftests", "pytest_collect_file", "pytest_generate_tests"),
    *("pytest_pycollect_makemodule", "pytest_pycollect_makeitem", "pytest_make_parametrize_id"),
    *("pytest_collection_modifyitems", "pytest_fixture_setup", "pytest_pyfunc_call"),
    "pytest_runtestloop",
)
#: What it does not stay with: it runs a test again, in a fork, or against a clock.
_OWN_WAY = "pytest_runtest_protocol"
#: The folders of installed packages, in whatever environment.
_PACKAGES = {"site-packages", "dist-packages"}
_PYTEST = ("_pytest", "pytest", "pluggy", "pytest_kopt")
_REFUSED = "kopt refused it, as to every process that runs kernel code:"
_RULE = (
    "This process writes to temporary files and caches and opens no network socket, also none "
    "of this machine. Fix: write below tmp_path, or set kopt_isolation = off"
)
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_CASES = f"{_PACKAGE}cases{os.sep}"
#: Libraries in C and C++ have exceptions of their own for it.
_TOLD = ("Permission denied", "EACCES", "readonly database", "unable to open database file")
#: Plugins that stay run as if these had not been given.
NOT_GIVEN = {
    "numprocesses": 0,
    "dist": "no",
    "tx": [],
    "xmlpath": None,
    "log_file": os.devnull,
    "debug": None,
    "pastebin": None,
    "usepdb": False,
    "trace": False,
    "basetemp": None,
    "maxfail": 0,
    "continue_on_collection_errors": True,
}


def pytest_plugin_registered(
    plugin: object, plugin_name: str, manager: pytest.PytestPluginManager
) -> None:
    """Keep plugins of installed packages that neither collect nor call from being configured."""
    if _stays(plugin):
        return
    manager.unregister(plugin)
    if isinstance(plugin, ModuleType):
        # A package that is installed in two folders of the path is found twice: its options would
        # be added again.
        manager.set_blocked(plugin_name)


def _stays(plugin: object) -> bool:
    """Say whether a plugin, or an object that one registers, collects or calls."""
    kind = plugin if isinstance(plugin, ModuleType | type) else type(plugin)
    name = kind.__name__ if isinstance(kind, ModuleType) else kind.__module__
    file = getattr(sys.modules.get(name, plugin), "__file__", None)
    if name.partition(".")[0] in _PYTEST or not file or not _is_installed(file):
        return True
    if hasattr(plugin, _OWN_WAY):
        return False
    fixtures = (isinstance(value, FixtureFunctionDefinition) for value in vars(kind).values())
    return any(fixtures) or any(hasattr(plugin, hook) for hook in _COLLECTS_AND_CALLS)


class RefusedToGuests:
    """Says what the confinement of this process refused to plugins, conftest files and tests."""

    def __init__(self, say: Callable[[str], None], scratch: Path) -> None:
        self._say, self._scratch = say, scratch
        self._config: pytest.Config | None = None

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_cmdline_parse(self) -> Generator[None, pytest.Config, pytest.Config]:
        """Give pytest's cache, as it is, a folder that may be written to.

        Plugins write to it as soon as they are configured.
        """
        try:
            self._config = config = yield
        except Exception as error:
            self._look(error, None)
            raise
        if config.pluginmanager.has_plugin("cacheprovider"):
            cache = self._scratch / "cache"
            with suppress(OSError):
                shutil.copytree(pytest.Cache.cache_dir_from_config(config, _ispytest=True), cache)
            config._inicache["cache_dir"] = str(cache)
        return config

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._look(excinfo.value, None)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        call = vars(report).get("call")
        if call is not None and call.excinfo is not None:
            self._look(call.excinfo.value, (str(collector.path),))
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        """Look at what was raised outside of `kopt()`, which has its own words for a kernel."""
        if call.excinfo is not None:
            self._look(call.excinfo.value, None)

    def _look(self, error: BaseException, ours: tuple[str, ...] | None) -> None:
        """Tell of a refusal; by project code where it is a conftest file or in `ours` (None: any).

        A module that a test file imports may be the kernel.
        """
        for cause in reversed([*_chain(error)]):
            is_refusal = any(word in str(cause) for word in _TOLD)
            if not (is_refusal or isinstance(cause, PermissionError)):
                continue
            stack = traceback.extract_tb(cause.__traceback__)
            if any(frame.filename.startswith(_CASES) for frame in stack):
                # A row says it.
                return
            own = [frame for frame in stack if not frame.filename.startswith(("<", _PACKAGE))]
            of_project = [frame for frame in own if not _is_installed(frame.filename)]
            what = f"{type(cause).__name__}: {cause}".splitlines()[0]
            if not of_project:
                name = self._plugin([frame.filename for frame in stack])
                self._say(f"plugin {name}: {_REFUSED} {what}. {_RULE}, or -p no:{name}")
            elif ours is None or of_project[-1].filename.endswith((*ours, "conftest.py")):
                place = f"{of_project[-1].filename}:{of_project[-1].lineno}"
                self._say(f"{place}: {_REFUSED} {what}. {_RULE}")
            return

    def _plugin(self, files: Sequence[str]) -> str:
        """Return the plugin, or else the installed package, that is innermost in a stack."""
        packages = [name for name in map(_package, files) if name and name not in _PYTEST]
        plugins = self._config.pluginmanager.list_name_plugin() if self._config else []
        names = {
            _package(getattr(plugin, "__file__", None) or ""): name for name, plugin in plugins
        }
        return next((names[name] for name in reversed(packages) if name in names), "") or (
            packages[-1] if packages else "pytest"
        )


def _is_installed(file: str) -> bool:
    """Say whether a file is of an installed package, also one of another environment."""
    if is_library(file) or not _PACKAGES.isdisjoint(Path(file).parts):
        return True
    return os.path.isabs(file) and any(map(_holds_packages, Path(file).parents))


@functools.cache
def _holds_packages(folder: Path) -> bool:
    """Say whether packages were installed into a folder, as `pip install --target` does it."""
    return any(folder.glob("*.dist-info/METADATA"))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what it came from, innermost last."""
    yielded: set[int] = set()
    while error is not None and id(error) not in yielded:
        yielded.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__


def _package(file: str) -> str:
    """Return the installed package that a file is of, "" where it is of none."""
    inside = (inner for outer, inner in pairwise(Path(file).parts) if outer in _PACKAGES)
    return next(inside, "").removesuffix(".py")
