"""The gate of a pull request: `pytest --kopt-base REF`, judged and gone without a trace."""

from __future__ import annotations

import json
import math
import re
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from .paired import (
    A_LITTLE_SLOWER,
    DIES_LATE,
    FASTER,
    OLD,
    PLAIN,
    PLAIN_CASE,
    PLAIN_CASES,
    SAME,
    SLOWER,
    Gate,
    cases,
    kernel,
    names,
    project_at,
)
from .project import NO_XDIST, TWO_WORKERS, Project

long = pytest.mark.long


# What changed, and what becomes of it.


TABLED_COST = 'json.loads((Path(__file__).resolve().parent / "table.json").read_text())["ms"]'
TABLED_IMPORTS = "import json\nfrom pathlib import Path"


def write_reached(project: Project, version: str, helper_ms: float, table_ms: float) -> None:
    """Write cases that a change reaches in different ways, and one that it does not."""
    helped = kernel("tiles.MS", "helped", name="helped", imports="from . import tiles")
    helped = helped.replace("spend(COST_MS,", "spend(tiles.MS + 0 * tiles.told(),")
    told = f'def told():\n    spend(0.0, "{version} helper")\n    return 0.0\n'
    project.write("helped/__init__.py", "")
    project.write("helped/kernel.py", helped)
    project.write("helped/tiles.py", f"from clock import spend\n\nMS = {helper_ms}\n\n\n{told}")
    project.write(
        "tabled/kernel.py", kernel(TABLED_COST, "tabled", name="tabled", imports=TABLED_IMPORTS)
    )
    project.write("tabled/table.json", json.dumps({"ms": table_ms}))
    project.write("far/kernel.py", kernel(OLD, "far", name="far"))


#: A kernel whose process says of every case that the change leaves it as it is.
SAYS_SAME = """

def _says_same(*versions, **more):
    raise affected_modules.SameVersion("source")


from pytest_kopt.cases.running import timed_versions
from pytest_kopt.versions import affected_modules

timed_versions.load_versions = _says_same
"""


def test_what_the_candidates_process_says_of_sameness_is_not_believed(gate: Gate) -> None:
    gate.project.write(PLAIN, kernel(SLOWER, "new") + SAYS_SAME)
    done = gate()
    assert done.run.code == 4, done.run.text
    assert "the change reaches the case without the candidate" in done.run.text


REACHED = (("helped.kernel", "helped"), ("tabled.kernel", "tabled"), ("far.kernel", "far"))


def test_what_a_change_reaches_is_compared_and_the_rest_is_not(tmp_path: Path) -> None:
    """In a place with a space and letters beyond ASCII; a case came and another went."""
    project = project_at(tmp_path / "ein Projekt für Ärmel" / "π")
    write_reached(project, "old", OLD, OLD)
    project.write("tests/test_reached.py", cases(*REACHED, ("kernels.plain", "plain")))
    project.commit_all("The base")
    write_reached(project, "new", SLOWER, FASTER)
    project.write("kernels/fresh.py", kernel(OLD, "fresh", name="fresh"))
    project.write("tests/test_reached.py", cases(*REACHED, ("kernels.fresh", "fresh")))
    project.git("rm", "--quiet", "tests/test_plain.py")
    gate = Gate(project)
    done = gate()
    assert done.run.code == 8, done.run.text
    verdict, shapes = done.judged, done.shapes
    schema = json.loads((files("pytest_kopt") / "schemas/verdict.schema.json").read_text())
    jsonschema.validate(verdict, schema)
    assert verdict["base"] == project.head()
    assert verdict["decision"] == "ROLLED_BACK" and verdict["compare"] == "paired"
    changes = {rows: shape["change_pct"] for rows, shape in shapes.items()}
    assert changes[1] == pytest.approx(100 * (OLD / SLOWER - 1)), "by a module it imports"
    assert changes[2] == pytest.approx(100 * (OLD / FASTER - 1)), "by a file it reads"
    assert changes[3] is None, "by nothing: not compared"
    whole = verdict["weighted_time"]
    times = 100 * ((OLD + OLD) / (SLOWER + FASTER) - 1)
    assert whole["metric"] == "Time of all cases together (ms)" and whole[
        "change_pct"
    ] == pytest.approx(times)
    assert "Time of all cases together (ms): " in done.run.out
    measured = {rows: (s["memory"], s["first_call_ms"]) for rows, s in shapes.items()}
    assert all(measured[1]) and all(measured[2]) and not any((*measured[3], *measured[4]))
    assert changes[4] is None, "new"
    found = [shapes[rows]["status"] for rows in (1, 2, 3, 4)]
    assert found == ["regressed", "improved", "unchanged", "unchanged"]
    both = math.sqrt(OLD / SLOWER * OLD / FASTER)
    assert verdict["aggregate"]["change_pct"] == pytest.approx(100 * (both - 1)), "of those two"
    assert re.search(r"^slower \(case ", done.run.out, re.MULTILINE), done.run.text
    assert "ROLLED_BACK" not in done.run.out
    assert verdict["flags"] == [
        "new case, not compared: tests/test_reached.py::test_fresh",
        "removed case: tests/test_plain.py::test_plain",
        "removed case: tests/test_reached.py::test_plain",
    ]
    replicas = [ran for ran in done.processes.values() if "old helper" in ran]
    both_versions = [ran for ran in replicas if "new helper" in ran]
    assert len(both_versions) >= 2
    alone = len(replicas) - len(both_versions)
    assert alone <= 2, "the incumbent alone: to judge results by, and to be timed"
    far = sum("far" in ran for ran in replicas)
    assert far <= 2, "proven to be unconcerned by the first replicate, or near its shapes"
    # What tries shapes nearby begins before it is known which cases the base has.
    assert sum("fresh" in ran for ran in replicas) <= 1


