"""What the rounds of `story` leave behind: verdicts, rows, logs, commits, restored files.

Nothing is run here; the story is told once for each way of running.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from pytest_kopt.figures import figure

from .project import CAMPAIGN, CASES, KERNEL, Project
from .sources import doubled_kernel as kernel
from .story import ACCEPTED_NOTES, MODES, OUTCOMES, Story, items, sections, told


def test_every_round_ends_as_it_should(story: Story) -> None:
    for name, (number, code, decision) in OUTCOMES.items():
        run = story[name].run
        assert run.code == code, run.text
        assert story[name].project.verdict(number)["decision"] == decision


def test_a_scripted_round_leaves_what_a_real_one_leaves(
    serial_story: Story, tmp_path: Path
) -> None:
    """What a kernel's results are, a scripted lane does not know: its wrong rows have no SNR."""
    real = serial_story["accepted"]
    project = serial_story["baseline"].project.copy(tmp_path / "project")
    project.write(KERNEL, kernel(187.5))
    run = project.play(2, "--kopt-notes", project.notes(**ACCEPTED_NOTES))
    assert run.code == real.run.code, run.text
    verdicts = [left.verdict(2) for left in (project, real.project)]
    for verdict in verdicts:
        assert verdict["applied"].pop("git_commit")
    assert verdicts[0] == verdicts[1]
    kept = project.campaign.relative_to(project.root)
    for name in ("rounds/round-2/artifacts/benchmark.csv", "logs/performance_trend.md"):
        assert project.read(str(kept / name)) == real.project.read(str(kept / name))
    project.write(KERNEL, kernel(125.0, factor=2.1))
    run, (number, code, decision) = project.play("next"), OUTCOMES["repair"]
    assert (run.code, project.verdict(number - 1)["decision"]) == (code, decision), run.text


def test_the_terminal_says_what_was_decided_why_and_what_is_next(story: Story) -> None:
    for name, (number, _, decision) in OUTCOMES.items():
        out = story[name].run.out
        assert f"kopt: campaign {CAMPAIGN}, round {number}, policy primus, cpu" in out
        attempt = 2 if name == "repaired" else 1
        assert re.search(rf"^round {number}, attempt {attempt}: {decision} \(.+\)$", out, re.M)
        assert re.search(r"^next: .+", out, re.M)
    assert re.search(r"^rows=2 columns=8 +PASS .* \+33\.3 %  \S+$", story["accepted"].run.out, re.M)
    assert "Combined Step GB/s: 6.788 -> 9.051  +33.3 %" in story["accepted"].run.out
    assert f"restored: {KERNEL}" in story["rolled_back"].run.out
    assert "3 repairs left" in story["repair"].run.out


def test_verdict_json_holds_the_decision_with_its_evidence(story: Story) -> None:
    project = story["accepted"].project
    verdict = project.verdict(2)
    assert json.loads(project.read("out/verdict.json")) == verdict
    expected = {
        "schema_version": 1,
        "campaign": CAMPAIGN,
        "round": 2,
        "attempt": 1,
        "decision": "ACCEPTED",
        "compare": "stored",
        "policy": "primus",
        # The scripted clock asks for cases of gigabytes; the round goes by what they say.
        "flags": [
            f"doubled rows={rows} columns=8 forward: nbytes is over-declared: the case says "
            f"{rows}e+09, its tensors hold {64 * rows}; the roofline counts these"
            for rows in (2, 4)
        ],
    }
    assert {key: verdict[key] for key in expected} == expected
    assert "wall" in verdict["engine"]
    assert verdict["applied"] == {"git_commit": project.head(), "restored": []}
    total = verdict["aggregate"]
    assert total["metric"] == "Combined Step GB/s"
    # All bytes over all time: 3 GB a row in 0.25 s forward and 1 s backward.
    assert total["incumbent"] == pytest.approx((4.8 * 9.6) ** 0.5)
    assert total["candidate"] == pytest.approx((4.8 * 9.6) ** 0.5 * 4 / 3)
    assert total["change_pct"] == pytest.approx(100 / 3)
    assert total["low_pct"] is None and total["high_pct"] is None, "a stored comparison has none"
    shapes = verdict["shapes"]
    assert [shape["dims"] for shape in shapes] == [
        {"rows": 2, "columns": 8},
        {"rows": 4, "columns": 8},
    ]
    for shape in shapes:
        assert (shape["check"], shape["status"]) == ("PASS", "improved")
        assert shape["change_pct"] == pytest.approx(100 / 3)
        assert shape["device"] == "cpu"


