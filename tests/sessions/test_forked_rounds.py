"""What cannot be forked, or is no more, is measured in interpreters, and the verdict says so."""

from __future__ import annotations

from pathlib import Path

from tests.sessions.paired import CLOCK, PLAIN, Gate, Gated, kernel, project_at

#: In every interpreter before anything else; a fork would not have it.
A_THREAD = (
    "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
)


def test_an_environment_with_threads_is_measured_in_interpreters(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    project.write("sitecustomize.py", A_THREAD)
    project.commit_all("Start a thread")
    project.write(PLAIN, kernel(cost=0.5, who="plain new"))
    done = Gate(project)()
    assert done.run.code == 0, done.run.text
    (flag,) = done.judged["flags"]
    assert flag.startswith(
        "each process was an interpreter of its own: the parent of its processes"
    )
    assert "2 threads" in flag


#: As the OOM killer does it, once: when so many versions have run, one where a kernel is checked,
#: and more only after that: what tries shapes nearby runs them beside it.
KILLS_THE_PARENT = """

_spend = spend


def spend(milliseconds, who):
    _spend(milliseconds, who)
    mark = os.environ["TRACE"] + ".killed"
    ran = [line.rsplit(maxsplit=1) for line in open(os.environ["TRACE"])]
    are_checked = VERSIONS == 1 or not os.path.exists(f"/proc/{ran[0][1]}")
    if len({who for who, _ in ran}) == VERSIONS and are_checked and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getppid(), 9)
"""


def with_a_killed_parent(tmp_path: Path, versions: int) -> Gated:
    project = project_at(tmp_path / "project")
    project.write("tests/clock.py", CLOCK + KILLS_THE_PARENT.replace("VERSIONS", str(versions)))
    project.commit_all("Kill the parent")
    project.write(PLAIN, kernel(cost=187.5, who="plain new"))
    return Gate(project)("-o", "kopt_isolation=off")


def test_a_parent_that_is_killed_costs_no_verdict(tmp_path: Path) -> None:
    """A replica that ended with it is measured in an interpreter, both versions still in one."""
    done = with_a_killed_parent(tmp_path, 2)
    assert done.run.code == 0, done.run.text
    assert done.judged["decision"] == "ACCEPTED"
    flag, unbound = sorted(done.judged["flags"])
    assert unbound == "kopt_isolation is off: kernel code may write wherever you may"
    assert flag == (
        "each process was an interpreter of its own: the parent of its processes ended (SIGKILL)"
    )


def test_a_parent_that_is_killed_during_a_check_condemns_no_kernel(tmp_path: Path) -> None:
    done = with_a_killed_parent(tmp_path, 1)
    assert done.run.code == 11, done.run.text
    assert "SIGKILL" in done.judged["reason"]
    assert "the kernel is not at fault" in done.judged["next_step"]


#: In the session's own process before kopt is, and in every fork of the parent.
BEFORE_US = """
import contextlib
import threading

import torch

threading.Thread(target=threading.Event().wait, daemon=True).start()
with contextlib.suppress(AssertionError, RuntimeError):
    torch.cuda.init()  # Where there is none, this much has to do.
torch.multiprocessing.set_start_method("spawn")
"""


def test_what_a_conftest_does_before_us_is_no_hindrance(tmp_path: Path) -> None:
    """It imports torch, wakes CUDA, starts a thread and has processes spawned: all is forked."""
    project = project_at(tmp_path / "project")
    project.write("conftest.py", BEFORE_US)
    project.commit_all("Do much in conftest")
    project.write(PLAIN, kernel(cost=187.5, who="plain new"))
    done = Gate(project)()
    assert done.run.code == 0, done.run.text
    assert (done.judged["decision"], done.judged["flags"]) == ("ACCEPTED", [])
