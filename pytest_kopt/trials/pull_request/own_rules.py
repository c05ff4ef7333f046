"""A pull request does not choose what judges it: options in its settings, and the policy's file."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.trials.harness import pytest_section
from pytest_kopt.trials.pull_request.base import Base

#: Options that say what passes.
_RULES = ("--kopt-policy", "--kopt-gate", "--kopt-allow-removed", "--kopt-compare", "--kopt-level")

_KEYS = {*(option[2:].replace("-", "_") for option in _RULES), "kopt_isolation"}


def check_rules(
    config: pytest.Config, policy: str | None, base: Base, differing: Collection[str]
) -> None:
    """Raise BadInput where a change, in paths that are `differing`, sets what judges it."""
    settings, root = config.inipath, base.root.resolve()
    edited = {root / path: path for path in differing}
    what = ""
    if policy and (path := edited.get(Path(policy).resolve())):
        what = f"edits {path}, the policy"
    if settings is not None and (path := edited.get(settings.resolve())):
        with TemporaryDirectory() as folder:
            before = Path(folder, settings.name)
            before.write_bytes(base.old.get(path) or b"")
            new = rules_of(settings) - rules_of(before)
        what = f"sets {min(new)} in {path}" if new else what
    if what:
        raise BadInput(
            f"the change {what}, which judges it",
            where=str(base),
            legal="the option on the command line, or a pull request of its own before",
        )


def rules_of(settings: Path) -> set[str]:
    """Return the options and keys in a settings file that say what passes, each with its value."""
    section = pytest_section(settings)
    given = section.get("addopts", "")
    words = shlex.split(given) if isinstance(given, str) else list(map(str, given))
    keys = {f"{key} = {value}" for key, value in section.items() if key in _KEYS}
    return keys | {
        word if "=" in word or word == "--kopt-allow-removed" else f"{word} {following}"
        for word, following in zip_longest(words, words[1:], fillvalue="")
        if word.partition("=")[0] in _RULES
    }