def test_verdict_json_keeps_to_its_published_schema(serial_story: Story) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((files("pytest_kopt") / "schemas/verdict.schema.json").read_text())
    for name, (number, _, _) in OUTCOMES.items():
        jsonschema.validate(serial_story[name].project.verdict(number), schema)


def test_the_baseline_freezes_schema_and_cases(story: Story) -> None:
    project = story["baseline"].project
    header = (
        (project.campaign / "rounds/round-1/artifacts/benchmark.csv").read_text().split("\n")[0]
    )
    assert header.startswith("label,rows,columns,Check,Forward GB/s,Forward GB/s_stddev,")
    schema = yaml.safe_load((project.campaign / "manifest.yaml").read_text())["schema"]
    assert schema == {"header": header, "sha256": hashlib.sha256(header.encode()).hexdigest()}
    nodes = [result["nodeid"] for result in project.evidence(1)["results"]]
    assert nodes == [f"{CASES}::test_doubled[2]", f"{CASES}::test_doubled[4]"]


def test_the_summary_csv_is_the_rounds_own(story: Story) -> None:
    project = story["accepted"].project
    kept = (project.campaign / "rounds/round-2/artifacts/benchmark.csv").read_text()
    assert project.read("out/rows.csv") == kept
    assert [line.split(",")[0] for line in kept.splitlines()] == [
        "label",
        "doubled rows=2 columns=8",
        "doubled rows=4 columns=8",
    ]


def test_only_the_kernel_is_committed(story: Story) -> None:
    """Staged work stays staged, edits stay edits, and the campaign is no part of the history."""
    before, project = story["baseline"].project, story["accepted"].project
    assert project.git("branch", "--show-current").strip() == f"optimize/{CAMPAIGN}"
    assert project.git("rev-parse", "HEAD^").strip() == before.head()
    assert project.git("show", "--name-only", "--format=", "HEAD").split() == [KERNEL]
    assert project.git("show", f"HEAD:{KERNEL}") == kernel(187.5)
    assert project.git("status", "--porcelain").splitlines() == [
        " M README.md",
        "A  staged.py",
        "?? untracked.txt",
    ]
    subject, _, *lines = project.git("log", "-1", "--format=%B").splitlines()
    assert subject == "[optimize] doubled TORCH round-2: half the tiles"
    assert lines[0] == "Hypothesis: fewer tiles cost less"
    assert re.match(r"Result: .*33\.3 %", lines[1])
    assert lines[2] == "Details: see the profile"


def test_a_rolled_back_kernel_is_restored_byte_for_byte(story: Story) -> None:
    before, project = story["accepted"].project, story["rolled_back"].project
    assert project.read(KERNEL) == kernel(187.5)
    assert project.head() == before.head()
    assert project.git("status", "--porcelain") == before.git("status", "--porcelain")
    assert project.read("README.md") == before.read("README.md")
    assert project.verdict(3)["applied"] == {"git_commit": None, "restored": [KERNEL]}
    snapshot = project.campaign / "rounds/round-3/kernel_snapshot" / KERNEL
    assert snapshot.read_text() == kernel(312.5) + "# slower again\n", "the candidate is kept"


def test_a_failed_check_leaves_round_and_kernel_open(story: Story) -> None:
    project = story["repair"].project
    assert project.read(KERNEL) == kernel(125.0, factor=2.1)
    verdict = project.verdict(4)
    assert [shape["status"] for shape in verdict["shapes"]] == ["failed", "failed"]
    assert [shape["check"] for shape in verdict["shapes"]] == ["FAIL", "FAIL"]
    rows = (project.campaign / "rounds/round-4/artifacts/benchmark.csv").read_text()
    assert "doubled rows=2 columns=8,2,8,FAIL,nan,nan,nan,nan,nan,nan," in rows


def test_the_repair_is_the_next_attempt_at_the_same_round(story: Story) -> None:
    project = story["repaired"].project
    assert project.verdict(4)["attempt"] == 2
    assert project.git("show", f"HEAD:{KERNEL}") == kernel(125.0)
    for attempt, factor in ((1, 2.1), (2, 2.0)):
        kept = project.campaign / f"rounds/round-4/artifacts/attempt-{attempt}"
        assert (kept / "kernel_snapshot" / KERNEL).read_text() == kernel(125.0, factor=factor)