def test_a_case_that_is_gone_is_no_way_around_the_gate(gate: Gate) -> None:
    """It is deleted together with a slow-down of its shape."""
    project = gate.project
    project.write("kernels/other.py", kernel(OLD, "other", name="other"))
    project.write("tests/test_other.py", cases(("kernels.other", "other")))
    project.commit_all("Two kernels")
    project.git("rm", "--quiet", "tests/test_plain.py")
    project.write(PLAIN, kernel(SLOWER, "new"))
    done = gate()
    assert done.run.code == 8, done.run.text
    gone = "tests/test_plain.py::test_plain"
    assert done.judged["removed"] == [gone] and done.judged["decision"] == "ROLLED_BACK"
    told = next(line for line in done.run.out.splitlines() if line.startswith("refused ("))
    assert gone in told and "reaches no case" in told
    assert "--kopt-allow-removed" in done.judged["next_step"]
    done = gate("--kopt-allow-removed")
    assert done.run.code == 0, done.run.text
    assert done.judged["flags"] == [f"removed case: {gone}"] and done.judged["removed"] == []


#: What a test sets in the kernel's module before its case.
SETS = """\
import pytest
from kernels import other, plain


@pytest.fixture(autouse=True)
def setting(monkeypatch):
    monkeypatch.setattr(plain, "COST_MS", 250.0)
    monkeypatch.setattr(other, "cost", lambda: 250.0)
"""


def test_what_tests_set_in_the_kernels_module_holds_for_both_versions(gate: Gate) -> None:
    """The version that is slower by what it has itself is as fast by what the tests set.

    One test sets a constant, the other a function.
    """
    project = gate.project
    names = ("plain", "other")

    def write(milliseconds: float, who: str) -> None:
        costs = "\n\n\ndef cost():\n    return COST_MS\n"
        for name in names:
            text = kernel(milliseconds, who, name=name).replace("spend(COST_MS,", "spend(cost(),")
            project.write(f"kernels/{name}.py", text + costs)

    project.write("tests/conftest.py", SETS)
    project.write("tests/test_plain.py", cases(*((f"kernels.{name}", name) for name in names)))
    write(OLD, "old")
    project.commit_all("Tests that set the cost")
    write(SLOWER, "new")
    done = gate()
    assert done.run.code == 0, done.run.text
    assert [done.shapes[rows]["change_pct"] for rows in (1, 2)] == [pytest.approx(0)] * 2
    (flag,) = (flag for flag in done.judged["flags"] if "was set after" in flag)
    assert "kernels.other.cost was set after" in flag


#: The finder of an editable install of a package whose folder has another name.
MAPPING = """
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        file = {{"acme": "{root}/kernels/__init__.py", "acme.plain": "{root}/kernels/plain.py"}}
        return importlib.util.spec_from_file_location(name, file[name]) if name in file else None

sys.meta_path.append(Finder)
"""


