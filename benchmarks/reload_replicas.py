"""Does a process add anything to what loading anew gives: may one fork carry several replicas?

python benchmarks/reload_replicas.py OUT [--forks 20] [--reloads 5] [--device cuda|cpu]
    [--seconds LIMIT] [--project DIR] [--tests PATH]
python benchmarks/reload_replicas.py write

Compares the kernels of `benchmarks/gpu_project` (on a CPU those of `benchmarks/paired_cpu.py`) with
themselves: in every fork both versions are loaded anew several times, and each time is a replica.
Writes OUT/reload_replicas.json after every replica. `write` puts the tables of
docs/results/reload_replicas_*.json into docs/paired.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gpu_report import GPU_PROJECT, ROOT, machine, replace_table, run
from paired_cpu import write_project
from reloading_plugin import ASKED, AT_ONCE
from scipy.stats import f as fisher
from tabulate import tabulate

#: Log-ratios.
Values = npt.NDArray[np.float64]
#: An effect of the process is told from chance at this level.
LEVEL = 0.05
WORTH = "two re-loads of a fork are worth"


def components(ratios: Values, quads: Values) -> dict[str, Any]:
    """Return the nested variance components of log-ratios, shape (forks, re-loads), in percent.

    `quads` (forks, re-loads, 3) are the parts of each. By the method of moments; the interval (95
    %) is that of normal distributions.
    """
    forks, reloads = ratios.shape
    within = float(ratios.var(axis=1, ddof=1).mean())
    between = float(reloads * ratios.mean(axis=1).var(ddof=1))
    freedom = forks - 1, forks * (reloads - 1)
    ratio = between / within
    low, high = (max(0.0, (ratio / fisher.ppf(p, *freedom) - 1) / reloads) for p in (0.975, 0.025))
    share = max(0.0, (ratio - 1) / reloads)
    timing = float(quads.var(axis=2, ddof=1).mean() / quads.shape[2])

    def sd(variance: float) -> str:
        return f"{math.sqrt(max(0.0, variance)) * 100:.3f}"

    return {
        "mean %": f"{ratios.mean() * 100:+.3f}",
        "sd between forks % (95 %)": f"{sd(share * within)} ({sd(low * within)} to "
        f"{sd(high * within)})",
        "between re-loads %": sd(within - timing),
        "in a re-load %": sd(timing),
        "F": f"{ratio:.2f}",
        "p": f"{fisher.sf(ratio, *freedom):.3f}",
        WORTH: f"{worth(share):.2f} ({worth(high):.2f} to {worth(low):.2f}) forks",
    }


def worth(share: float) -> float:
    """Return how many forks give a mean as sure as two re-loads in one fork do.

    `share` is the variance between forks over that of the re-loads in one.
    """
    return 2 / (1 + share / (1 + share))


def table(found: dict[str, Any]) -> str:
    """Return a record's table, of the forks with all their re-loads."""
    whole: dict[int, list[Any]] = {}
    for replica in found["replicas"]:
        whole.setdefault(replica["fork"], []).append(replica)
    forks = [turns for turns in whole.values() if len(turns) == found["reloads"]]
    labels = list(found["replicas"][0]["cases"])

    def values(key: str) -> Values:
        return np.array([[[r["cases"][c][key] for c in labels] for r in turns] for turns in forks])

    ratios, quads = values("log_ratio"), values("quads")
    rows = [
        {"case": label} | components(ratios[:, :, i], quads[:, :, i])
        for i, label in enumerate(labels)
    ]
    together = components(ratios.mean(axis=2), quads.mean(axis=2))
    rows.append({"case": "geometric mean"} | together)
    is_seen = float(together["p"]) < LEVEL
    said = (
        "The process adds to the geometric mean" if is_seen else "No effect of the process is seen"
    )
    said += f" (p = {together['p']}): {WORTH} {together[WORTH]}."
    first, later = (
        np.median([r["device_seconds"] for turns in forks for r in turns[part]])
        for part in (slice(1), slice(1, None))
    )
    text = tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)
    return (
        f"{where(found)}: {len(forks)} forks of {found['reloads']} re-loads; the device is held"
        f" {first:.2f} s for the first in a fork and {later:.2f} s for the others; "
        f"{sum(r['seconds'] for r in found['replicas']):.0f} s altogether.\n\n{text}\n\n{said}\n"
    )


def where(found: dict[str, Any]) -> str:
    """Return the device and the day of a record."""
    told = found["machine"]
    uuid = found["replicas"][0]["uuid"]
    device = next((f"{gpu[:-30]}…" for gpu in told["gpus"] if gpu.endswith(uuid)), "A CPU")
    return f"{device}, torch {told['torch']}, {told['time'][:10]}"


def measure(asked: argparse.Namespace) -> None:
    """Measure into OUT and show the table."""
    asked.out.mkdir(parents=True, exist_ok=True)
    out = asked.out / "reload_replicas.json"
    out.unlink(missing_ok=True)
    told = {
        **{name: vars(asked)[name] for name in ("forks", "reloads", "seconds", "device")},
        "machine": machine(),
        "out": str(out.resolve()),
    }
    paths = (ROOT / "benchmarks", ROOT, os.environ.get("PYTHONPATH", ""))
    with ExitStack() as held:
        project, tests = asked.project or GPU_PROJECT, asked.tests or "tests/test_ops.py"
        if asked.device == "cpu" and not asked.project:
            project, tests = Path(held.enter_context(tempfile.TemporaryDirectory())), "tests"
            write_project(project)
        done = run(
            project,
            *("-p", "reloading_plugin", "--kopt-device", asked.device),
            *("--kopt-calibrate", str(max(4, asked.forks * asked.reloads)), tests),
            **{ASKED: json.dumps(told), "PYTHONPATH": os.pathsep.join(map(str, paths))},
        )
    if done.code:
        print(done.text)
    print(f"the session took {done.seconds:.1f} s and ended with {done.code}")
    if out.exists():
        print(table(json.loads(out.read_text())))


def write() -> None:
    """Put the tables of all records into the documentation."""
    records = sorted((ROOT / "docs/results").glob("reload_replicas_*.json"))
    text = "\n".join(table(json.loads(path.read_text())) for path in records)
    replace_table(ROOT / "docs/paired.md", "reload_replicas", text)


def main() -> None:
    if sys.argv[1:] == ["write"]:
        write()
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--forks", type=int, default=20)
    parser.add_argument("--reloads", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=200.0, help="begin no replica after these")
    parser.add_argument("--project", type=Path)
    parser.add_argument("--tests")
    asked = parser.parse_args()
    if asked.forks % AT_ONCE or min(asked.forks, asked.reloads) < 2:
        parser.error("an even number of forks, and two re-loads at least")
    measure(asked)


if __name__ == "__main__":
    main()
