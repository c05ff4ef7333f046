"""What takes long to make is made once, whatever the number of test processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock, Timeout


def made_once(
    factory: pytest.TempPathFactory, wanted: str, recipes: Mapping[str, Callable[[Path], object]]
) -> Path:
    """Return a directory that is made once, however many processes test.

    While another process makes the wanted one, this one makes itself useful with the other recipes.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    for name in sorted(recipes, key=lambda name: name != wanted):
        with suppress(Timeout), FileLock(base / f"{name}.lock", timeout=0):
            _make(base / name, recipes[name])
    with FileLock(base / f"{wanted}.lock"):
        _make(base / wanted, recipes[wanted])
    return base / wanted


def _make(directory: Path, recipe: Callable[[Path], object]) -> None:
    if not directory.exists():
        building = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f"{directory.name}-"))
        recipe(building)
        building.rename(directory)