def test_every_round_leaves_its_files(story: Story) -> None:
    project = story["repaired"].project
    versions = (kernel(), kernel(187.5), kernel(312.5) + "# slower again\n", kernel(125.0))
    for number, version in enumerate(versions, start=1):
        directory = project.campaign / f"rounds/round-{number}"
        for name in ("summary.md", "verdict.json", "artifacts/benchmark.csv"):
            assert (directory / name).is_file()
        assert (directory / "kernel_snapshot" / KERNEL).read_text() == version
    report = (project.campaign / "baseline.md").read_text()
    rows = (project.campaign / "rounds/round-1/artifacts/benchmark.csv").read_text()
    for row in csv.DictReader(rows.splitlines()):
        assert row["label"] in report and figure(float(row["Forward Time (ms)"])) in report


def test_the_ledger_tells_every_step(story: Story) -> None:
    events = story["repaired"].project.ledger()
    settled = ["opened", "measured", "decided", "applying", "applied"]
    assert [event["event"] for event in events] == [*settled * 3, *settled[:3], *settled]
    decided = [event for event in events if event["event"] == "decided"]
    assert [(event["round"], event["attempt"], event["decision"]) for event in decided] == [
        (1, 1, "BASELINE"),
        (2, 1, "ACCEPTED"),
        (3, 1, "ROLLED_BACK"),
        (4, 1, "REPAIR"),
        (4, 2, "ACCEPTED"),
    ]
    for event in events:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", event["time"])


def test_the_trend_has_the_figures_of_each_round(story: Story) -> None:
    text = (story["repaired"].project.campaign / "logs/performance_trend.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    assert rows[0][3:9] == ["11.314", "16.000", "5.657", "8.000", "6.788", "—"]
    assert rows[2][3:8] == ["9.051", "12.800", "4.525", "6.400", "5.431"]
    assert rows[2][8] == "step -20.000%, fwd -20.000%, bwd -20.000%"
    assert len(rows) == 4


SECTIONS = [
    *("Hypothesis", "Single change", "Results", "Decision", "Attribution", "Next direction"),
    "Real-training transfer check",
]
TRANSFER_CHECK = [
    *("Bucket", "Cache key", "id(...) audit", "4-step trace hit rate"),
    *("Workload distribution robustness", "Benchmark gain", "Estimated real-training gain"),
    "Decision",
]


def test_the_summary_of_an_accepted_round(story: Story) -> None:
    path = story["accepted"].project.campaign / "rounds/round-2/summary.md"
    found = sections(path.read_text())
    assert list(found) == SECTIONS
    assert found["Hypothesis"].strip() == "fewer tiles cost less"
    assert found["Single change"].strip() == "tile 64 -> 32"
    assert found["Attribution"].strip() == "launch overhead is gone"
    assert found["Next direction"].strip() == "a third of the tiles"
    assert "+33.3 %" in found["Results"] and "doubled rows=2 columns=8" in found["Results"]
    assert "ACCEPTED" in found["Decision"]
    check = items(found["Real-training transfer check"])
    assert list(check) == TRANSFER_CHECK
    assert check["Bucket"] == "K2"
    assert check["Benchmark gain"] == "+33.3 %"
    assert check["Estimated real-training gain"] == (
        "the benchmark gain, in the part of a step that these kernels take"
    )
    assert check["Decision"] == "ACCEPT-as-real"


def test_the_summary_of_a_rolled_back_round_analyses_it(story: Story) -> None:
    path = story["rolled_back"].project.campaign / "rounds/round-3/summary.md"
    found = sections(path.read_text())
    assert list(found) == [*SECTIONS, "Rollback Analysis"]
    analysis = items(found["Rollback Analysis"])
    assert list(analysis) == ["Change", "Expected", "Actual", "Root cause", "Lesson"]
    assert analysis["Change"] == "no tiles" and analysis["Expected"] == "+5 %"
    assert "-40.0 %" in analysis["Actual"] and analysis["Root cause"] == "L2 misses"


def test_both_ways_of_running_tell_the_same_story(
    tmp_path_factory: pytest.TempPathFactory, fresh_template: Project
) -> None:
    """The same rows, verdicts, logs and exit codes, whoever ran the cases."""
    serial, distributed = (told(tmp_path_factory, fresh_template, name) for name in MODES)
    assert [stage.run.code for stage in serial.values()] == [
        stage.run.code for stage in distributed.values()
    ]
    one, other = serial["repaired"].project, distributed["repaired"].project
    for number in range(1, 5):
        rows = f"rounds/round-{number}/artifacts/benchmark.csv"
        assert (one.campaign / rows).read_bytes() == (other.campaign / rows).read_bytes()
        verdicts = [project.verdict(number) for project in (one, other)]
        for verdict in verdicts:
            del verdict["applied"]["git_commit"]
        assert verdicts[0] == verdicts[1]
    trend = "logs/performance_trend.md"
    assert (one.campaign / trend).read_text() == (other.campaign / trend).read_text()
