"""A kernel that tries to leave its bounds in a session that judges it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_kopt.processes.isolation import lacking

from .paired import PLAIN, Gate, kernel, project_at
from .project import TWO_WORKERS

needs_landlock = pytest.mark.skipif(bool(lacking()), reason="this system cannot refuse all of it")

ATTEMPT = """
import contextlib
import os
import socket
from pathlib import Path

for attempt in ({attempts}):
    with contextlib.suppress(PermissionError):
        attempt()
        raise RuntimeError("the system let it")
"""
TRIED = (
    'lambda: Path("agent/workspace/camp/rounds/verdict.json").read_text()',
    "lambda: os.kill(os.getppid(), 0)",
    'lambda: Path("README.md").write_text("A better project.")',
    "socket.socket",
)


IN_A_WORKER = """
import os
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    Path("README.md").write_text("A better project.")
"""


@needs_landlock
def test_xdist_has_cases_checked_by_confined_processes(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    project.write(PLAIN, kernel(cost=187.5, who="plain new", imports=IN_A_WORKER))
    done = Gate(project)(*TWO_WORKERS)
    assert done.run.code == 1 and "Permission denied: 'README.md'" in done.run.out, done.run.text
    assert project.read("README.md") == "A project.\n"


TUNES = """
import os
from pathlib import Path

_first = plain


def plain(x):
    tuned = Path(os.environ["MINE_CACHE_DIR"]) / "tuned"
    if tuned.exists():
        return _first(x)
    tuned.write_text("")
    return -_first(x)
"""


def test_every_process_begins_with_the_cache_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel is wrong until its own cache is warm: so it is the next time as well."""
    project = project_at(tmp_path / "project")
    cache = tmp_path / "mine"
    cache.mkdir()
    project.write(PLAIN, kernel(cost=375.0, who="plain new") + TUNES)
    monkeypatch.setenv("MINE_CACHE_DIR", str(cache))
    gate = Gate(project)
    done = gate()
    assert done.run.code == 1 and not [*cache.iterdir()], done.run.text
    (cache / "tuned").write_text("by another program")
    done = gate()
    assert done.run.code == 8, done.run.text
    assert [path.read_text() for path in cache.iterdir()] == ["by another program"]


KEEPS = """
from pathlib import Path

kept = Path.home() / ".tunings"
kept.mkdir(exist_ok=True)
(kept / "tuned.json").write_text("{}")
"""


LISTS = """
import json
import os
import sys
from pathlib import Path


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


with open(Path(os.environ["TRACE"]).with_name("held.log"), "a") as log:
    held = [
        *map(_target, os.listdir("/proc/self/fd")),
        *Path("/proc/self/cmdline").read_text().split(chr(0)),
        *sys.argv,
        *os.environ.values(),
    ]
    print(json.dumps(held), file=log)
"""


def test_a_kernel_that_tries_to_leave_its_bounds_is_judged_by_its_times(tmp_path: Path) -> None:
    """What it keeps in its home is no cheat: packages make such a folder as they are imported.

    No open file, no word and no variable leads to the verdict or to a campaign.
    """
    project = project_at(tmp_path / "project")
    for name in ("manifest.yaml", "ledger.jsonl", "rounds/verdict.json"):
        project.write(f"agent/workspace/camp/{name}", "{}")
    project.commit_all("Have records")
    tries = "" if lacking() else ATTEMPT.format(attempts=", ".join(TRIED)) + KEEPS
    project.write(PLAIN, kernel(cost=187.5, who="plain new", imports=tries + LISTS))
    gate = Gate(project)
    done = gate("--kopt-comment", str(gate.private / "comment.md"))
    assert done.run.code == 0 and done.judged["decision"] == "ACCEPTED", done.run.text
    assert project.read("README.md") == "A project.\n"
    assert not [*tmp_path.rglob(".tunings")]
    lines = (gate.private / "held.log").read_text().splitlines()
    assert len(lines) >= 3, "its checker and replicas"
    for line in lines:
        held = json.loads(line)
        assert not [text for text in held for name in ("verdict", "comment") if name in text]
        below = {text for text in held if text.startswith(str(tmp_path)) and Path(text).is_file()}
        assert below <= {str(gate.trace), str(gate.private / "held.log")}


def test_where_it_is_off_the_session_and_its_verdict_say_so(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    project.write(PLAIN, kernel(cost=375.0, who="plain new", imports="open('seen', 'w').close()"))
    project.write(".gitignore", "__pycache__/\nseen\n")
    gate = Gate(project)
    (project.root / "seen").write_text("")
    done = gate("-o", "kopt_isolation=off")
    said = "kopt_isolation is off: kernel code may write wherever you may"
    assert done.run.code == 8, done.run.text
    assert f"kopt: {said}" in done.run.out
    assert done.judged["flags"] == [said]
