"""What is installed beside us: few packages, none with a known hole at its lowest version.

`make audit` asks the advisory database about today's versions; these rules need no network.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = (Path(__file__).parents[1] / "pyproject.toml").read_text()
#: The first version without an advisory that concerns how we use a package.
FLOORS = {
    "PyYAML": ("5.4", "CVE-2020-14343"),
    "GitPython": ("3.1.41", "CVE-2024-22190"),
    "pydantic": ("2.4.0", "CVE-2024-3772"),
    "filelock": ("3.20.3", "CVE-2026-22701"),
    "Jinja2": ("3.1.6", "CVE-2025-27516"),
    "torch": ("2.6.0", "CVE-2025-32434"),
}
RUNTIME = {
    *("pytest", "pydantic", "PyYAML", "GitPython", "filelock", "scipy", "Jinja2"),
}


def declared() -> dict[str, Requirement]:
    """Every requirement of pyproject.toml, extras included."""
    listed = re.findall(r'"([A-Za-z][\w.-]*>=[^"]+)"', PROJECT)
    return {found.name: found for found in map(Requirement, listed)}


def test_what_a_user_has_to_install_is_this_and_no_more() -> None:
    block = re.search(r"^dependencies = \[(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert set(re.findall(r'"([\w-]+)>=', block[1])) == RUNTIME


def test_all_is_every_extra_that_is_the_same_on_any_machine() -> None:
    """As the README says, whose line for a project installs that."""
    extras = ["xdist", "benchmark", "analysis", "report", "mcp", "record"]
    for name in extras:
        assert re.search(rf'^{name} = \["', PROJECT, re.MULTILINE), name
    assert f'\nall = ["pytest-kopt[{",".join(extras)}]"]' in PROJECT
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert "\npip install '.[all]' " in readme
    listed = readme.partition("The extras one by one:")[2].partition("`all`")[0]
    assert re.findall(r"`(\w+)`", listed) == extras


@pytest.mark.parametrize("name", FLOORS)
def test_no_version_with_a_known_hole_is_allowed(name: str) -> None:
    first_good, advisory = FLOORS[name]
    (bound,) = declared()[name].specifier
    assert bound.operator == ">="
    newer = Requirement(f"{name}>={first_good}").specifier
    assert newer.contains(bound.version), f"{bound} allows a version with {advisory}"


def needed(name: str, found: set[str]) -> set[str]:
    """The installed packages that a package needs, itself included."""
    if name.lower() not in found:
        found.add(name.lower())
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, found)
    return found


def test_every_licence_lets_others_use_it() -> None:
    names: set[str] = set()
    for name in RUNTIME:
        needed(name, names)
    for name in names:
        about = importlib.metadata.metadata(name)
        classifiers = [c for c in about.get_all("Classifier") or [] if c.startswith("License")]
        # The field License may hold a whole text; its first line names it.
        first = [text.strip().splitlines()[0] for text in about.get_all("License") or [] if text]
        named = [*(about.get_all("License-Expression") or []), *classifiers, *first]
        licence = "; ".join(named)
        assert licence, f"{name} says nothing of its licence"
        assert "GPL" not in licence, f"{name}: {licence}"
