"""Finds the folders that ship with the package: inside a wheel, or next to a clone's source."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
#: The folder of the skill for agents: below the package, and below a project that has a copy.
SKILL = ".agents/skills/kopt"


def bundled(name: str, package: Path = PACKAGE) -> Path:
    """Return the folder `name` (`knowledge`, …); FileNotFoundError when the installation lacks it.

    A wheel carries it in `pytest_kopt/bundled/`; a source tree has it next to the package.
    """
    for folder in (package / "bundled" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"this installation of pytest-kopt has no folder {name!r}")