def test_versions_of_a_package_that_is_installed_editable_are_told_apart(gate: Gate) -> None:
    gate.project.write("kernels/__init__.py", "")
    gate.project.write("tests/conftest.py", MAPPING.format(root=gate.project.root))
    gate.project.write("tests/test_plain.py", cases(("acme.plain", "plain")))
    gate.project.commit_all("Tests of the installed package")
    gate.project.write(PLAIN, kernel(SLOWER, "new"))
    done = gate()
    assert done.run.code == 8, done.run.text
    assert done.judged["shapes"][0]["status"] == "regressed"


def test_a_kernel_that_does_not_import_is_wrong(gate: Gate) -> None:
    """One of two, and that of a new file of cases; a test without cases may miss a package."""
    project = gate.project
    project.write("kernels/other.py", kernel(OLD, "other", name="other"))
    project.write("tests/test_other.py", cases(("kernels.other", "other")))
    project.commit_all("Two kernels")
    project.write("kernels/other.py", "import torch\n\ndef other(x:\n    return x\n")
    project.write("tests/test_third.py", cases(("kernels.third", "third")))
    project.write("tests/test_foreign.py", "import no_such_package\n")
    done = gate("--kopt-allow-removed")
    assert done.run.code == 1, done.run.text
    assert done.judged["decision"] == "REPAIR"
    texts = (
        "tests/test_other.py does not import: kernels/other.py:3: SyntaxError: ",
        "tests/test_third.py does not import: tests/test_third.py:4: ModuleNotFoundError: ",
    )
    assert all(text in done.judged["reason"] for text in texts), done.judged["reason"]
    assert "no_such_package" not in done.judged["reason"]


def test_a_kernel_that_ends_its_process_at_import_is_wrong(gate: Gate) -> None:
    gate.project.write(PLAIN, "import os\n\nos._exit(3)\n")
    done = gate()
    assert done.run.code == 1, done.run.text
    assert "the process was ended by exit status 3" in done.judged["reason"]


SKIPPED = '@pytest.mark.skip(reason="for later")\n@pytest.mark.kopt'
XFAILED = '@pytest.mark.xfail(reason="for later")\n@pytest.mark.kopt'


def test_a_case_that_is_skipped_or_fails_as_expected_counts_as_gone(gate: Gate) -> None:
    """One that the base does not pass either does not."""
    plain = cases(("kernels.plain", "plain"))
    without = plain.replace("2 * x.double()", "3 * x.double()")
    skipped, failing = (without.replace("@pytest.mark.kopt", mark) for mark in (SKIPPED, XFAILED))
    for name, text in (("first", plain), ("second", skipped), ("third", plain)):
        gate.project.write(f"tests/test_{name}.py", text)
    gate.project.commit_all("One of four is skipped")
    gate.project.write("tests/test_first.py", skipped)
    gate.project.write("tests/test_third.py", failing)
    done = gate()
    assert done.run.code == 8, done.run.text
    assert done.judged["removed"] == [f"tests/test_{n}.py::test_plain" for n in ("first", "third")]


NEW_CASES = """
@pytest.mark.kopt
@pytest.mark.parametrize("rows", [2, 3])
def test_new(kopt, rows):
    kopt(
        plain,
        inputs=lambda: (torch.ones(rows, 8),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": rows},
    )
"""


def test_a_new_case_that_is_wrong_makes_the_kernel_wrong(gate: Gate) -> None:
    gate.project.write("tests/test_plain.py", PLAIN_CASES + NEW_CASES)
    wrong = kernel(FASTER, "new").replace("return 2.0", "return (2.0 + (len(x) == 3))")
    gate.project.write(PLAIN, wrong)
    done = gate()
    assert done.run.code == 1, done.run.text
    assert "1 of 3 case(s) are FAIL: tests/test_plain.py::test_new[3]" in done.judged["reason"]
    for rows in (2, 3):
        told = f"new case, not compared: tests/test_plain.py::test_new[{rows}]"
        assert told in done.judged["flags"]


TWICE = "tests/test_twice.py"


