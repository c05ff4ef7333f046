"""Input that cannot be used: exit 4, one message, nothing measured, nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from .project import CAMPAIGN, CASES, KERNEL, SERIAL, TWO_WORKERS, Project, Run
from .sources import doubled_kernel

Spoil = Callable[[Project], object]


def refused(project: Project, *words: str) -> str:
    """Run pytest, see that it refuses and leaves everything as it was, and return the message."""
    return _refused(project, project.refuse, words)


def refused_later(project: Project, *words: str, measured: bool = False) -> str:
    """Do so where it is seen only once cases run."""
    return _refused(project, project.pytest, words, measured=measured)


def _refused(
    project: Project, pytest: Callable[..., Run], words: tuple[str, ...], *, measured: bool = False
) -> str:
    project.forget_measuring()
    before = project.contents()
    run = pytest(*words)
    assert run.code == 4, run.text
    message = run.refusal
    assert project.was_measured <= measured, "nothing may be measured"
    project.forget_measuring()
    assert project.contents() == before
    return message


def named(*words: str) -> tuple[str, ...]:
    """The words of a run of the campaign."""
    return ("--kopt-campaign", CAMPAIGN, *words)


def says(message: str, *parts: str) -> None:
    """What is wrong, where, and what would be legal all stand in one message."""
    for part in parts:
        assert part in message


def test_notes_outside_of_the_project_do_not_hide_it(baseline: Project, tmp_path: Path) -> None:
    notes = tmp_path / "notes.yaml"
    notes.write_text("nonsense: 1\n")
    message = refused(baseline, *named("--kopt-round", "2", "--kopt-notes", str(notes)))
    says(message, f"took {notes} for a path", f"--kopt-notes={notes}")
    message = refused(baseline, *named("--kopt-round", "2", f"--kopt-notes={notes}"))
    says(message, "nonsense")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("nowhere", ("campaign: 'nowhere'", CAMPAIGN)),
        (f"../workspace/{CAMPAIGN}", ("campaign: the name '../workspace", "letters, digits")),
    ],
)
def test_campaign_names(baseline: Project, name: str, parts: tuple[str, ...]) -> None:
    says(refused(baseline, "--kopt-campaign", name, "--kopt-round", "2"), *parts)


@pytest.mark.parametrize(
    ("round", "parts"),
    [
        ("0", ("'0'", "--kopt-round", "1 to 9999")),
        ("-1", ("'-1'", "--kopt-round", "1 to 9999")),
        ("two", ("'two'", "--kopt-round", "1 to 9999, next or final")),
        ("3", ("round 3", "skip round 2", "--kopt-round", "2 (or next)")),
        ("1", ("round 1", "already decided (BASELINE)", "2 (or next)")),
        ("1.5", ("'1.5'", "1 to 9999")),
        ("10000", ("'10000'", "1 to 9999")),
        ("٢", ("'٢'", "1 to 9999")),
    ],
)
def test_round_numbers(baseline: Project, round: str, parts: tuple[str, ...]) -> None:
    says(refused(baseline, *named(f"--kopt-round={round}")), *parts)


def test_a_round_needs_a_baseline(fresh: Project) -> None:
    for words in (SERIAL, TWO_WORKERS):
        message = refused(fresh, *named("--kopt-round", "2"), *words)
        says(message, "round 2", "no baseline", "1, the baseline")


def key(**keys: object) -> Spoil:
    """Set keys of the manifest."""
    return lambda project: project.edit_manifest(**keys)


def text(content: str) -> Spoil:
    """Put another text in the manifest's place."""
    return lambda project: (project.campaign / "manifest.yaml").write_text(content)


def link(project: Project) -> None:
    outside = project.root.parent / "outside.py"
    outside.write_text("")
    (project.root / "kernels/link.py").symlink_to(outside)
    project.edit_manifest(kernel_source=["kernels/link.py"])


MANIFEST = "manifest.yaml"

MANIFESTS: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "broken": (text("target_op: [unclosed\n"), (MANIFEST, "line 2", "no usable YAML")),
    "hostile": (
        text("target_op: !!python/object/apply:os.system ['touch hacked']\n"),
        (MANIFEST, "line 1", "python/object"),
    ),
    "kernel linked": (link, ("kernels/link.py", "outside the repository", "below")),
    "policy": (key(policy="generous"), ("'generous'", "kernel-opt, primus")),
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_manifests(started: Project, what: str) -> None:
    spoil, parts = MANIFESTS[what]
    spoil(started)
    says(refused(started, *named("--kopt-round", "2")), *parts)
    assert not (started.root / "hacked").exists()


def spoil_ledger(project: Project) -> None:
    path = project.campaign / "ledger.jsonl"
    first, rest = path.read_text().split("\n", 1)
    path.write_text(f'{first}\n{{"event": "invented"}}\n{rest}')


