"""What cannot be forked is measured in interpreters, and the verdict says so."""

from __future__ import annotations

from pathlib import Path

from tests.sessions.paired import PLAIN, Gate, kernel, project_at

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
