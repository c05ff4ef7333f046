"""A project on disk, pytest runs and commands inside it, and what they leave behind."""

from __future__ import annotations

import atexit
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from _pytest import unraisableexception

from pytest_kopt.cli.main import main

from .. import nursery

MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

CAMPAIGN = "doubled_torch_cpu_20260101"
KERNEL = "kernels/doubled.py"
CASES = "tests/test_doubled.py"
#: Files that a session changes while it runs, and what git keeps apart.
_PASSING = (".lock", "running.json", ".running.json")
#: A plugin of the project that every process of a run gets first, where there is one.
SCRIPT = "scripted.py"

#: Names the directory of the devices' locks for processes with a scripted clock.
LOCKS = "TESTS_LOCKS_JIT_DIR"

_SECONDS = 900
#: Commands that read and write records, and start no process that outlives them.
_ALONE = ("init", "status", "note", "stop", "abandon", "discard", "tips", "memory", "report")

#: How a run is distributed, by the words on its command line.
SERIAL: tuple[str, ...] = ()
TWO_WORKERS = ("-n", "2")
NO_XDIST = ("-p", "no:xdist")

INIT = (
    *("init", CAMPAIGN, "--op", "doubled", "--kernel", KERNEL, "--backend", "TORCH"),
    *("--gpu", "cpu"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams."""
        return self.out + self.err

    @property
    def refusal(self) -> str:
        """The one message of a run that was refused, which is no traceback."""
        found: list[str] = re.findall(r"^ERROR: (.*)$", self.text, re.MULTILINE)
        assert len(found) == 1, self.text
        assert "Traceback" not in self.text and "INTERNALERROR" not in self.text, self.text
        return found[0]


@cache
def locks() -> Path:
    """Return where sessions with a scripted clock lock devices, one place a process of tests."""
    directory = tempfile.mkdtemp(prefix="locks-")
    atexit.register(shutil.rmtree, directory)
    return Path(directory)


class Project:
    """A directory with a project in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def campaign(self) -> Path:
        """The campaign's directory."""
        return self.root / "agent" / "workspace" / CAMPAIGN

    def copy(self, target: Path) -> Project:
        """Return a copy to go on with."""
        shutil.copytree(self.root, target, symlinks=True)
        return Project(target)

    def write(self, path: str, text: str) -> Path:
        """Write a file below the root."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def read(self, path: str) -> str:
        """Return the text of a file below the root."""
        return (self.root / path).read_text()

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace text that a file holds exactly once."""
        text = self.read(path)
        assert text.count(old) == 1, (old, text)
        self.write(path, text.replace(old, new))

    def notes(self, **keys: str | float) -> str:
        """Write a notes file and return its name; JSON is YAML."""
        self.write("notes.yaml", json.dumps(keys))
        return "notes.yaml"

    def commit_all(self, message: str = "Start") -> None:
        """Make the directory a repository when it is none and commit everything."""
        if not (self.root / ".git").exists():
            self.git("init", "--quiet", "--initial-branch", "main")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", message)

    def head(self) -> str:
        """Return the commit of HEAD."""
        return self.git("rev-parse", "HEAD").strip()

    def git(self, *arguments: str) -> str:
        """Run git and return what it prints."""
        who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
        done = subprocess.run(
            ["git", *who, *arguments],
            cwd=self.root,
            env=self.environment(),
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def run(self, *words: str, **variables: str) -> Run:
        """Run a command here, with these environment variables on top."""
        done = nursery.run(
            words, cwd=self.root, env=self.environment() | variables, timeout=_SECONDS
        )
        return Run(done.returncode, done.stdout, done.stderr)

    def environment(self) -> dict[str, str]:
        """Return this process's environment without what a test run around us has put there.

        The home directory is one without any settings of git: there is no identity to commit by.
        """
        strange = ("PYTEST_", "KOPT_", "GIT_", "GITHUB_", "TRITON_", "COV_")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(strange)}
        if (self.root / SCRIPT).exists():
            kept["PYTEST_PLUGINS"] = Path(SCRIPT).stem
        # A manifest's commands say `python`, a name that a system need not have.
        path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        return kept | {
            "PATH": path,
            "HOME": str(self.root.parent),
            "COLUMNS": "200",
            "NO_COLOR": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "OMP_NUM_THREADS": "1",
            LOCKS: str(locks()),
            # Kernel code may write to compilers' caches, and so to the scripted clock's log.
            "MEASURED_JIT_DIR": str(self.root / "measured"),
            # Where there is a GPU, these sessions do not see it.
            **dict.fromkeys(MASKS, ""),
        }

    def pytest(self, *arguments: str, **variables: str) -> Run:
        """Run pytest here, in a process of its own."""
        return self.run(sys.executable, "-m", "pytest", *arguments, **variables)

    def refuse(self, *arguments: str) -> Run:
        """Run pytest in this process, which ends before a process of its own begins."""
        from pytest_kopt.processes.launcher import Launcher

        with (
            mock.patch.object(Launcher, "warm"),
            mock.patch.multiple(metadata.Distribution, **nursery.installed_once()),
            # What earlier tests left behind is not this session's.
            mock.patch.object(unraisableexception, "gc_collect_harder"),
        ):
            return self._within(lambda: pytest.main([*arguments]))

    def ask(self, number: int | str, *arguments: str) -> Run:
        """Ask in this process for a round that ends before a process of its own begins."""
        words = ("--kopt-campaign", CAMPAIGN, "--kopt-round", str(number))
        return self.refuse(*words, *arguments)

    def _within(self, main: Callable[[], int]) -> Run:
        """Run a program's entry in this process."""
        environment = {n: v for n, v in self.environment().items() if n != "PYTEST_PLUGINS"}
        out, err, here, path = io.StringIO(), io.StringIO(), Path.cwd(), [*sys.path]
        modules = {*sys.modules}
        os.chdir(self.root)
        try:
            with (
                mock.patch.dict(os.environ, environment, clear=True),
                redirect_stdout(out),
                redirect_stderr(err),
            ):
                code = main()
        finally:
            os.chdir(here)
            sys.path[:] = path
            # Another project's conftest.py has the same name.
            for name in sys.modules.keys() - modules:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{self.root}/"):
                    del sys.modules[name]
        return Run(int(code), out.getvalue(), err.getvalue())

    def play(self, number: int | str, *arguments: str) -> Run:
        """Run a round in this process, whose cases are scripted: `lane` says how."""
        from .lane import scripted

        results = [json.dumps(result) for result in self.evidence(1)["results"]]
        baseline = self.campaign / "rounds/round-1/kernel_snapshot" / KERNEL
        with scripted(results, baseline, self.root / KERNEL):
            return self.ask(number, *arguments)

    def kopt(self, *arguments: str, **variables: str) -> Run:
        """Run the command `kopt` here: in this process where it starts none."""
        if arguments[0] in _ALONE and not variables:
            return self._within(lambda: main(arguments))
        return self.run(sys.executable, "-m", "pytest_kopt.cli", *arguments, **variables)

    def init(self, *arguments: str) -> Run:
        """Set up the campaign."""
        return self.kopt(*INIT, *arguments)

    def round(self, number: int | str, *arguments: str, **variables: str) -> Run:
        """Run a round of the campaign."""
        words = ("--kopt-campaign", CAMPAIGN, "--kopt-round", str(number), *arguments)
        return self.pytest(*words, **variables)

    def verdict(self, number: int) -> dict[str, Any]:
        """Return a round's verdict.json."""
        path = self.campaign / "rounds" / f"round-{number}" / "verdict.json"
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    def evidence(self, number: int, attempt: int = 1) -> dict[str, Any]:
        """Return what an attempt recorded, with its results read."""
        directory = self.campaign / f"rounds/round-{number}/artifacts/attempt-{attempt}"
        document: dict[str, Any] = json.loads((directory / "evidence.json").read_text())
        document["results"] = [json.loads(text) for text in document["results"]]
        return document

    def ledger(self) -> list[dict[str, Any]]:
        """Return the ledger's events; none before the first."""
        path = self.campaign / "ledger.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def ledger_bytes(self) -> bytes:
        """Return the ledger as it stands, a torn last line included."""
        path = self.campaign / "ledger.jsonl"
        return path.read_bytes() if path.exists() else b""

    def edit_manifest(self, **keys: Any) -> None:
        """Set keys of the manifest, legal or not."""
        import yaml

        path = self.campaign / "manifest.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))

    def contents(self) -> dict[str, bytes]:
        """Return every file but caches, locks and progress: what a refused run must not change.

        Of the repository only refs and HEAD count; git refreshes its index as it likes.
        """
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            inner = name.startswith(".git/")
            if inner and not name.startswith((".git/refs/", ".git/HEAD")):
                continue
            if "__pycache__" in name or path.name.startswith(_PASSING) or path.is_dir():
                continue
            found[name] = path.read_bytes() if path.exists() else b"(broken link)"
        return found

    @property
    def was_measured(self) -> bool:
        """Whether the scripted kernel has run since `forget_measuring`."""
        return (self.root / "measured/log").exists()

    def forget_measuring(self) -> None:
        """Start watching for kernel calls anew."""
        (self.root / "measured/log").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Stage:
    """A project as a run left it, and that run. To be read; go on with a copy."""

    project: Project
    run: Run

    def keep(self, directory: Path) -> None:
        """Copy the project into a directory, the run beside it."""
        self.project.copy(directory)
        directory.with_suffix(".json").write_text(json.dumps(asdict(self.run)))

    @classmethod
    def kept(cls, directory: Path) -> Stage:
        """Return what `keep` left."""
        run = Run(**json.loads(directory.with_suffix(".json").read_text()))
        return cls(Project(directory), run)