def truncate(name: str) -> Spoil:
    """Cut the end off a file of the baseline."""

    def spoil(project: Project) -> None:
        path = project.campaign / "rounds/round-1/artifacts/attempt-1" / name
        path.write_bytes(path.read_bytes()[:-20])

    return spoil


def remove(name: str) -> Spoil:
    """Take a file of the baseline away."""
    return lambda project: (project.campaign / "rounds/round-1/artifacts/attempt-1" / name).unlink()


SPOILT_CAMPAIGNS: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "missing csv": (remove("benchmark.csv"), ("round-1/artifacts/attempt-1/benchmark.csv",)),
    "truncated csv": (truncate("benchmark.csv"), ("attempt-1/benchmark.csv", "was changed since")),
    "truncated evidence": (
        truncate("evidence.json"),
        ("attempt-1/evidence.json", "was changed since"),
    ),
    "ledger": (spoil_ledger, ("ledger.jsonl", "line 2")),
    "other branch": (
        lambda p: p.git("switch", "--quiet", "main"),
        ("'main'", f"git switch optimize/{CAMPAIGN}"),
    ),
    "kernel gone": (lambda p: (p.root / KERNEL).unlink(), (KERNEL, "does not exist")),
}


@pytest.mark.parametrize("what", SPOILT_CAMPAIGNS)
def test_spoilt_campaigns(started: Project, what: str) -> None:
    spoil, parts = SPOILT_CAMPAIGNS[what]
    spoil(started)
    says(refused(started, *named("--kopt-round", "2")), *parts)


