"""What the tool itself costs, and what it resolves: one command, one page.

python benchmarks/performance.py docs/performance.md

Measures here what needs no GPU: idle overhead, overhead a case, decision, status, trend and report
at scale. GPU figures come from `docs/results/`, where the scripts named beside it put it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
sys.path.insert(0, str(ROOT))

from tests.sessions.paired import PLAIN, Gate, kernel, project_at  # noqa: E402

Rows = list[dict[str, Any]]
REPEATS, MANY = 5, 21
#: Everything between pytest's start and its first test that is the plugin's own doing: its import,
#: its options, its configuration, its look at the collection. Others' plugins stay out of the
#: clock, and so does what else the machine does. The aim is 10 ms.
STOPWATCH = """\
import time

import pytest

config = pytest.Config.fromdictargs({}, ["--noconftest"])
assert not config.pluginmanager.has_plugin("kopt")
session = pytest.Session.from_config(config)
start = time.process_time()
from pytest_kopt import plugin

config.pluginmanager.register(plugin, "kopt")
plugin.pytest_configure(config)
config.hook.pytest_collection_modifyitems(session=session, config=config, items=[])
print((time.process_time() - start) * 1e3)
"""
#: The most seconds that what is done at scale should take.
AIMS = {"kopt decide": 2.0, "kopt status": 1.0, "trend table": 2.0, "report": 5.0}
CASES = """\
import pytest
import torch


def plus_one(x):
    return x + 1


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("n", range(2, {many} + 2))
def test_plus_one(kopt, n):
    kopt(
        plus_one,
        inputs=lambda: (torch.randn(n),),
        reference=lambda x: x.double() + 1,
        dims={{"n": n}},
    )
"""


def run(*words: str, cwd: Path = ROOT, legal: int = 0, **variables: str) -> str:
    kept = {key: text for key, text in os.environ.items() if key != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode > legal:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def idle() -> Rows:
    """Import, options and configuration in a run that uses nothing of kopt."""
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    found = [float(run("-c", STOPWATCH, **alone)) for _ in range(REPEATS)]
    return [
        {
            "a run without kopt": "the plugin's own share",
            "best ms": min(found),
            "median ms": statistics.median(found),
        }
    ]


def cases() -> Rows:
    """Check, time and record cases that cost nothing themselves; start-up is in both sessions."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "pytest.ini").write_text("[pytest]\n")
        seconds: dict[int, list[float]] = {1: [], MANY: []}
        for number in range(REPEATS):
            for many, times in seconds.items():
                (root / "test_it.py").write_text(CASES.format(many=many))
                start = time.perf_counter()
                words = ("-p", "no:cacheprovider", "--kopt-device", "cpu")
                run("-m", "pytest", *words, f"--summary-csv={number}-{many}.csv", cwd=root)
                times.append(time.perf_counter() - start)
    one, all_of_them = (statistics.median(times) for times in seconds.values())
    return [
        {
            "session on the CPU": f"1 case and {MANY} cases",
            "1 case s": one,
            f"{MANY} cases s": all_of_them,
            "a case more s": (all_of_them - one) / (MANY - 1),
        }
    ]


