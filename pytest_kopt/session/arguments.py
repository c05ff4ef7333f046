"""Before conftest files: the manifest's pytest arguments, and a start for what takes longest.

The arguments come before the user's when those name no path.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from pytest_kopt.devices.vendor import choose, interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import FROM_MANIFEST, device_of
from pytest_kopt.processes.launcher import launcher_of

#: Whether the user's own arguments narrow what is collected, so that absent cases are no drift.
NARROWED: pytest.StashKey[bool] = pytest.StashKey()


def take_from_manifest(config: pytest.Config, args: list[str]) -> None:
    """Put the campaign's test arguments first; what cannot be read is complained of later."""
    options = config.known_args_namespace
    narrowed = [options.file_or_dir, options.keyword, options.markexpr, options.deselect]
    config.stash[NARROWED] = any([*narrowed, getattr(options, "lf", False)])
    if options.file_or_dir or not options.kopt_round:
        return
    from pytest_kopt.campaign import manifest
    from pytest_kopt.campaign.git.worktrees import choose_campaign
    from pytest_kopt.options.settings import workspace_of

    named = options.kopt_campaign or config.getini("kopt_campaign")
    try:
        layout = choose_campaign(named, config.rootpath, workspace_of(config))
        tests = manifest.load(layout.manifest).tests
        config.stash[FROM_MANIFEST] = args[:0] = _from_root(config, shlex.split(tests))
    except (BadInput, ValueError):
        return


def _from_root(config: pytest.Config, words: Sequence[str]) -> list[str]:
    """Return a manifest's words, whose paths are below pytest's root, for where pytest was started.

    Elsewhere pytest would look for what they name, or without any for all tests, in that folder.
    """
    root = config.rootpath
    if config.invocation_params.dir == root:
        return [*words]
    is_path = [(root / word.partition("::")[0]).exists() and word[:1] != "-" for word in words]
    places = [] if any(is_path) else config.getini("testpaths") or ["."]
    rooted = [str(root / w) if there else w for w, there in zip(words, is_path, strict=True)]
    return [*rooted, *(str(root / place) for place in places)]


def begin_to_warm(config: pytest.Config) -> None:
    """Start the fork server before the command is parsed; one that does not fit is replaced."""
    kind = choose(device_of([*map(str, config.invocation_params.args)]))
    # No conftest file has changed the environment yet.
    launcher_of(config).warm(interpreter_environment(kind), str(config.invocation_params.dir))
