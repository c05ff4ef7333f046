"""`--kopt-candidates`: several versions race in one round, and the best is judged as any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .once import made_once
from .paired import FASTER, OLD, PLAIN, SAME, SLOWER, Gate, kernel, project_at
from .project import Project, Run

NAME = "plain"
MUCH_FASTER = 125.0
CRASHES = kernel(FASTER, "crashes") + "\nimport os\n\nos.abort()\n"


class Races:
    """A campaign whose baseline is measured, in a project with a scripted clock."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._variables = Gate(project).variables()

    @classmethod
    def begun(cls, root: Path, baseline: str = "", table: str = "") -> Races:
        """Begin with another baseline than OLD, and with the path of a table that it reads."""
        races = cls(project_at(root))
        project = races.project
        if table:
            project.write(table, str(OLD))
        if baseline:
            project.write(PLAIN, baseline)
            project.commit_all("Another baseline")
        words = ["--op", "plain", "--backend", "TORCH", "--gpu", "cpu", "--kernel", PLAIN]
        words += ["--kernel", table] if table else []
        done = project.kopt("init", NAME, *words, **races._variables)
        assert done.code == 0, done.text
        done = races.round("--kopt-round", "1")
        assert done.code == 0, done.text
        return races

    def round(self, *words: str) -> Run:
        return self.project.pytest("--kopt-campaign", NAME, *words, **self._variables)

    def candidate(self, name: str, text: str, path: str = PLAIN) -> str:
        """Write a candidate and return its folder."""
        self.project.write(f"candidates/{name}/{path}", text)
        return f"candidates/{name}"

    def race(self, *folders: str, words: tuple[str, ...] = ()) -> Run:
        given = (word for folder in folders for word in ("--kopt-candidates", folder))
        return self.round("--kopt-round", "next", *given, *words)

    def refused(self, *folders: str, words: tuple[str, ...] = ()) -> Run:
        """Ask for a race that ends before a process begins."""
        given = (word for folder in folders for word in ("--kopt-candidates", folder))
        return self.project.refuse("--kopt-campaign", NAME, "--kopt-round", "next", *given, *words)

    @property
    def verdict(self) -> dict[str, Any]:
        path = self.project.root / f"agent/workspace/{NAME}/rounds/round-2/verdict.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@pytest.fixture
