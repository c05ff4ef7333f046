"""Where the top-level data directories lie: beside the package in a clone, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path


def path(name: str) -> Path:
    """Return the directory `name`, such as "conftest_templates"."""
    package = Path(__file__).parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