def test_a_kernel_that_is_called_otherwise_than_by_the_bases_test(gate: Gate) -> None:
    """Compared where it can still be called as the base's test does, and else named."""
    project = gate.project
    for name in ("keeps", "twice"):
        project.write(f"kernels/{name}.py", kernel(name=name))
    called = (("kernels.plain", "plain"), ("kernels.keeps", "keeps"), ("kernels.twice", "twice"))
    project.write(TWICE, cases(*called))
    project.git("rm", "--quiet", "tests/test_plain.py")
    project.commit_all("Three kernels")
    text = project.read(TWICE).replace("lambda x:", "lambda x, scale=2.0:")
    for rows, name, arguments in ((2, "keeps", "x, scale=2.0"), (3, "twice", "x, scale")):
        scaled = kernel(FASTER, "new", name=name, factor="scale")
        project.write(f"kernels/{name}.py", scaled.replace(f"{name}(x)", f"{name}({arguments})"))
        text = text.replace(f"(torch.ones({rows}, 8),)", f"(torch.ones({rows}, 8), 2.0)")
    project.write(TWICE, text)
    done = gate()
    assert done.run.code == 8, done.run.text
    changes = {rows: shape["change_pct"] for rows, shape in done.shapes.items()}
    assert changes == {1: None, 2: pytest.approx(100 * (OLD / FASTER - 1)), 3: None}
    (told,) = (flag for flag in done.judged["flags"] if flag.startswith("changed together: "))
    assert told.startswith(f"changed together: not compared: {TWICE}::test_twice"), told
    assert "missing a required argument: 'scale'" in told
    assert done.judged["removed"] == [f"{TWICE}::test_twice"]


def test_a_moved_kernel_costs_its_own_cases_alone(gate: Gate) -> None:
    """The base's test of it does not import."""
    project = gate.project
    project.write("kernels/twice.py", kernel(name="twice"))
    both = cases(("kernels.plain", "plain"), ("kernels.twice", "twice"))
    project.write(TWICE, both.replace("ones(1, 8)", "ones(3, 8)").replace('"rows": 1', '"rows": 3'))
    project.commit_all("Two kernels")
    project.git("mv", "kernels/twice.py", "kernels/moved.py")
    project.replace(TWICE, "from kernels.twice", "from kernels.moved")
    project.write(PLAIN, kernel(SLOWER, "new"))
    done = gate("--kopt-allow-removed")
    assert done.run.code == 8, done.run.text
    changes = {rows: shape["change_pct"] for rows, shape in done.shapes.items()}
    assert changes == {1: pytest.approx(100 * (OLD / SLOWER - 1)), 2: None, 3: None}
    together = "changed together: not compared: "
    told = [flag for flag in done.judged["flags"] if flag.startswith(together)]
    assert len(told) == 2 and all("No module named 'kernels.twice'" in flag for flag in told), told


@pytest.mark.parametrize("edits_kernel", [True, pytest.param(False, marks=long)])
def test_a_case_that_its_changed_test_alone_fails_is_wrong(gate: Gate, edits_kernel: bool) -> None:
    if edits_kernel:
        gate.project.write(PLAIN, kernel(FASTER, "new"))
    gate.project.replace("tests/test_plain.py", "2 * x.double()", "3 * x.double()")
    done = gate()
    assert done.run.code == 1 and done.judged["outcome"] == "wrong", done.run.text
    assert done.shapes[1]["change_pct"] is None
    (flag,) = done.judged["flags"]
    assert flag.startswith(f"fails by its changed test: {PLAIN_CASE}: ")


def test_ids_that_differ_in_each_process_are_no_cases_that_are_gone(gate: Gate) -> None:
    """A renamed case is one that is gone, and a new one."""
    marked = '@pytest.mark.kopt\n@pytest.mark.parametrize("name", [NAME])'
    text = PLAIN_CASES.replace("(kopt)", "(kopt, name)").replace("@pytest.mark.kopt", marked)
    drawn = text.replace("NAME", "uuid.uuid4().hex")
    gate.project.write("tests/test_plain.py", f"import uuid\n{drawn}")
    gate.project.commit_all("A name that is drawn")
    gate.project.write(PLAIN, kernel(FASTER, "new"))
    done = gate()
    assert done.run.code == 4, done.run.text
    assert "test ids differ between two processes" in done.run.refusal
    assert "Fix: parametrize with ids= of constant text" in done.run.refusal
    gate.project.write("tests/test_plain.py", text.replace("NAME", '"first"'))
    gate.project.commit_all("A constant name")
    gate.project.write("tests/test_plain.py", text.replace("NAME", '"second"'))
    renamed = gate()
    assert renamed.run.code == 8, renamed.run.text
    assert renamed.judged["removed"] == ["tests/test_plain.py::test_plain[first]"]


HOLDS_ADDRESSES = """\
class Rows:
    def __init__(self, count):
        self.count = count


@pytest.mark.kopt
@pytest.mark.parametrize("rows", [Rows(1), Rows(2)], ids=repr)
def test_plain(kopt, rows):
    kopt(
        plain,
        inputs=lambda: (torch.ones(rows.count, 8),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": rows.count},
        domain="declared shapes",
    )
"""