def scale() -> Rows:
    """What the suite's tests of large campaigns took."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "junit.xml"
        chosen = ("tests/test_scale.py", "tests/test_report.py", "-k", "scale or 119")
        run("-m", "pytest", *chosen, "-p", "no:cacheprovider", "-o", "junit_family=xunit1",
            f"--junitxml={path}")  # fmt: skip
        return [
            {
                "at scale": entry.attrib["name"],
                "CPU s": float(entry.attrib["value"]),
                "aim s": next(
                    aim for what, aim in AIMS.items() if entry.attrib["name"].startswith(what)
                ),
            }
            for test in ET.parse(path).iter("testcase")
            for entry in test.iter("property")
        ]


def at_once() -> Rows:
    """Commands that measure nothing, from start to end by the clock on the wall."""
    with tempfile.TemporaryDirectory() as name:
        gate = Gate(project_at(Path(name) / "project"))
        gate.project.write(PLAIN, kernel() + "# The same code.\n")
        init = ("init", "c", "--op", "plain", "--kernel", "absent.py", "--gpu", "cpu")
        commands = {
            "kopt init, a missing file": (("-m", "pytest_kopt.cli", *init), 4),
            "a gate of the same code": (("-m", "pytest", "--kopt-base=main"), 0),
        }
        rows = []
        for what, (words, code) in commands.items():
            times = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                run(*words, cwd=gate.project.root, legal=code, **gate.variables())
                times.append(time.perf_counter() - start)
            rows.append({"nothing is measured": what, "median s": statistics.median(times)})
        return rows


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def whole_commands(record: str) -> Rows:
    """From start to end by the clock on the wall."""
    rounds = read(record)["rounds"]
    rows = []
    for cases, kind in dict.fromkeys((entry["cases"], entry["round"]) for entry in rounds):
        alike = [e for e in rounds if (e["cases"], e["round"]) == (cases, kind)]
        walls = [entry["wall s"] for entry in alike]
        held = [entry["device s"] for entry in alike if "device s" in entry]
        rows.append(
            {
                "cases": cases,
                "round": kind,
                "median s": statistics.median(walls),
                "longest s": max(walls),
                "commands": len(alike),
                "device s": statistics.median(held) if held else None,
                "processes": "/".join(str(e["processes"]) for e in alike if "processes" in e),
            }
        )
    return rows


def parts_of_a_round() -> Rows:
    """The three largest parts of each kind of round, medians by the timeline of the evidence."""
    found = read("gpu_rounds_h200_near")["seconds of five forward"]
    rows: Rows = []
    for kind in ("baseline", "the same", "a clear loss", "a clear gain"):
        # The comparison is what its replicates and the near inputs are.
        parts = [e for e in found if e["round"] == kind and e["phase"] != "comparing"]
        rows += [
            {
                "five forward": kind,
                "part": f"{entry['process']} {entry['phase']}",
                "median s": entry["s"],
            }
            for entry in sorted(parts, key=lambda entry: -entry["s"])[:3]
        ]
    return rows


def paired() -> Rows:
    """Rounds of identical code: how many were accepted, and the largest difference."""
    rows = []
    for name, where in (
        ("paired_aa_h200", "H200, 5 cases, before the checks of honesty"),
        ("paired_aa_checked_h200", "H200, 5 cases, fresh interpreters"),
        ("paired_aa_forked_h200", "H200, 5 cases, forks"),
        ("paired_aa_shared_h200", "H200, 5 cases, two to four sessions at once"),
        ("paired_placed_h200", "H200, 5 cases, results at the same addresses"),
        ("paired_median_h200", "H200, 5 cases, medians of short blocks"),
        ("paired_rounds_h200", "H200, 5 cases, two replicates at the first look"),
        ("paired_promise_h200", "H200, 5 cases, accuracy by the current best"),
        ("paired_cpu", "CPU, 3 cases, every core kept busy"),
    ):
        found = read(name)
        said = found.get("verdicts", found.get("aa"))
        said = [entry for entry in said if entry.get("compare", "paired") == "paired"]
        said = [entry for entry in said if not entry.get("truth_pct")]
        changes = [
            entry["aggregate"]["change_pct"] if "aggregate" in entry else entry["change_pct"]
            for entry in said
        ]
        rows.append(
            {
                "identical code": where,
                "rounds": len(said),
                "accepted": sum(entry["decision"].startswith("ACCEPTED") for entry in said),
                "worst geomean %": max(abs(change) for change in changes),
            }
        )
    return rows


def resolution() -> Rows:
    """Changes that were made on purpose, and the smallest gain that a calibration would accept."""
    verdicts: dict[str, Rows] = {}
    for name, where in (
        ("paired_known_h200", ""),
        ("paired_median_h200", "; medians"),
        ("paired_rounds_h200", "; two replicates at the first look"),
        ("paired_promise_h200", "; accuracy by the current best"),
    ):
        for entry in filter(lambda entry: entry["truth_pct"], read(name)["verdicts"]):
            truth = ", ".join(f"{pct:+.2f}" for pct in entry["truth_pct"].values())
            verdicts.setdefault(truth + where, []).append(entry)
    rows: Rows = [
        {
            "known change (H200)": truth,
            "seen %": statistics.mean(entry["aggregate"]["change_pct"] for entry in alike),
            "decision": ", ".join(
                f"{count} {decision}"
                for decision, count in Counter(entry["decision"] for entry in alike).items()
            ),
            "processes": statistics.median(entry["comparison"]["replicas"] for entry in alike),
        }
        for truth, alike in sorted(verdicts.items())
    ]
    noise = read("paired_noise_h200")
    least = min(pct for pct in noise["resolvable_pct"].values() if pct is not None)
    rows.append(
        {
            "known change (H200)": f"calibration: resolves {least:.2f} % at best",
            "seen %": noise["geomean_sd_pct"],
            "decision": "(sd of the geomean between processes)",
            "processes": noise["processes"],
        }
    )
    return rows


def workers() -> Rows:
    """Sixteen light cases, serially and with a worker for each of four GPUs."""
    return [
        {key: entry.get(key) for key in ("cases", "round", "GPUs", "wall s", "decision")}
        for entry in read("gpu_rounds_h200x4")["rounds"]
    ]


def startup() -> Rows:
    return list(read("worker_startup_cpu")["rows"])


def device() -> Rows:
    total = read("gpu_overhead_h200")["total"]
    return [{"device (paired session)": "H200", **total}]


ROUNDS = "`benchmarks/gpu_rounds.py` (2026-11-28, hosts with 32 cores, torch 2.11, Triton 3.6)"
NEAR = "`benchmarks/gpu_rounds.py` (2026-11-30, a host with 16 cores, torch 2.11, Triton 3.6)"
WHOLE = (
    "`benchmarks/gpu_rounds.py` (2026-11-29 and, five forward, 2026-11-30; hosts with one H200; "
    "sixteen cases but for the first three rows: two; torch 2.11, Triton 3.6)"
)
EARLIER = "`benchmarks/gpu_rounds.py` (2026-11-24, two hosts with 16 cores, torch 2.11, Triton 3.6)"
WORKERS = (
    "`benchmarks/gpu_rounds.py OUT --workers 4` (2026-11-26, four H200, torch 2.11, Triton 3.6)"
)
SECTIONS = (
    ("Idle", "measured here", idle),
    ("A case", "measured here", cases),
    ("Decision, status and report", "measured here", scale),
    ("Without a measurement", "measured here", at_once),
    ("Whole commands on an H100", ROUNDS, partial(whole_commands, "gpu_rounds_h100_five")),
    ("Whole commands on an H200", WHOLE, partial(whole_commands, "gpu_rounds_h200_near")),
    ("The three largest parts", NEAR, parts_of_a_round),
    ("Before rounds loaded the card", EARLIER, partial(whole_commands, "gpu_rounds_h200")),
    ("Identical code", "`benchmarks/paired_gpu.py`, `benchmarks/paired_cpu.py`", paired),
    ("Resolution", "`benchmarks/paired_gpu.py`, `pytest --kopt-calibrate`", resolution),
    ("Start-up of workers", "[a record](results/worker_startup_cpu.json)", startup),
    ("Workers", WORKERS, workers),
    ("The device's time", "[a record](results/gpu_overhead_h200.json)", device),
)


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    busy = ", so wall times are longer than on a quiet machine" if load > 1 else ""
    parts = [
        "# The tool's own cost\n\n"
        "`python benchmarks/performance.py docs/performance.md` writes this page. Measured here "
        "means\n"
        f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, torch "
        f"{version('torch')}, {time.strftime('%Y-%m-%d')}. The load at the start\n"
        f"was {load:.1f}{busy}. GPU figures come from `docs/results`; the devices are named in\n"
        "[paired comparisons](paired-evidence.md) and [results on GPUs](gpu.md)."
    ]
    for title, source, measure in SECTIONS:
        table = tabulate(measure(), headers="keys", tablefmt="github", floatfmt=".3g")
        parts.append(
            f"## {title}\n\nFrom {source}.\n\n{table}".replace("From measured", "Measured")
        )
        print(f"{title}\n{table}\n", flush=True)
    Path(sys.argv[1]).write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
