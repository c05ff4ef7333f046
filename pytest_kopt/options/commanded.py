"""What a command and a settings file say of kopt's options, whatever a conftest file made of them.

Conftest files and plugins may edit `config.option` and pytest's ini values as they like.
"""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import CHOICES, options, settings_keys

#: Options that decide nothing.
_IDLE = frozenset({"kopt_summary_csv", "kopt_gpu_wait", "kopt_campaign"})
_DEFAULTS = {name: legal[0] for name, legal in CHOICES.items()} | {"kopt_policy": "primus"}


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(message, where="a command's words")


def commanded(config: pytest.Config, section: Mapping[str, Any]) -> dict[str, str]:
    """Return what the command line, the environment and a section of settings say, by option.

    The section is pytest's of a settings file. A key without an option stands under its own name.
    """
    words = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    words += map(str, config.invocation_params.args)
    section = {**section, **_overrides(_parsed(words)["override_ini"])}
    addopts = section.get("addopts", "")
    before = shlex.split(addopts) if isinstance(addopts, str) else [*map(str, addopts)]
    parsed = _parsed([*before, *words])
    return _plain(parsed, {**section, **_overrides(parsed["override_ini"])})


def in_force(config: pytest.Config) -> dict[str, str]:
    """Return the same as the session has it."""
    return _plain(vars(config.option), {key: config.getini(key) for key in settings_keys()})


def spelled(name: str) -> str:
    """Return an option as a command has it, or the name of a key."""
    names = {properties["dest"]: names[-1] for names, properties in options()}
    return names.get(name, name)


def _parsed(words: Sequence[str]) -> dict[str, Any]:
    parser = _Parser(add_help=False, allow_abbrev=False, fromfile_prefix_chars="@")
    parser.add_argument("-o", "--override-ini", action="append", default=[])
    for names, properties in options():
        parser.add_argument(*names, **properties)
    return vars(parser.parse_known_args(words)[0])


def _overrides(settings: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (setting.partition("=") for setting in settings)}


def _plain(given: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, str]:
    """Return what is asked for as text, "" for what is not."""
    names = {properties["dest"] for _, properties in options()} | settings_keys()
    return {
        name: str(given.get(name) or section.get(name) or _DEFAULTS.get(name) or "")
        for name in sorted(names - _IDLE)
    }