def races(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Races:
    recipes = {"races": lambda path: Races.begun(path / "project")}
    made = made_once(tmp_path_factory, "races", recipes)
    return Races(Project(made / "project").copy(tmp_path / "project"))


@pytest.mark.long
def test_the_best_of_a_field_is_the_rounds_candidate(races: Races) -> None:
    """A wrong and a crashing one take nobody with them; equal ones are raced once."""
    best = kernel(MUCH_FASTER, "best")
    found = races.race(
        races.candidate("faster", kernel(FASTER, "faster")),
        races.candidate("wrong", kernel(MUCH_FASTER, "wrong", factor=3.0)),
        races.candidate("best", best),
        races.candidate("slower", kernel(SLOWER, "slower")),
        races.candidate("again", best + "# The same.\n"),
        races.candidate("crashes", CRASHES),
    )
    assert found.code == 0, found.text
    verdict = races.verdict
    assert verdict["decision"] == "ACCEPTED"
    assert verdict["aggregate"]["change_pct"] == pytest.approx(100 * (OLD / MUCH_FASTER - 1))
    told = {item["name"]: item for item in verdict["candidates"]}
    first = verdict["candidates"][0]
    assert first["name"] == "candidates/best, candidates/again"
    assert (first["place"], first["decision"]) == (1, "ACCEPTED")
    assert first["change_pct"] == verdict["aggregate"]["change_pct"]
    assert "slower than candidates/best" in told["candidates/faster"]["reason"]
    assert told["candidates/faster"]["change_pct"] == pytest.approx(100 * (OLD / FASTER - 1))
    assert told["candidates/slower"]["decision"] == "ROLLED_BACK"
    assert told["candidates/wrong"]["decision"] == "REPAIR"
    assert "FAIL" in told["candidates/wrong"]["reason"]
    assert told["candidates/crashes"]["decision"] == "REPAIR"
    assert races.project.git("show", f"HEAD:{PLAIN}") == best
    kept = races.project.root / f"agent/workspace/{NAME}/rounds/round-2/artifacts/attempt-1"
    for item in verdict["candidates"]:
        own = kept / "candidates" / str(item["place"])
        assert (own / "kernel_snapshot" / PLAIN).is_file()
    assert "candidate 2, candidates/faster: ROLLED_BACK" in found.out


def test_where_nobody_is_faster_the_incumbent_stays(races: Races) -> None:
    """A race that was killed leaves a candidate in the tree: the next one begins all the same."""
    before = races.project.read(PLAIN)
    races.project.write(PLAIN, kernel(SLOWER, "slower"))
    found = races.race(
        races.candidate("slower", kernel(SLOWER, "slower")),
        races.candidate("slowest", kernel(2 * OLD, "slowest")),
    )
    assert found.code == 8, found.text
    assert races.verdict["candidates"][0]["name"] == "candidates/slower"
    assert races.project.read(PLAIN) == before


BAD: dict[str, tuple[Callable[[Races], tuple[str, ...]], tuple[str, ...]]] = {
    "no file": (
        lambda races: (str(races.project.write("candidates/empty/.keep", "").parent),),
        ("'.keep'", "kernel_source"),
    ),
    "the incumbent": (
        lambda races: (races.candidate("a", kernel() + "# A remark.\n"),),
        ("the same code as round 1",),
    ),
    "other files": (
        lambda races: (races.candidate("a", "A = 1\n", "kernels/other.py"),),
        ("'kernels/other.py', which is no kernel file", PLAIN),
    ),
    "neither": (lambda _: ("nowhere",), ("neither a folder nor a ref",)),
    "an empty name": (lambda _: ("",), ("is no kernel file", PLAIN)),
}


def test_what_cannot_race_is_refused(races: Races) -> None:
    for name, (prepare, parts) in BAD.items():
        words = prepare(races)
        before = races.project.contents()
        found = races.refused(*words)
        assert found.code == 4, (name, found.text)
        assert all(part in found.refusal for part in parts), (name, found.refusal)
        assert races.project.contents() == before, name
        shutil.rmtree(races.project.root / "candidates", ignore_errors=True)
    folder = races.candidate("a", kernel(FASTER, "a"))
    for words, part in (
        (("--kopt-no-apply",), "remove --kopt-no-apply"),
        (("--kopt-compare", "stored"), "--kopt-compare paired"),
    ):
        found = races.refused(folder, words=words)
        assert found.code == 4 and part in found.refusal, found.text
    found = races.project.refuse("--kopt-round", "final", "--kopt-candidates", folder)
    assert found.code == 4 and "--kopt-round next" in found.refusal
    races.project.write(PLAIN, kernel(SAME, "edited"))
    found = races.refused(folder)
    assert found.code == 4 and f"kopt restore {NAME} 1" in found.refusal, found.text


def test_an_open_round_is_mended_before_anything_races(races: Races) -> None:
    """What waits for its repair is in the tree: the winner would be put over it."""
    races.project.write(PLAIN, kernel(FASTER, "wrong", factor=3.0))
    assert races.round("--kopt-round", "next").code == 1
    folder = races.candidate("a", kernel(FASTER, "a"))
    before = races.project.contents()
    found = races.refused(folder)
    assert found.code == 4, found.text
    assert "round 2 is open" in found.refusal and "kopt discard" in found.refusal
    assert races.project.contents() == before


@pytest.mark.long
def test_a_race_over_workers_ends_as_one_without(races: Races) -> None:
    """Under `-n` the candidates are placed, told and committed as in one process."""
    best = kernel(MUCH_FASTER, "best")
    found = races.race(
        races.candidate("faster", kernel(FASTER, "faster")),
        races.candidate("best", best),
        races.candidate("slower", kernel(SLOWER, "slower")),
        words=("-n", "2"),
    )
    assert found.code == 0, found.text
    told = [(item["name"], item["decision"]) for item in races.verdict["candidates"]]
    assert told == [
        ("candidates/best", "ACCEPTED"),
        ("candidates/faster", "ROLLED_BACK"),
        ("candidates/slower", "ROLLED_BACK"),
    ]
    assert races.project.git("show", f"HEAD:{PLAIN}") == best


@pytest.mark.long
@pytest.mark.parametrize(
    ("table", "reads"),
    [
        ("cost.txt", "open('cost.txt')"),
        (
            "kernels/cost.txt",
            "(__import__('pathlib').Path(__file__).with_name('cost.txt')).open()",
        ),
    ],
    ids=["in the current folder", "next to the source"],
)
def test_candidates_that_differ_in_a_data_file(tmp_path: Path, table: str, reads: str) -> None:
    """They share a process, and with it the current folder: its file would be the incumbent's."""
    cost = f"float({reads}.read())"
    races = Races.begun(tmp_path / "project", kernel(cost), table)
    found = races.race(
        races.candidate("faster", str(FASTER), table), races.candidate("best", "125.0", table)
    )
    if table == "cost.txt":
        assert found.code == 4, found.text
        assert "cannot be measured in one process: candidates/" in found.refusal
        assert "a working folder of its own, to read cost.txt" in found.refusal
        assert "a round of its own" in found.refusal
        assert races.project.read(PLAIN) == kernel(cost) and races.project.read(table) == str(OLD)
    else:
        assert found.code == 0, found.text
        told = {item["name"]: item["place"] for item in races.verdict["candidates"]}
        assert told == {"candidates/best": 1, "candidates/faster": 2}
