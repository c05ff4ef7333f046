"""Workspace mode: rounds on copies in the campaign's directory, and the gate back upstream."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from .paired import FASTER, PLAIN, Gate, kernel, project_at
from .project import CAMPAIGN, SCRIPT, Project, Run

INIT = (
    *("init", CAMPAIGN, "--op", "plain", "--kernel", PLAIN, "--backend", "TORCH", "--gpu", "cpu"),
    *("--tests", "tests/test_plain.py", "--mode", "workspace"),
)
STORED = ("--kopt-compare", "stored")


class Upstream:
    """An upstream project, and the workspace of its campaign."""

    def __init__(self, directory: Path) -> None:
        self.project = project_at(directory / "project")
        self.project.write("benchmarks/bench_plain.py", "import kernels.plain\n")
        self.project.write("kernels/unused.py", "raise RuntimeError('not for the workspace')\n")
        self.project.commit_all("More")
        self._gate = Gate(self.project)
        self.variables = {**self._gate.variables(), "PYTHONPATH": str(self.project.root)}

    @property
    def workspace(self) -> Project:
        return Project(self.project.campaign)

    def init(self, *words: str) -> Run:
        run = self.project.kopt(*INIT, *words)
        assert run.code == 0, run.text
        return run

    def accept(self, cost: float) -> None:
        """Play the baseline, and a round that is accepted, in the workspace."""
        place = self.workspace
        assert (run := place.pytest("--kopt-round", "1", **self.variables)).code == 0, run.text
        place.write(f"src/{PLAIN}", kernel(cost, "new"))
        run = place.pytest("--kopt-round", "next", *STORED, **self.variables)
        assert run.code == 0, run.text

    def integrate(self, *words: str, **variables: str) -> Run:
        named = ("--kopt-campaign", CAMPAIGN, "--kopt-round", "final")
        return self.project.pytest(*named, *words, **self.variables, **variables)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path)


@pytest.mark.long
def test_a_workspace_is_a_minimal_project_that_says_where_it_comes_from(upstream: Upstream) -> None:
    commit = upstream.project.head()
    upstream.init("--bench", "benchmarks/bench_plain.py")
    place = upstream.workspace.root
    files = {
        path.relative_to(place).as_posix()
        for room in ("src", "tests", "bench")
        for path in (place / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    copied = {
        f"src/{PLAIN}": PLAIN,
        f"src/{SCRIPT}": SCRIPT,  # a plugin that upstream's pytest loads
        "src/kernels/__init__.py": "kernels/__init__.py",
        "tests/clock.py": "tests/clock.py",
        "tests/test_plain.py": "tests/test_plain.py",
        "bench/benchmarks/bench_plain.py": "benchmarks/bench_plain.py",
    }
    assert files == {*copied}
    manifest = yaml.safe_load((place / "manifest.yaml").read_text())
    assert manifest["execution_mode"] == "workspace"
    assert manifest["kernel_source"] == [f"src/{PLAIN}"]
    assert manifest["upstream"] == {
        "root": "../../..",
        "commit": commit,
        "kernel_source": [PLAIN],
        "tests": "tests/test_plain.py",
        "test_command": None,
        "files": {
            where: {"path": path, "sha256": hashlib.sha256(bytes_of(upstream, path)).hexdigest()}
            for where, path in copied.items()
        },
    }
    assert upstream.project.git("status", "--porcelain") == ""

    run = upstream.project.kopt("status")
    assert run.code == 0 and f"cd {place} && pytest" in run.out and "provisional" in run.out
    run = upstream.project.pytest("--kopt-round", "1", **upstream.variables)
    assert run.code == 4 and f"cd {place}" in run.refusal


def bytes_of(upstream: Upstream, path: str) -> bytes:
    return (upstream.project.root / path).read_bytes()


@pytest.mark.long
def test_only_the_gate_upstream_accepts(upstream: Upstream) -> None:
    """The kernel goes back and nothing else; what moved meanwhile is named."""
    upstream.init()
    before = upstream.project.head()
    upstream.accept(FASTER)
    assert upstream.project.head() == before and upstream.project.git("status", "-s") == ""
    run = upstream.workspace.pytest("--kopt-round", "final", **upstream.variables)
    assert run.code == 4 and f"cd {upstream.project.root}" in run.refusal

    original = upstream.project.read("tests/test_plain.py")
    upstream.project.write("tests/test_plain.py", original + "# moved on\n")
    run = upstream.integrate()
    assert run.code == 4 and "upstream has moved: tests/test_plain.py" in run.refusal
    assert upstream.project.git("diff", "--name-only").split() == ["tests/test_plain.py"]
    upstream.project.write("tests/test_plain.py", original)

    run = upstream.integrate("--kopt-no-apply")
    assert run.code == 0 and upstream.project.git("status", "-s") == "", run.text
    run = upstream.integrate()
    assert run.code == 0, run.text
    assert upstream.project.git("show", "--format=", "--name-only").split() == [PLAIN]
    assert upstream.project.read(PLAIN) == kernel(FASTER, "new")
    assert upstream.project.git("status", "-s") == ""
    events = [event["event"] for event in upstream.project.ledger()]
    assert events[-6:] == ["integrating", "final", "integrated"] * 2
    assert upstream.project.ledger()[-1]["git_commit"] == upstream.project.head()
    assert upstream.project.head()[:12] in upstream.project.kopt("status").out
    for place in (upstream.project, upstream.workspace):
        run = place.pytest("--kopt-campaign", CAMPAIGN, "--kopt-round", "final")
        assert run.code == 4 and f"kopt init NEW --from {CAMPAIGN}" in run.refusal


@pytest.mark.long
def test_a_kernel_that_upstream_does_not_take_is_taken_out_again(upstream: Upstream) -> None:
    """Its own tests fail there; or the session is killed with the kernel in upstream's tree."""
    # The session starts the process that runs the command, which unconfined may kill it.
    kills = '[ -z "$KILL" ] || kill -9 $(cut -d " " -f 4 /proc/$PPID/stat)'
    upstream.project.write("all.sh", f"{kills}\nexit ${{STATUS:-0}}\n")
    upstream.project.commit_all("Add the full suite")
    upstream.init("--test", "sh all.sh")
    upstream.accept(FASTER)
    original, head = upstream.project.read(PLAIN), upstream.project.head()

    run = upstream.integrate(STATUS="1")
    assert run.code == 1 and "sh all.sh" in run.out, run.text
    assert upstream.project.read(PLAIN) == original and upstream.project.head() == head
    assert upstream.project.ledger()[-1]["restored"] == [PLAIN]

    assert upstream.integrate("-o", "kopt_isolation=off", KILL="1").code == -9
    assert upstream.project.read(PLAIN) == kernel(FASTER, "new")
    assert "was cut off" in upstream.project.kopt("status").out
    run = upstream.integrate(STATUS="1")
    assert run.code == 1 and upstream.project.read(PLAIN) == original
    run = upstream.integrate()
    assert run.code == 0 and upstream.project.read(PLAIN) == kernel(FASTER, "new")
    assert upstream.project.head() != head


@pytest.mark.long
def test_what_cannot_be_taken_out_of_its_project_is_named(upstream: Upstream) -> None:
    """Nothing is left behind; the modes' options are held apart."""
    project = upstream.project
    project.write("tests/test_plain.py", project.read("tests/test_plain.py") + "# edited\n")
    before = project.contents()
    run = project.kopt(*INIT)
    assert run.code == 4 and "tests/test_plain.py differs from HEAD" in run.refusal
    run = project.kopt(*INIT[:-2], "--bench", "benchmarks/bench_plain.py")
    assert run.code == 4 and "--mode workspace" in run.refusal
    assert project.contents() == before

    project.write("tests/test_plain.py", "open('data.txt')\n" + project.read("tests/test_plain.py"))
    project.write("data.txt", "not a module\n")
    project.commit_all("Read a file")
    before = project.contents()
    run = project.kopt(*INIT)
    assert (
        run.code == 4 and "cannot run outside of the project" in run.text and "data.txt" in run.text
    )
    assert project.contents() == before