@pytest.mark.parametrize("words", [pytest.param((), marks=long), TWO_WORKERS], ids=["serial", "n2"])
def test_ids_that_hold_an_address_are_the_same_in_each_process(
    gate: Gate, words: tuple[str, ...]
) -> None:
    """The test file changes too, so that the base's is another one."""
    project = gate.project
    head = PLAIN_CASES.partition("\n\n\n")[0]
    project.write("tests/test_plain.py", f"{head}\n\n\n{HOLDS_ADDRESSES}")
    project.commit_all("Ids that hold an address")
    project.write(PLAIN, kernel(SLOWER, "new"))
    project.replace("tests/test_plain.py", "import torch", "import torch\n\nMORE = [object()]")
    done = gate(*words)
    assert done.run.code == 8 and done.judged["flags"] == [], done.run.text
    loss = pytest.approx(100 * (OLD / SLOWER - 1))
    assert {rows: shape["change_pct"] for rows, shape in done.shapes.items()} == {1: loss, 2: loss}
    ids = [shape["nodeid"] for shape in done.judged["shapes"]]
    assert [nodeid.partition(" at ")[2] for nodeid in ids] == ["0x1>]", "0x2>]"]


@long
def test_a_gain_in_one_package_of_a_repository_over_two_workers(tmp_path: Path) -> None:
    """Started in a subdirectory, from a detached HEAD, against its parent."""
    project = project_at(tmp_path / "repository")
    parts = ("pyproject.toml", "tests", "kernels")
    (project.root / "packages/one").mkdir(parents=True)
    project.git("mv", *parts, "packages/one")
    project.commit_all("One package of many")
    project.write(f"packages/one/{PLAIN}", kernel(FASTER, "new"))
    project.commit_all("Faster")
    project.git("switch", "--quiet", "--detach")
    gate = Gate(project)
    words = ("--kopt-gate", "improve", ".", *TWO_WORKERS)
    done = gate(*words, base="HEAD~1", where="packages/one/tests")
    assert done.run.code == 0, done.run.text
    assert done.judged["decision"] == "ACCEPTED"
    assert done.judged["base"] == project.git("rev-parse", "HEAD~1").strip()
    assert done.shapes[1]["change_pct"] == pytest.approx(100 * (OLD / FASTER - 1))
    both = [ran for ran in done.processes.values() if ran == {"old", "new"}]
    assert len(both) == 3, "two replicas, one beside the incumbent alone, and what lies near"
    assert sum(ran == {"old"} for ran in done.processes.values()) == 2, "its types; the judge"


@long
def test_without_a_change_in_kernel_code_nothing_is_compared(gate: Gate) -> None:
    gate.project.write("README.md", "Another text.\n")
    gate.project.write("docs/new.md", "A text.\n")
    gate.project.write("tests/test_plain.py", PLAIN_CASES + "\n\nTIDIER = True\n")
    for ask, code, decision in (("no-regression", 0, "ACCEPTED"), ("improve", 9, "INCONCLUSIVE")):
        done = gate("--kopt-gate", ask)
        assert done.run.code == code, done.run.text
        assert done.judged["decision"] == decision and done.judged["compare"] == "none"
        assert "reaches no case" in done.judged["reason"]
        assert len(done.processes) == 2, "as today and as the base declares; no replica runs"


def test_a_case_that_the_base_fails_as_well_is_not_the_changes_fault(gate: Gate) -> None:
    gate.project.write(PLAIN, kernel(factor=2.1))
    gate.project.write("kernels/second.py", kernel(name="second"))
    gate.project.write("tests/test_second.py", cases(("kernels.second", "second")))
    gate.project.commit_all("One of two is wrong")
    gate.project.write(PLAIN, kernel(FASTER, "new", factor=2.1))
    done = gate()
    assert done.run.code == 4, done.run.text
    assert f"1 case(s) fail there in the same way: {PLAIN_CASE}: " in done.run.refusal
    gate.project.write("kernels/second.py", kernel(FASTER, "new", name="second", factor=2.1))
    done = gate()
    assert done.run.code == 1, done.run.text
    assert "1 of 1 case(s) are FAIL: tests/test_second.py" in done.judged["reason"]
    assert done.judged["flags"] == [f"fails at the base in the same way: {PLAIN_CASE}"]


