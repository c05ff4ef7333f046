"""A pull request does not choose what judges it: kopt's options, and the policy's file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.options.commanded import commanded, in_force, spelled
from pytest_kopt.options.declare import NAMED
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired import noise
from pytest_kopt.trials.harness import pytest_section, section_of
from pytest_kopt.trials.pull_request.base import Base

#: Where pytest looks for its settings in a folder, the first that has any; these always count.
_OWN = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
_SETTINGS_FILES = (*_OWN, "pyproject.toml", "tox.ini", "setup.cfg")


def check_rules(
    config: pytest.Config, settings: Settings, base: Base, differing: Collection[str]
) -> None:
    """Raise BadInput where a change, in paths that are `differing`, sets what judges it.

    That is what the command line, the environment and the base's settings say, the policy's file,
    and what is recorded of the noise.
    """
    root = base.root.resolve()
    places = {root / path: path for path in differing}
    records = noise.path_of(settings.workspace, "").parent.resolve()
    edited = [path for place, path in places.items() if place.is_relative_to(records)]
    edited += [places.get(Path(settings.policy).resolve(), "")] if settings.policy else []
    what = next((f"the change edits {path}, which judges it" for path in edited if path), "")
    commanded_values, here = commanded(config, settings_of(base, config)), in_force(config)
    if name := next(
        (name for name in commanded_values if commanded_values[name] != here[name]), ""
    ):
        where = [path for path in differing if Path(path).name == "conftest.py"]
        by_settings = commanded(config, pytest_section(config.inipath))
        if by_settings[name] == here[name] and config.inipath:
            where = [os.path.relpath(config.inipath.resolve(), root)]
        what = (
            f"{' or '.join(where) or 'a conftest file or plugin'} sets {spelled(name)} to "
            f"{here[name] or 'nothing'}; the command and the base's settings, which say what "
            f"judges a change, have {commanded_values[name] or 'nothing'}"
        )
    if what:
        raise BadInput(
            what,
            where=str(base),
            legal="the option on the command line, or a pull request of its own before",
        )


def settings_of(base: Base, config: pytest.Config) -> Mapping[str, Any]:
    """Return the section of settings that pytest would find at the base for the same command."""
    if config.option.inifilename:
        place = Path(config.invocation_params.dir, config.option.inifilename)
        return section_of(place, _content(base, place) or b"")
    for folder in _folders(config, base.root.resolve()):
        for name in _SETTINGS_FILES:
            content = _content(base, folder / name)
            section = {} if content is None else section_of(folder / name, content)
            if section or (content is not None and name in _OWN):
                return section
    return {}


def _folders(config: pytest.Config, root: Path) -> Iterator[Path]:
    """Yield the folders in which pytest looks for its settings, up to a repository's root."""
    here = Path(config.invocation_params.dir).resolve()
    named = [here / word.partition("::")[0] for word in config.stash.get(NAMED, ())]
    folders = [place if place.is_dir() else place.parent for place in named if place.exists()]
    start = Path(os.path.commonpath(folders)) if folders else here
    for folder in (start, *start.parents):
        yield folder
        if folder == root:
            return


def _content(base: Base, place: Path) -> bytes | None:
    """Return what a file of the work tree, or beside it, held at the base; None for none."""
    root = base.root.resolve()
    path = place.relative_to(root).as_posix() if place.is_relative_to(root) else ""
    if path in base.old:
        return base.old[path]
    return place.read_bytes() if place.is_file() else None
