"""A project for paired comparisons: kernels that cost what they say and tell which version ran.

Their clock stands beside the tests, so that both versions share it; who runs in what process is
noted in the file that TRACE names. Costs are whole sixty-fourths of a second: then identical code
differs by nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..waiting import HANG, until
from .live import hear_signals
from .project import SCRIPT, Project, Run
from .sources import LEFT_OUT, SCRIPTED

SETTINGS = f"""\
[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = [".", "tests"]
addopts = [{LEFT_OUT}]
"""

CLOCK = '''\
"""A clock that only moves when a kernel says so, and a log of who moved it in what process."""

import os

_now = 0.0
_told = set()


def spend(milliseconds, who):
    global _now
    _now += milliseconds * 1e-3
    line = f"{who} {os.getpid()}\\n"
    if line not in _told:
        _told.add(line)
        with open(os.environ["TRACE"], "a") as trace:
            trace.write(line)


def now():
    return _now
'''

KERNEL = '''\
"""Doubles a tensor."""

from clock import spend
{imports}

COST_MS = {cost}


def {name}(x):
    spend(COST_MS, "{who}")
    return {factor} * x
'''

CASES = """\
import pytest
import torch
"""

CASE = """
from {module} import {name}


@pytest.mark.kopt
def test_{name}(kopt):
    kopt(
        {name},
        inputs=lambda: (torch.ones({rows}, 8),),
        reference=lambda x: 2 * x.double(),
        dims={{"rows": {rows}}},
        domain="declared shapes",
    )
"""

#: Costs in ms. The gate lies at 5 %.
OLD, SAME, FASTER, A_LITTLE_SLOWER, SLOWER = 250.0, 250.0, 187.5, 257.8125, 281.25


def kernel(
    cost: float | str = OLD,
    who: str = "old",
    *,
    name: str = "plain",
    imports: str = "",
    factor: float | str = 2.0,
) -> str:
    """Return a version of a kernel: its cost, or an expression for it, and what it calls itself."""
    return KERNEL.format(cost=cost, who=who, name=name, imports=imports, factor=factor)


def cases(*kernels: tuple[str, str]) -> str:
    """Return the test file of kernels, each a module and a name; the n-th has n rows."""
    texts = (
        CASE.format(module=module, name=name, rows=rows)
        for rows, (module, name) in enumerate(kernels, start=1)
    )
    return CASES + "".join(texts)


#: A kernel's last words: it runs well until another version was called.
DIES_LATE = """
import ctypes
import os

_unharmed = plain


def plain(x):
    result = _unharmed(x)
    trace = os.environ["TRACE"]
    if os.path.exists(trace + ".deadly"):
        if len({line for line in open(trace) if line.startswith("old ")}) > 1:
            ctypes.string_at(0)
    return result
"""
PLAIN = "kernels/plain.py"
PLAIN_CASE = "tests/test_plain.py::test_plain"
PLAIN_CASES = cases(("kernels.plain", "plain"))


#: The clock lies among the tests, which pytest puts on its path only after its plugins.
BESIDE = """\
'PYTEST_DONT_REWRITE'
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests"))
"""


def write_paired(project: Project) -> None:
    """Write a project with one kernel and one case."""
    project.write("pyproject.toml", SETTINGS)
    project.write("tests/clock.py", CLOCK)
    project.write(SCRIPT, BESIDE + SCRIPTED)
    project.write("kernels/__init__.py", "")
    project.write(PLAIN, kernel())
    project.write("tests/test_plain.py", PLAIN_CASES)
    project.write(".gitignore", "__pycache__/\n")
    project.write("README.md", "A project.\n")


def traced(beside: Path) -> dict[str, str]:
    """Return the variables by which kernels write their trace, `traced/trace` in a folder.

    Kernel code may write to compilers' caches, so that the trace lies in one.
    """
    folder = beside / "traced"
    folder.mkdir(exist_ok=True)
    return {"TRACE": str(folder / "trace"), "TRACE_JIT_DIR": str(folder)}


@dataclass(frozen=True, slots=True)
class Gated:
    """A finished run of the gate: its verdict (None: there is none), and who ran where."""

    run: Run
    verdict: dict[str, Any] | None
    trace: list[tuple[str, int]]

    @property
    def judged(self) -> dict[str, Any]:
        """The verdict that there has to be."""
        assert self.verdict is not None, self.run.text
        return self.verdict

    @property
    def shapes(self) -> dict[int, dict[str, Any]]:
        """The verdict's cases by their rows."""
        return {shape["dims"]["rows"]: shape for shape in self.judged["shapes"]}

    @property
    def processes(self) -> dict[int, set[str]]:
        """The versions that ran, by process."""
        found: dict[int, set[str]] = {}
        for who, process in self.trace:
            found.setdefault(process, set()).add(who)
        return found


class Gate:
    """Runs the gate in a project, in temporary directories of its own."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.private = project.root.parent / f"{project.root.name}-private"
        self.tmp = self.private / "tmp"
        self.tmp.mkdir(parents=True, exist_ok=True)
        self.trace = self.private / "trace"
        self.verdict = self.private / "verdict.json"

    def __call__(self, *words: str, base: str = "main", where: str = ".") -> Gated:
        """Run `pytest --kopt-base` and see that it leaves nothing behind."""
        before = self.left_behind()
        self.trace.unlink(missing_ok=True)
        self.verdict.unlink(missing_ok=True)
        here = Project(self.project.root / where)
        run = here.pytest(*self.words(base), *words, **self.variables())
        self.expect(before)
        assert "INTERNALERROR" not in run.text, run.text
        verdict = json.loads(self.verdict.read_text()) if self.verdict.exists() else None
        return Gated(run, verdict, self.traced())

    def refused(self, *words: str, base: str = "main") -> str:
        """See that a run in this process is refused and leaves everything; return its message."""
        before = self.left_behind()
        self.verdict.unlink(missing_ok=True)
        run = self.project.refuse(*self.words(base), *words)
        self.expect(before)
        assert run.code == 4, run.text
        assert not self.verdict.exists()
        return run.refusal

    def words(self, base: str) -> tuple[str, ...]:
        """The words of a run."""
        return (f"--kopt-base={base}", "--kopt-verdict", str(self.verdict))

    def variables(self) -> dict[str, str]:
        """The environment of a run, wherever below the project it starts."""
        beside = next(self.project.root.rglob(SCRIPT)).parent
        return {
            "PYTEST_PLUGINS": Path(SCRIPT).stem,
            "PYTHONPATH": str(beside),
            "TMPDIR": str(self.tmp),
            "TRACE": str(self.trace),
            "XDG_STATE_HOME": str(self.private / "state"),
            # Kernel code may write to compilers' caches, and so to the trace.
            "TRACE_JIT_DIR": str(self.private),
            "TORCHINDUCTOR_CACHE_DIR": str(self.private / "inductor"),
        }

    def traced(self) -> list[tuple[str, int]]:
        """Who called the clock, in which process."""
        lines = self.trace.read_text().splitlines() if self.trace.exists() else []
        pairs = (line.rsplit(" ", 1) for line in lines)
        return [(who, int(process)) for who, process in pairs]

    def expect(self, before: dict[str, object]) -> None:
        """See that nothing is left behind that was not there before."""
        after = self.left_behind()
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        assert not changed, changed

    def left_behind(self) -> dict[str, object]:
        """Everything that a run could leave: files anywhere, and what git knows of."""
        git = self.project.git
        status = git("status", "--porcelain", "--ignored", "-uall").splitlines()
        trees = self.project.root / ".git/worktrees"
        found: dict[str, object] = {
            "git status": [line for line in status if "__pycache__" not in line],
            # Stashes are among the refs.
            "git for-each-ref": git("for-each-ref"),
            "git worktrees": sorted(trees.iterdir()) if trees.is_dir() else [],
        }
        # A lock that all runs on the machine share is to stay, and so are xdist's tmp_paths and the
        # compiler's cache.
        others = ("pytest-kopt-", "pytest-of-", "torchinductor_")
        for path in self.tmp.rglob("*"):
            # With such a file Python tries the folder: a process that is killed then leaves it.
            is_trial = path.is_file() and path.read_bytes() == b"blat"
            if not is_trial and not path.relative_to(self.tmp).parts[0].startswith(others):
                found[str(path)] = "temporary"
        return found | self.project.contents()

    def interrupt(self, how: int, when: Callable[[], bool]) -> int:
        """Start a run, send it a signal when it is time, and return its exit status.

        Ctrl-C reaches every process at the terminal, a CI runner's SIGTERM only the first.
        """
        before = self.left_behind()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *self.words("main")],
            cwd=self.project.root,
            env={**self.project.environment(), **self.variables()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=hear_signals,
        )
        try:
            until(lambda: when() or process.poll() is not None)
            assert process.poll() is None, "over before it could be interrupted"
            (os.killpg if how == signal.SIGINT else os.kill)(process.pid, how)
            status = process.wait(HANG)
            until(lambda: not _group_lives(process.pid))
        finally:
            if _group_lives(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
        self.expect(before)
        return status


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def compares(trace: Path) -> bool:
    """Say whether a replica runs: the incumbent's other process tries what lies nearby."""
    lines = {*trace.read_text().splitlines()} if trace.exists() else set()
    return sum(line.startswith("old ") for line in lines) > 1


def names(trace: Iterable[tuple[str, int]]) -> set[str]:
    """Who is in a trace."""
    return {who for who, _ in trace}


def project_at(root: Path) -> Project:
    """Return a project with its first commit."""
    root.mkdir(parents=True)
    project = Project(root)
    write_paired(project)
    project.commit_all()
    return project
