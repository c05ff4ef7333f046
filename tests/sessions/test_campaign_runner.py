"""`benchmarks/run_campaign.py`: goes on whatever the verdicts are, and from where it stopped."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from .paired import FASTER, OLD, PLAIN, SETTINGS, write_paired
from .project import SCRIPT, Project

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from run_campaign import Runner, load

FASTEST = 125.0
RIGHT, WRONG = "return 2.0 * x", "return 2.5 * x"


def cost(old: float, new: float) -> dict[str, str]:
    return {"replace": f"COST_MS = {old}", "with": f"COST_MS = {new}"}


AFTERWARDS = {
    "kept": {"lesson": "it helps"},
    "lost": {"lesson": "it does not", "root_cause": "the scripted clock"},
    "context": "a test",
}
STEPS: dict[str, dict[str, Any]] = {
    "02_faster": {"edits": [cost(OLD, FASTER)]},
    "03_mistaken": {
        "edits": [cost(FASTER, FASTEST), {"replace": RIGHT, "with": WRONG}],
        "repairs": [[{"replace": WRONG, "with": RIGHT}]],
    },
    "04_slower": {"edits": [cost(FASTEST, OLD)]},
    "05_on_slower": {"edits": [cost(OLD, FASTER)], "needs": ["04_slower"]},
    "05_resolving": {"edits": [cost(OLD, FASTER)], "resolves": "04_slower"},
    "06_unrepaired": {"edits": [{"replace": RIGHT, "with": WRONG}]},
    "07_unfitting": {"edits": [cost(OLD, FASTER)]},
    "08_refused": {
        "edits": [cost(FASTEST, FASTER)],
        "notes": {"summary": "no such class", "target_class": "none"},
    },
}
SETTINGS_OF_IT = {
    "op": "plain",
    "backend": "TORCH",
    "kernel": PLAIN,
    "tests": "tests",
    "classes": "rows",
    "target_classes": {"none": {"cpu": "rows=7"}},
}


@pytest.mark.long
def test_a_campaign_is_run_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Project(tmp_path / "campaigns/plain")
    write_paired(written)
    written.write("pyproject.toml", SETTINGS + 'kopt_compare = "stored"\nkopt_isolation = "off"\n')
    written.write("campaign.yaml", yaml.safe_dump(SETTINGS_OF_IT))
    for name, step in STEPS.items():
        notes = {"summary": name, "change": name, "bucket": "K2"}
        text = {"notes": notes, **AFTERWARDS, **step}
        written.write(f"steps/{name}.yaml", yaml.safe_dump(text))
    out = tmp_path / "out"
    out.mkdir()
    for variable, value in written.environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PYTHONPATH", str(out / "project"))
    monkeypatch.setenv("PYTEST_PLUGINS", Path(SCRIPT).stem)
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))

    def run(limit_minutes: float | None) -> None:
        asked = Namespace(gpu="cpu", device="cpu", workers=None, limit_minutes=limit_minutes)
        Runner(load("plain", tmp_path / "campaigns"), out, asked).run()

    run(limit_minutes=0)
    assert (out / "campaign/manifest.yaml").exists() and not (out / "sessions").exists()
    assert yaml.safe_load((out / "campaign/manifest.yaml").read_text())["classes"] == ["rows"]
    run(limit_minutes=None)
    run(limit_minutes=None)

    progress = json.loads((out / "progress.json").read_text())
    assert [(entry["what"], entry["decision"]) for entry in progress["sessions"]] == [
        ("baseline", "BASELINE"),
        ("02_faster", "ACCEPTED"),
        ("03_mistaken", "REPAIR"),
        ("03_mistaken", "ACCEPTED"),
        ("04_slower", "ROLLED_BACK"),
        ("06_unrepaired", "REPAIR"),
        ("final", "ACCEPTED"),
    ]
    assert progress["steps"]["06_unrepaired"]["decisions"] == ["REPAIR", "ROLLED_BACK"]
    assert "needs 04_slower" in progress["steps"]["05_on_slower"]["left_out"]
    assert "did not split" in progress["steps"]["05_resolving"]["left_out"]
    assert "stands 0 times" in progress["steps"]["07_unfitting"]["left_out"]
    assert "'rows=7' is no class" in progress["steps"]["08_refused"]["left_out"]

    kept = out / "campaign"
    assert _cost((kept / "rounds/round-3/kernel_snapshot" / PLAIN).read_text()) == FASTEST
    for number in range(1, 6):
        assert json.loads((kept / f"rounds/round-{number}/verdict.json").read_text())
        assert (kept / f"rounds/round-{number}/summary.md").exists()
    assert (kept / "report.html").stat().st_size > 10_000
    assert "the scripted clock" in (kept / "rounds/round-4/summary.md").read_text()
    tips = (kept / "tips.md").read_text()
    assert tips.count("it helps") == 2 and tips.count("it does not") == 2


def _cost(source: str) -> float:
    return float(source.partition("COST_MS = ")[2].split()[0])