@long
def test_a_kernel_that_dies_while_it_is_compared(gate: Gate) -> None:
    gate.trace.with_name("trace.deadly").touch()
    gate.project.write(PLAIN, kernel(FASTER, "new") + DIES_LATE)
    done = gate()
    assert done.run.code == 1, done.run.text
    assert done.judged["decision"] == "REPAIR" and done.shapes[1]["check"] == "ERROR"
    assert "SIGSEGV" in done.judged["reason"], done.judged["reason"]
    assert 'kernels/plain.py", line' in done.run.out


LOOKS_AT_ITS_CALLER = """\
import sys


def is_timed():
    return sys._getframe(2).f_code.co_name == "block"
"""


@pytest.mark.long
def test_what_only_reading_gives_away_is_noted(gate: Gate) -> None:
    project = gate.project
    project.write("tools/who.py", LOOKS_AT_ITS_CALLER)
    asks = kernel(SAME, "new", imports="from tools.who import is_timed")
    project.write(PLAIN, asks.replace("    spend(", "    is_timed()\n    spend("))
    done = gate()
    assert done.judged["decision"] != "REJECTED_OVERFIT", done.run.text
    (note,) = [flag for flag in done.judged["flags"] if flag.startswith("stack-inspection: ")]
    assert "tools/who.py:5" in note


@long
@pytest.mark.parametrize("words", [(), NO_XDIST], ids=["serial", "no xdist"])
@pytest.mark.parametrize(
    ("cost", "ask", "code", "decision"),
    [
        (A_LITTLE_SLOWER, "no-regression", 0, "ACCEPTED_WITH_NOTE"),
        (A_LITTLE_SLOWER, "improve", 8, "ROLLED_BACK"),
        (SAME, "improve", 9, "INCONCLUSIVE"),
    ],
)
def test_codes(
    gate: Gate, cost: float, ask: str, code: int, decision: str, words: tuple[str, ...]
) -> None:
    gate.project.write(PLAIN, kernel(cost, "new"))
    done = gate("--kopt-gate", ask, *words)
    assert done.run.code == code, done.run.text
    assert done.judged["decision"] == decision
    assert done.shapes[1]["change_pct"] == pytest.approx(100 * (OLD / cost - 1))


@long
@pytest.mark.parametrize("ref", ["topic-base", "v1-annotated", "short"])
def test_names_of_the_base(gate: Gate, ref: str) -> None:
    """The base is where the branch came from, not what the named branch has become since."""
    project = gate.project
    base = project.head()
    for words in (("branch", "topic-base"), ("tag", "-a", "-m", "x", "v1-annotated")):
        project.git(*words)
    project.git("switch", "--quiet", "-c", "topic")
    project.write(PLAIN, kernel(FASTER, "new"))
    project.commit_all("Faster")
    project.git("switch", "--quiet", "topic-base")
    project.write(PLAIN, kernel(FASTER / 2, "meanwhile"))
    project.commit_all("What the others did meanwhile")
    project.git("switch", "--quiet", "topic")
    done = gate(base={"short": base[:8]}.get(ref, ref))
    assert done.run.code == 0 and done.judged["base"] == base, done.run.text
    assert names(done.trace) == {"old", "new"}


@long
def test_a_project_behind_a_link(gate: Gate, tmp_path: Path) -> None:
    gate.project.write(PLAIN, kernel(FASTER, "new"))
    (tmp_path / "link").symlink_to(gate.project.root)
    (tmp_path / "link-private").symlink_to(gate.private)
    for where in (".", "tests"):
        done = Gate(Project(tmp_path / "link"))(where=where)
        assert done.run.code == 0, done.run.text
        assert done.shapes[1]["change_pct"] == pytest.approx(100 * (OLD / FASTER - 1))
        assert "two processes" not in str(done.judged["flags"])


@long
def test_a_case_that_is_a_lambda_is_compared_in_two_processes(gate: Gate) -> None:
    """And the verdict says what to write instead."""
    text = PLAIN_CASES.replace("        plain,\n", "        lambda x: plain(x),\n")
    gate.project.write("tests/test_plain.py", text)
    gate.project.commit_all("A lambda")
    gate.project.write(PLAIN, kernel(FASTER, "new"))
    done = gate()
    assert done.run.code == 0, done.run.text
    (flag,) = done.judged["flags"]
    assert "two processes" in flag and "lambda" in flag and "plain function" in flag
    assert done.shapes[1]["change_pct"] == pytest.approx(100 * (OLD / FASTER - 1))
