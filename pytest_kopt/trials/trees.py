"""The incumbent's trees: made for a comparison, gone with it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytest_kopt.campaign import commands
from pytest_kopt.paired.comparison import NotComparable, Versions
from pytest_kopt.versions import overlay

_PREFIX = "kopt-incumbent-"
#: Words of a build that changes the environment which both versions share.
_INSTALLS = frozenset({"install", "develop", "sync"})


@contextmanager
def overlays(
    root: Path,
    incumbent: Mapping[str, bytes],
    absent: Sequence[str] = (),
    changed: Sequence[str] | None = None,
    rebuild: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Versions]:
    """Make two trees of the incumbent and remove them afterwards.

    `incumbent` are its files by path below `root`, `absent` the paths that only the candidate has;
    `changed` (default: both) those through which the versions differ. With `rebuild` the trees are
    full copies in which that command has built the incumbent; NotComparable when it cannot.
    """
    _sweep()
    concerned = tuple(sorted({*incumbent, *absent} if changed is None else changed))
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as directory:
        base = Path(directory).resolve()
        first, second = (base / name / root.name for name in ("first", "second"))
        if rebuild is None:
            for tree in (first, second):
                overlay.build(root, tree, incumbent, absent, overlay.current_folder(root))
        else:
            overlay.copy(root, first, incumbent, absent)
            _build(rebuild, first, env or {})
            shutil.copytree(first, second, symlinks=True)
        yield Versions(root, (first, second), concerned, rebuilt=rebuild is not None)


def why_not_in_place(command: str) -> str:
    """Return why a rebuild_command cannot build two versions side by side, "" where it can."""
    if not _INSTALLS & set(commands.split(command)[1]):
        return ""
    return (
        f"rebuild_command `{command}` installs: it would replace the candidate in the environment "
        "that both share; build in place (setup.py build_ext --inplace, make)"
    )


def _build(command: str, tree: Path, env: Mapping[str, str]) -> None:
    problem = why_not_in_place(command)
    if problem:
        raise NotComparable(problem)
    extensions = {"TORCH_EXTENSIONS_DIR": str(tree / ".torch_extensions")}
    done = commands.run(command, tree, {**env, **extensions})
    if not done.ok:
        raise NotComparable(f"the incumbent does not build: {done.output[-500:]}")


def _sweep() -> None:
    """Remove the trees of processes that were killed before they could."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if path.lstat().st_uid == os.getuid() and owner.isdecimal() and not _is_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
