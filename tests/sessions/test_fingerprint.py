"""An edited harness is refused before anything runs; an edit by the kernel rejects the round."""

from __future__ import annotations

import json

import pytest

from pytest_kopt.processes.isolation import lacking

from .project import CAMPAIGN, CASES, KERNEL, TWO_WORKERS, Project
from .sources import doubled_kernel

FASTER = doubled_kernel(125.0)


def refused(project: Project, *parts: str, words: tuple[str, ...] = ()) -> None:
    """Ask for round 2 and see that it is refused for these reasons and uses nothing up."""
    project.write(KERNEL, FASTER)
    obstacle = json.loads(project.kopt("status", "--json").out)["obstacle"]
    project.forget_measuring()
    before = project.contents()
    run = project.ask(2, *words)
    assert run.code == 4, run.text
    assert project.contents() == before and not project.was_measured
    for part in (*parts, f"--from {CAMPAIGN}"):
        assert part in run.refusal and part in obstacle


def test_an_edited_test_and_a_new_conftest(started: Project) -> None:
    started.replace(CASES, "2 * x.double()", "2 * x.double() + 0")
    started.write("conftest.py", "")
    refused(started, f"{CASES} was edited", "conftest.py was added")


def test_a_setting_and_a_manifest_key(started: Project) -> None:
    started.replace("pyproject.toml", '"-p", "no:cacheprovider", ', "")
    started.edit_manifest(env={"BACKEND": "FAST"}, max_iterations=7)
    parts = ("pytest setting addopts", 'manifest key env: {} -> {"BACKEND": "FAST"}')
    refused(started, *parts, words=TWO_WORKERS)


def test_what_is_no_harness_may_change(started: Project) -> None:
    """The other keys of the manifest become events; the rest is nobody's business."""
    started.edit_manifest(max_iterations=7)
    started.write("README.md", "Another text.\n")
    started.write("tests/test_unused.py", "def test_nothing():\n    pass\n")
    started.replace(
        "pyproject.toml", "[tool.pytest.ini_options]", "\n# new\n[tool.pytest.ini_options]"
    )
    started.write(KERNEL, FASTER)
    run = started.play(2)
    assert run.code == 0, run.text
    (event,) = [event for event in started.ledger() if event["event"] == "manifest_changed"]
    assert event["values"] == {"max_iterations": 7}


def test_the_kernel_that_edits_the_harness_while_it_runs(started: Project) -> None:
    spoil = "from pathlib import Path; Path('tests/cases_helper.py').touch(); "
    spoil += "Path('conftest.py').write_text('')"
    started.write(KERNEL, doubled_kernel(125.0, first=spoil))
    if not lacking():
        run = started.round(2)
        assert run.code == 1 and "Permission denied" in run.out, run.text
        assert not (started.root / "conftest.py").exists()
    run = started.round(2, "-o", "kopt_isolation=off")
    assert run.code == 8, run.text
    assert "conftest.py was added" in " ".join(started.verdict(2)["flags"])


def test_a_reference_beside_the_kernel_and_data_of_a_conftest_belong_to_it(fresh: Project) -> None:
    """Both are found by what ran at the baseline; what the kernel reads is to be declared."""
    reads = "from pathlib import Path\n\n{} = float(Path(__file__).with_name('{}').read_text())\n"
    fresh.write("kernels/__init__.py", "from kernels.doubled import doubled\n")
    fresh.write(
        "kernels/naive.py", "from . import wide\n\n\ndef naive(x):\n    return wide.wide(x) * 2\n"
    )
    fresh.write("kernels/wide.py", "def wide(x):\n    return x.double()\n")
    fresh.write("conftest.py", reads.format("SCALE", "scale.txt"))
    fresh.write("scale.txt", "1.0")
    fresh.write("kernels/tile.txt", "1.0")
    fresh.write(KERNEL, reads.format("TILE", "tile.txt") + doubled_kernel())
    fresh.replace(CASES, "lambda x: 2 * x.double()", "naive")
    fresh.write(CASES, "from kernels.naive import naive\n" + fresh.read(CASES))
    fresh.commit_all("A reference beside the kernel")
    run = fresh.round(1)
    assert run.code == 0, run.text
    fresh.write(KERNEL, FASTER)
    for name in ("kernels/naive.py", "kernels/wide.py", "scale.txt"):
        text = fresh.read(name)
        fresh.write(name, text + " ")
        refused(fresh, f"{name} was edited")
        fresh.write(name, text)
    fresh.write(KERNEL, reads.format("TILE", "tile.txt") + FASTER)
    fresh.write("kernels/tile.txt", "2.0")
    run = fresh.round(2)
    assert run.code == 4 and "kernels/tile.txt is not as round 1" in run.refusal


