"""Another interpreter on this host, with packages of its own: the other side of a comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pytest_kopt.errors import BadInput
from pytest_kopt.processes.launched import Launched, interpreter

_OPTION = "--kopt-base-python"
_PROBE = """\
import json, sys
from importlib.metadata import version
import pytest_kopt.processes.served, torch
found = {"python": sys.version.split()[0], "torch": torch.__version__, "path": sys.path[1:]}
try:
    import triton
    found["triton"] = triton.__version__
except ImportError:
    pass
print(json.dumps({**found, "pytest-kopt": version("pytest-kopt")}))
"""
#: What would lead another interpreter into this one's packages.
_OURS = frozenset({"VIRTUAL_ENV", "PYTHONHOME", "__PYVENV_LAUNCHER__"})


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Starts processes under another interpreter; `versions` are what it has.

    The entries of this process's path below `root` come first there: the project is the same.
    """

    python: Path
    root: Path
    versions: Mapping[str, str]
    path: Sequence[str]
    why_fresh: str = ""

    @classmethod
    def at(cls, python: Path, root: Path) -> Toolchain:
        """Ask an interpreter what it has.

        BadInput where it does not start, lacks pytest-kopt or torch, or has another major version.
        """
        try:
            process = subprocess.run(
                [python, "-c", _PROBE],
                env=_environment(),
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise BadInput(f"{python}: {error.strerror}", where=_OPTION) from None
        legal = (
            f"an interpreter whose environment has pytest-kopt {version('pytest-kopt')} and torch"
        )
        if process.returncode:
            last = (process.stderr.strip() or f"status {process.returncode}").splitlines()[-1]
            raise BadInput(f"{python} cannot run cases: {last}", where=_OPTION, legal=legal)
        versions = json.loads(process.stdout.splitlines()[-1])
        path, ours, theirs = (
            versions.pop("path"),
            version("pytest-kopt"),
            versions["pytest-kopt"],
        )
        if ours.partition(".")[0] != theirs.partition(".")[0]:
            raise BadInput(f"{python} has pytest-kopt {theirs}", where=_OPTION, legal=legal)
        return cls(python, root, versions, path)

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        return f"{self.python} ({versions})"

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of this process, but for what names its own packages."""
        return _environment()

    @property
    def sys_path(self) -> Sequence[str]:
        """The folders that processes there import from: the project's, then its packages'."""
        below = [
            p for p in sys.path if Path(p or ".").resolve().is_relative_to(self.root.resolve())
        ]
        prefix = Path(sys.prefix).resolve()
        ours = [p for p in below if not Path(p or ".").resolve().is_relative_to(prefix)]
        return [*ours, *(entry for entry in self.path if entry not in ours)]

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        return interpreter(env, directory, self.python)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OURS}
