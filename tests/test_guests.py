"""Which plugins of installed packages a process that runs kernel code keeps."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.processes import guests
from pytest_kopt.processes.guests import RefusedToGuests

PURELIB = sysconfig.get_paths()["purelib"]
PLUGINS = {
    "runs again": ("def pytest_runtest_protocol(item, nextitem): ...", False),
    "forks": (
        "def pytest_runtest_protocol(item): ...\ndef pytest_load_initial_conftests(args): ...",
        False,
    ),
    "writes": ("def pytest_configure(config): ...\ndef pytest_sessionfinish(session): ...", False),
    "selects": ("def pytest_collection_modifyitems(items): ...", True),
    "gives a fixture": ("import pytest\n@pytest.fixture\ndef mocker(): ...", True),
    "calls": ("def pytest_pyfunc_call(pyfuncitem): ...", True),
    "sets variables": ("def pytest_load_initial_conftests(args): ...", True),
}


@pytest.mark.parametrize("kind", PLUGINS)
@pytest.mark.parametrize("folder", [PURELIB, "other/lib/python3/site-packages", "target", ""])
def test_an_installed_plugin_stays_for_collecting_and_calling(
    kind: str, folder: str, tmp_path: Path
) -> None:
    """One of the project's own stays whatever it does."""
    source, stays = PLUGINS[kind]
    # As `pip install --target` leaves it.
    record = tmp_path / "target" / "reporting-1.0.dist-info" / "METADATA"
    record.parent.mkdir(parents=True)
    record.touch()
    name = kind.replace(" ", "_")
    plugin = ModuleType(name)
    plugin.__file__ = str(tmp_path / folder / f"{name}.py")
    exec(source, vars(plugin))
    manager = pytest.PytestPluginManager()
    manager.register(guests)
    manager.register(plugin)
    assert manager.is_registered(plugin) is (stays or not folder)


def test_an_object_that_an_installed_plugin_registers_is_held_to_the_same() -> None:
    manager = pytest.PytestPluginManager()
    manager.register(guests)
    module = ModuleType("reporting")
    module.__file__ = f"{PURELIB}/reporting.py"
    sources = {"reports": "pytest_sessionfinish", "selects": "pytest_collection_modifyitems"}
    for kind, hook in sources.items():
        exec(f"class {kind}:\n    def {hook}(self, session): ...", vars(module))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "reporting", module)
        objects = {kind: vars(module)[kind]() for kind in sources}
        for plugin in objects.values():
            manager.register(plugin)
    assert [kind for kind in sources if manager.is_registered(objects[kind])] == ["selects"]


def test_what_is_refused_to_an_installed_package_is_said_with_its_name(tmp_path: Path) -> None:
    """Also by a library that has exceptions of its own."""
    source = (
        "import sqlite3\nraise sqlite3.OperationalError('attempt to write a readonly database')"
    )
    said: list[str] = []
    with pytest.raises(Exception, match="readonly") as raised:
        exec(compile(source, str(tmp_path / "site-packages/records/store.py"), "exec"), {})
    error = raised.value.with_traceback(raised.tb.tb_next)
    RefusedToGuests(said.append, tmp_path).pytest_internalerror(
        pytest.ExceptionInfo.from_exception(error)
    )
    assert len(said) == 1
    assert said[0].startswith("plugin records: kopt refused it"), said
    assert said[0].endswith("or -p no:records")


def refused_in(file: Path) -> PermissionError:
    """Return what the confinement has a file raise that is imported."""
    with pytest.raises(PermissionError) as raised:
        exec(compile("raise PermissionError(13, 'Permission denied')", file, "exec"), {})
    assert raised.tb.tb_next
    return raised.value.with_traceback(raised.tb.tb_next)


def test_what_is_refused_to_a_conftest_file_that_is_imported_is_said_with_its_place(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    parsing = RefusedToGuests(said.append, tmp_path).pytest_cmdline_parse()
    next(parsing)
    with pytest.raises(PermissionError):
        parsing.throw(refused_in(tmp_path / "conftest.py"))
    assert len(said) == 1
    assert said[0].startswith(f"{tmp_path}/conftest.py:1: kopt refused it"), said


@pytest.mark.parametrize(("name", "is_said"), [("test_it.py", True), ("kernel.py", False)])
def test_what_is_refused_to_a_test_file_that_is_imported_is_said_and_no_kernels(
    name: str, is_said: bool, tmp_path: Path
) -> None:
    said: list[str] = []
    collector: Any = SimpleNamespace(path=tmp_path / "test_it.py")
    collecting = RefusedToGuests(said.append, tmp_path).pytest_make_collect_report(collector)
    next(collecting)
    excinfo = SimpleNamespace(value=refused_in(tmp_path / name))
    report: Any = SimpleNamespace(call=SimpleNamespace(excinfo=excinfo))
    with pytest.raises(StopIteration):
        collecting.send(report)
    assert bool(said) is is_said, said


def test_a_plugin_that_is_installed_in_two_folders_of_the_path_is_set_aside_once() -> None:
    manager = pytest.PytestPluginManager()
    manager.register(guests)
    module = ModuleType("options")
    module.__file__ = f"{PURELIB}/options.py"
    exec("def pytest_addoption(parser): parser.addoption('--twice')", vars(module))
    parser = pytest.Parser(_ispytest=True)
    manager.hook.pytest_addoption.call_historic(kwargs={"parser": parser, "pluginmanager": manager})
    for _ in range(2):
        if not manager.is_blocked("options"):
            manager.register(module, "options")
    assert not manager.is_registered(module)
    assert [option.names() for option in parser._anonymous.options] == [["--twice"]]