def test_a_helper_that_the_tests_import_too_is_to_be_declared(fresh: Project) -> None:
    """Not so a reference that the kernel imports: a kernel may not hold what is right."""
    helpers = ("kernels/naive.py", "kernels/tiles.py")
    fresh.write("kernels/naive.py", "def naive(x):\n    return 2 * x.double()\n")
    fresh.write("kernels/tiles.py", "STEP = 1\n")
    uses = "from kernels.naive import naive\nfrom kernels.tiles import STEP\n"
    fresh.write(KERNEL, uses + doubled_kernel())
    fresh.replace(CASES, "lambda x: 2 * x.double()", "naive")
    fresh.write(CASES, uses + fresh.read(CASES))
    fresh.commit_all("Helpers")
    assert fresh.round(1).code == 0
    declared = f"kopt init NEW --from {CAMPAIGN} --kernel {KERNEL} --kernel "
    for path, is_kernel in zip(helpers, (False, True), strict=True):
        text = fresh.read(path)
        fresh.write(path, text + "# edited\n")
        refused(fresh, f"{path} was edited")
        fresh.write(KERNEL, uses + FASTER)
        assert (f"{declared}{path}" in fresh.ask(2).refusal) == is_kernel
        fresh.write(path, text)
    fresh.write(KERNEL, uses + doubled_kernel())
    told = fresh.kopt("init", "again", "--from", CAMPAIGN).out
    assert f"the kernel imports clock.py, {', '.join(helpers)} from outside kernel_source" in told


READS = "TILE = int(open('tiles.ini').read())\n"


@pytest.mark.parametrize(
    ("path", "uses", "used_by"),
    [
        ("kernels/tiles.py", ("import kernels.tiles\n", "import kernels.tiles\n"), "both"),
        ("tiles.ini", (READS, ""), "round 1 uses it"),
        pytest.param(
            "tiles.ini", ("", READS), "only the candidate uses it", marks=pytest.mark.long
        ),
    ],
    ids=["both import it", "the best opens it", "the candidate opens it"],
)
def test_what_is_not_declared_is_the_same_for_both_versions(
    fresh: Project, path: str, uses: tuple[str, str], used_by: str
) -> None:
    fresh.write(path, "1\n")
    fresh.write(KERNEL, uses[0] + doubled_kernel())
    fresh.commit_all("Use tiles")
    assert fresh.round(1).code == 0
    fresh.write(path, "2\n")
    fresh.write(KERNEL, uses[1] + FASTER)
    before = fresh.contents()
    run = fresh.round(2)
    assert run.code == 4 and f"{path} is not as round 1" in run.refusal, run.text
    assert used_by in run.refusal and f"--kernel {KERNEL} --kernel {path}" in run.refusal
    assert fresh.contents() == before
    fresh.write(path, "1  # of all\n" if path.endswith(".py") else "1\n")
    run = fresh.round(2)
    assert run.code == 0, run.text


#: A compiler is another process, whose writes nobody hears.
BUILDS = """
import os, pathlib, subprocess

_BUILT = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"], "m", "m.so")
_BUILT.parent.mkdir(parents=True, exist_ok=True)
subprocess.run(["sh", "-c", "echo $1 > $0", _BUILT, {version!r}], check=True)
_BUILT.read_text()
"""


def test_what_a_compiler_keeps_inside_of_the_project_belongs_to_no_version(fresh: Project) -> None:
    built = {"TORCH_EXTENSIONS_DIR": str(fresh.root / "build" / "extensions")}
    fresh.write(KERNEL, BUILDS.format(version="first") + doubled_kernel())
    fresh.commit_all("Build")
    assert fresh.round(1, **built).code == 0
    fresh.write(KERNEL, BUILDS.format(version="second") + FASTER)
    run = fresh.round(2, **built)
    assert run.code == 0, run.text
    assert [*fresh.evidence(2)["session"]["harness"]["dependencies"]] == ["kernels/__init__.py"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("bucket", "said"),
    [
        ("W2", "- Decision: REJECT-as-overfit\n"),
        ("W1", "at most quant time / step time = 2.500 %\n- Decision: ACCEPT-with-asterisk\n"),
    ],
)
def test_the_bucket_of_the_notes_is_reported_and_refuses_nothing(
    started: Project, bucket: str, said: str
) -> None:
    started.write(KERNEL, FASTER)
    notes = started.notes(bucket=bucket, w1_quant_ms=0.5, step_ms=20)
    run = started.play(2, "--kopt-notes", notes)
    assert run.code == 0, run.text
    assert started.verdict(2)["decision"] == "ACCEPTED"
    assert said in (started.campaign / "rounds/round-2/summary.md").read_text()
