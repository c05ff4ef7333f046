"""What every test of the suite may use."""

from __future__ import annotations

import gc
import os
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING

# Before torch is imported: its threads would only wait for those of the other test processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from _pytest.assertion import rewrite
from hypothesis import settings

from pytest_kopt.processes import bytecode

if TYPE_CHECKING:
    from tests.scripted import Clock

pytest_plugins = ["pytester"]

# Until all tests are collected, nothing is garbage.
gc.disable()

# What an example takes says nothing on a busy machine.
settings.register_profile("suite", deadline=None, max_examples=50)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Have all workers of xdist's share the processes that fork sessions."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        from tests import nursery

        nursery.address()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt what is imported by now from collections, which checks of kernels ask for often."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _compiled_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo for each test what a session within an earlier one has this process compile by."""
    monkeypatch.setattr(SourceFileLoader, "path_stats", bytecode._path_stats)
    monkeypatch.setattr(rewrite, "_read_pyc", bytecode._read_pyc)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that only kernels move."""
    from tests.scripted import Clock

    return Clock(monkeypatch)
