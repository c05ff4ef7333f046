"""Which plugins of installed packages a process that runs kernel code keeps."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from pytest_kopt.processes.guests import SetAside

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
@pytest.mark.parametrize("is_installed", [True, False])
def test_an_installed_plugin_stays_for_collecting_and_calling(
    kind: str, is_installed: bool, tmp_path: Path
) -> None:
    """One of the project's own stays whatever it does."""
    source, stays = PLUGINS[kind]
    name = kind.replace(" ", "_")
    plugin = ModuleType(name)
    folder = Path(sysconfig.get_paths()["purelib"]) if is_installed else tmp_path
    plugin.__file__ = str(folder / f"{name}.py")
    exec(source, vars(plugin))
    manager = pytest.PytestPluginManager()
    manager.register(SetAside())
    manager.register(plugin)
    assert manager.is_registered(plugin) is (stays or not is_installed)