def test_a_campaign_in_use(started: Project) -> None:
    started.write(KERNEL, doubled_kernel(125.0))
    with FileLock(started.campaign / ".lock"):
        says(
            refused(started, *named("--kopt-round", "2")), CAMPAIGN, "in use", "wait until it ends"
        )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            named("--kopt-round", "2", "--kopt-policy", "mild"),
            ("'mild'", "--kopt-policy", "primus"),
        ),
        (
            named("--kopt-round", "2", "--kopt-policy", "bad.yaml"),
            ("bad.yaml", "shape_gate", "101"),
        ),
        (named("--kopt-round", "2", "--kopt-notes", "bad.yaml"), ("bad.yaml", "hypothesis")),
        (named("--kopt-round", "2", "--kopt-notes", "none.yaml"), ("none.yaml", "No such file")),
        (named("--kopt-round", "2", "--kopt-timeout", "0"), ("--kopt-timeout", "above 0")),
        (named("--kopt-round", "2", "--kopt-timeout", "nan"), ("--kopt-timeout", "above 0")),
        (named("--kopt-round", "2", "-o", "kopt_device=tpu"), ("'tpu'", "auto, cpu, cuda")),
        (named("--kopt-round", "2", "-o", "kopt_seed=-3"), ("'-3'", "a number >= 0")),
        (named("--kopt-round", "2", "--kopt-dist-only"), ("--kopt-dist-only",)),
        (named("--kopt-level", "quick"), ("--kopt-level", "--kopt-round")),
        (named("--kopt-round", "2", "--kopt-repeats", "9"), ("--kopt-repeats", "--kopt-round")),
        (named("--kopt-repeats", "0"), ("--kopt-repeats", "1 to 100000")),
        (named("--kopt-no-apply"), ("--kopt-no-apply", "--kopt-round")),
        (named("--kopt-verdict", "v.json"), ("--kopt-verdict", "--kopt-round")),
        (named("--kopt-comment", "c.md"), ("--kopt-comment", "--kopt-round")),
        (named("--kopt-profile"), ("--kopt-profile: needs --kopt-round",)),
    ],
)
def test_options(baseline: Project, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    says(refused(baseline, *words), *parts)


def test_a_campaign_has_to_be_named_when_there_are_several(started: Project) -> None:
    other = started.campaign.with_name("other")
    other.mkdir()
    (other / "manifest.yaml").write_text((started.campaign / "manifest.yaml").read_text())
    started.git("switch", "--quiet", "main")
    says(refused(started, "--kopt-round", "2"), "--kopt-campaign", CAMPAIGN, "other")


@pytest.fixture(scope="module")
def baseline(started_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A campaign after its baseline that the tests of this file share: nothing may change it."""
    project = started_template.copy(tmp_path_factory.mktemp("shared") / "project")
    project.write("bad.yaml", "shape_gate_pct: 101\nhypotheses: none\n")
    return project


# What can only be seen while cases run.

#: What the cases are depends on the environment here, which no fingerprint of the tests shows.
DRIFTING = """\
import dataclasses
import os
import pytest
import torch
from kernels.doubled import doubled
from pytest_kopt.schema.columns import MEMORY

DRIFT = os.environ.get("DRIFT")
ROWS = {"another case": [2, 4, 6], "one case less": [4]}.get(DRIFT, [2, 4])
SHORT = dataclasses.replace(MEMORY, columns=MEMORY.columns[:-1])
SCHEMA = SHORT if DRIFT == "schema" else "memory"
NONE = pytest.mark.filterwarnings("default")


@(NONE if DRIFT == "no case" else pytest.mark.kopt(schema=SCHEMA))
@pytest.mark.parametrize("rows", ROWS)
def test_doubled(kopt, rows):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(rows, 8, requires_grad=True),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": rows, "columns": 9 if DRIFT == "dims" else 8},
        backward=True,
        nbytes=1e9 * rows,
    )
"""
DRIFTS: dict[str, tuple[str, ...]] = {
    "schema": (f"{CASES}::test_doubled[2]", "schema drifted", "'grad_snr' is gone"),
    "dims": (f"{CASES}::test_doubled[2]", "dims drifted", "'columns': 9", "'columns': 8"),
    "another case": ("test_doubled[6]", "not in the baseline"),
    "one case less": ("test_doubled[2]", "gone"),
    "no case": ("no kopt case", "marked"),
}


@pytest.fixture(scope="module")
def drifting(fresh_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A campaign after its baseline whose cases may drift, with another kernel in the tree."""
    project = fresh_template.copy(tmp_path_factory.mktemp("drifting") / "project")
    project.write(CASES, DRIFTING)
    assert project.round(1).code == 0
    project.write(KERNEL, doubled_kernel(125.0))
    return project


@pytest.mark.parametrize(
    ("what", "words"),
    [
        *[(what, SERIAL) for what in DRIFTS],
        ("schema", TWO_WORKERS),
        pytest.param("another case", TWO_WORKERS, marks=pytest.mark.long),
    ],
)
def test_drift_from_the_baseline(
    drifting: Project,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    words: tuple[str, ...],
) -> None:
    """Seen before the drifted case is timed."""
    monkeypatch.setenv("DRIFT", what)
    says(refused_later(drifting, *named("--kopt-round", "2"), *words), *DRIFTS[what])


BASELINES: dict[str, tuple[tuple[str, str], tuple[str, ...]]] = {
    "duplicate": (
        ('{"rows": rows,', '{"rows": 7,'),
        (
            "duplicate case",
            "::test_doubled[2]",
            "::test_doubled[4]",
            "rows=7, columns=8",
            "its own combination of dims",
        ),
    ),
    "misfit": (
        ('schema="memory"', 'schema="gemm"'),
        (f"{CASES}::test_doubled[2]", "'rows'", "'gemm'", "B, M, N, K"),
    ),
}


@pytest.mark.parametrize("what", BASELINES)
def test_baselines_that_cannot_be_frozen(fresh: Project, what: str, mode: tuple[str, ...]) -> None:
    """Nothing is decided, whatever was measured before it was seen."""
    change, parts = BASELINES[what]
    fresh.replace(CASES, *change)
    words = ("--summary-csv", "out/rows.csv", "--kopt-verdict", "out/verdict.json", *mode)
    asked = named("--kopt-round", "1")
    message = refused_later(fresh, *asked, *words, measured=what == "duplicate")
    says(message, *parts)


def test_names_do_not_lead_out_of_the_workspace(empty: Project, tmp_path: Path) -> None:
    empty.notes(lesson="none")
    for command in (("stop", "../escape"), ("status", "a/b"), ("note", "..", "1", "notes.yaml")):
        run = empty.kopt(*command)
        assert run.code == 4, run.text
        says(run.refusal, command[1], "letters, digits")
    assert not (tmp_path / "escape").exists()


def test_a_path_after_a_space_that_moved_the_root_is_named(fresh: Project, tmp_path: Path) -> None:
    notes = tmp_path / "elsewhere" / "notes.yaml"
    notes.parent.mkdir()
    notes.write_text("summary: away\n")
    words = ("--kopt-campaign", CAMPAIGN, "--kopt-round", "1", "--kopt-notes")
    run = fresh.refuse(*words, str(notes))
    assert run.code == 4 and run.text.count(f"--kopt-notes={notes}") == 1, run.text
    run = fresh.refuse("--kopt-base", "../elsewhere")
    says(run.refusal, f"looks for the project in {tmp_path}", "--kopt-base=../elsewhere")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = fresh.refuse(*words, str(notes))
    assert run.code == 4 and f"Fix: --kopt-notes={notes}" in run.text
    run = fresh.pytest(*words[:-1], f"--kopt-notes={notes}")
    assert run.code == 0, run.text
    (notes.parent / "pytest.ini").write_text("[pytest]\n")
    run = fresh.refuse("--kopt-base", "../elsewhere")
    says(run.refusal, f"looks for the project in {notes.parent}", "--kopt-base=../elsewhere")
