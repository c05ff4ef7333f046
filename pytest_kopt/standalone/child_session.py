"""A session of pytest in another tree of a project: its environment, its end, its verdict."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import ValidationError

from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.options.declare import LOADED_BEFORE, STEP
from pytest_kopt.process_tree import end_with_parent
from pytest_kopt.standalone.made_trees import MadeTree

#: A runner's files are about the run as a whole, not about one of its comparisons.
_NOT_INHERITED = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
#: So many bytes at the end of a session's output hold its summary.
_LAST_BYTES = 1 << 20
_RUN = "from pytest_kopt.standalone.child_session import {0}; {0}()"


def run(words: Sequence[str], made: MadeTree, output: Path | None, entry: str = "main") -> int:
    """Run pytest with these words in a tree, and return the exit code.

    It prints to `output`, or (None) where we do. KeyboardInterrupt if it was interrupted.
    """
    process = start(words, made, output, entry)
    try:
        code = process.wait()
    except KeyboardInterrupt as interrupt:
        # At a terminal it was interrupted as well. It ends in order.
        if interrupt.args:
            os.kill(process.pid, signal.SIGTERM)
        process.wait()
        raise
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return code


def start(
    words: Sequence[str],
    made: MadeTree,
    output: Path | None,
    entry: str = "main",
    variables: Mapping[str, str] | None = None,
    first: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start it by a function of this module, with these variables more; it calls `first` before."""
    with contextlib.ExitStack() as files:
        log = None if output is None else files.enter_context(output.open("wb"))
        return subprocess.Popen(
            [sys.executable, "-c", _RUN.format(entry), *words],
            cwd=made.directory,
            # Its two streams share a file: a refusal would stand in the middle of a line.
            env={
                **_environment(made.root, made.tree),
                "PYTHONUNBUFFERED": "1",
                **(variables or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT if log else None,
            preexec_fn=first,
        )


def verdict_in(file: Path) -> Verdict | None:
    """Return the verdict that a session wrote; None where it wrote none."""
    try:
        return Verdict.model_validate_json(file.read_text())
    except (OSError, ValidationError):
        return None


def last_words(log: Path) -> str:
    """Return the refusal at the end of a session's output, else its last line."""
    with log.open("rb") as stream:
        # A kernel may print more than memory holds.
        stream.seek(max(0, log.stat().st_size - _LAST_BYTES))
        text = stream.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return refusal_in(lines) or (lines[-1].strip("= ") if lines else "no output")


def refusal_in(lines: Iterable[str]) -> str:
    """Return why a session or command refused its input, "" where no line says so."""
    refusal = next((line for line in lines if line.startswith("ERROR: ")), "")
    return refusal.removeprefix("ERROR: ")


def main(*plugins: object) -> None:
    """Run pytest as `python -m pytest` does, and end with the process that started it."""
    end_with_parent()
    sys.path[0] = os.getcwd()
    sys.exit(pytest.main([*sys.argv[1:], *LOADED_BEFORE], plugins=plugins))


def step() -> None:
    """Run pytest as a step of a bisection."""
    main(ModuleType(STEP))


def _environment(root: Path, tree: Path) -> dict[str, str]:
    """Return this process's environment, its imports led from the project into its other tree."""
    env = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    variable = env.get("PYTHONPATH", "").split(os.pathsep)
    paths = {text: Path(text).resolve() for text in (*variable, *sys.path, *_editable()) if text}
    moved = {
        text: str(tree / path.relative_to(root))
        for text, path in paths.items()
        if path.is_dir()
        and path.is_relative_to(root)
        # An environment that lies in the project is no part of it.
        and not path.is_relative_to(Path(sys.prefix).resolve())
    }
    python_path = [moved.get(text, text) for text in paths if text in variable or text in moved]
    # A source of the same size may follow within the second that caches go by.
    return env | {"PYTHONPATH": os.pathsep.join(python_path), "PYTHONDONTWRITEBYTECODE": "1"}


def _editable() -> Iterator[str]:
    """Yield the folders of packages that were installed as editable: a path entry comes first."""
    for distribution in metadata.distributions():
        if '"editable": true' not in (distribution.read_text("direct_url.json") or ""):
            continue
        for name in (distribution.read_text("top_level.txt") or "").split():
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin:
                file = Path(spec.origin)
                yield str(file.parents[1] if spec.submodule_search_locations else file.parent)
