"""Which groups of checks are needed, and what all of them cost.

    python benchmarks/honesty_ablation.py OUT [--off GROUP ...] [--honest] [--device cuda]
                                              [--cores FIRST-LAST] [--jobs N] [--names NAME ...]
    python benchmarks/honesty_ablation.py OUT --cost [--device cuda] [--pairs N] [--names NAME]

Every cheat of the corpus is round 2 of a real campaign in which the checks of some groups are never
asked; OUT gets a JSON line each, and what it holds is not run again. What is accepted is then timed
in a process of its own, on inputs drawn for every call, by processor time (on a GPU by the clock on
the wall): a cheat is credited wrongly if it gains less than half as much there. NAME is a file's
stem, or part of one; with --honest the honest kernels are played too. Each of N jobs has its share
of the cores, and on the CPU does not wait for the others to time.

With --cost one honest kernel is played N times with all checks, and in turns without: of a check
only the comparison with the reference on fresh inputs is left. The first pair does not count. OUT
is a folder, for honesty_cost_DEVICE.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_report import Report  # noqa: E402
from tests.corpus import through_plugin  # noqa: E402

#: The functions that make each group's findings, in `pytest_kopt`.
GROUPS = {
    "process": "cases.running.switches:left_switches",
    "caches": "honesty.outputs:stale cases.running.steps.contents:few_of_a_weight",
    "audit": "honesty.audit:audit",
    "replay": "cases.running.steps.fresh_content:by_hand",
    "late": "cases.running.steps.contents:aftermath",
    "sharing": "honesty.outputs:shared cases.running.steps.contents:recycled",
}
#: Those of the process that decides, which has no torch; all others are called where kernels run.
DECIDING = GROUPS["audit"].split()
#: Leaves checks out, in the process that decides and in those that run cases.
HEAD = """\
import sys
from pathlib import Path
from pkgutil import resolve_name

from pytest_kopt.devices import lock


def finds_nothing(*given, **named):
    return []


runs_cases = "pytest_kopt.processes.served" in sys.modules
"""
PLUGIN = (
    HEAD
    + """

def owners():
    for module in [m for name, m in sys.modules.items() if name.startswith("pytest_kopt")]:
        yield module
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
        yield from (kind for kind in kinds if kind.__module__ == module.__name__)


for name in {functions!r}:
    if (name in {deciding!r}) != runs_cases:
        function = resolve_name(f"pytest_kopt.{{name}}")
        for owner in owners():
            for key, value in [*vars(owner).items()]:
                if value is function:
                    setattr(owner, key, finds_nothing)
"""
)
WITHOUT_ALL = (
    HEAD
    + """

def replace(owner, name, value):
    assert hasattr(owner, name), f"{owner} has no {name}"
    setattr(owner, name, value)


from types import SimpleNamespace

from pytest_kopt.cases.replies import Loaded
from pytest_kopt.paired import arms, blocks, credit
from pytest_kopt.trials.rounds import candidate

replace(candidate, "audit", finds_nothing)
replace(credit, "look_alone", lambda *given: credit.CrossCheck())
replace(blocks, "_LOOKS", 0)
replace(arms.Arms, "asks_more", False)
methods = ("load", "judge", "kill", "end")
judge = SimpleNamespace(has_died=False, folder=None, **dict.fromkeys(methods, finds_nothing))
judge.await_loaded = lambda nodeid: Loaded()
replace(arms.Arms, "start_judge", lambda *given: judge)

if runs_cases:
    from pytest_kopt.cases.running import check, checking, timing
    replace(check, "_steps", lambda checking: [check.fresh_content])
    for owner, names in (
        (check, "equal_calls _after_steps"),
        (checking.Checking, "_findings_of_call"),
        (timing, "too_fast uncaptured wrong_results"),
    ):
        for name in names.split():
            replace(owner, name, finds_nothing)

    replace(timing, "Content", lambda *given: None)
    replace(timing, "Gradients", lambda *given: None)
"""
)
#: Calls one version of a kernel on inputs of its own for every call; prints what a call takes in
#: each shape, by a clock that was bound before the kernel could replace it.
CALLER = """\
import importlib.util, statistics, sys
from time import perf_counter, process_time
import torch

sys.path[:0] = [sys.argv[2]]
from ops import OPS

name, calls, device = sys.argv[3], int(sys.argv[4]), sys.argv[5]
spec = importlib.util.spec_from_file_location("kernel", sys.argv[1])
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
op, function = OPS[name], getattr(kernel, name)
torch.set_num_threads(1)
clock = process_time if device == "cpu" else perf_counter
for dims in op.shapes if device == "cpu" else op.gpu_shapes:
    took = []
    for number in range(calls):
        torch.manual_seed(number)
        given = op.make_inputs(dims, device)
        if device != "cpu":
            torch.cuda.synchronize()
        start = clock()
        function(*given)
        if device != "cpu":
            torch.cuda.synchronize()
        took.append(clock() - start)
    print(statistics.median(took[calls // 4 :]))
"""
CALLS = 80
#: The honest kernel whose rounds are timed with and without checks.
TIMED = "rmsnorm__fused"


class Ablated(through_plugin.Bench):
    """Projects whose sessions never ask some checks, on cores with a timing lock of their own."""

    def __init__(self, folder: Path, device: str, plugin: str, cores: str) -> None:
        folder.mkdir()
        super().__init__(folder, device, self._on_cores)
        self._cores = cores
        self._plugin = plugin
        # Confinement is one of the checks.
        self._more = 'kopt_isolation = "off"\n' if plugin is WITHOUT_ALL else ""
        if device == "cpu":
            locks = folder / "locks"
            locks.mkdir()
            # Here and not by the first who times: that is a process which is confined.
            for name in ("cpu", "cpu.turn"):
                (locks / f"{name}.lock").touch()
            self._plugin += f"lock.DIRECTORY = Path({str(locks)!r})\n"

    def _on_cores(self, words: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        return through_plugin.run(["taskset", "-c", self._cores, *words], **how)

    def _files(self, op: str, shapes: str, domain: str) -> Iterator[tuple[str, str]]:
        for name, text in super()._files(op, shapes, domain):
            if name == "pyproject.toml":
                text = text.replace("addopts = [", 'addopts = ["-p", "ablated", ') + self._more
            yield name, text
        yield "ablated.py", self._plugin


def seconds(path: Path, op: str, device: str, cores: str) -> list[float]:
    """Return what a version's call takes on inputs of its own, in a process of its own, by shape.

    On the CPU that is processor time. A kernel that replaces the clock's machine code is believed.
    """
    words = [sys.executable, "-c", CALLER, str(path), str(through_plugin.HERE), op]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["taskset", "-c", cores, *words, str(CALLS), device],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
    return [float(line) for line in done.stdout.split()]


def own_gain_pct(path: Path, device: str, cores: str) -> float:
    """Return a kernel's gain over its baseline in percent, every call on inputs of its own."""
    op = path.stem.split("__")[0]
    baseline = through_plugin.HERE / "baseline" / f"{op}.py"
    old, new = (seconds(each, op, device, cores) for each in (baseline, path))
    ratios = (before / max(now, 1e-9) for before, now in zip(old, new, strict=True))
    return 100 * (statistics.geometric_mean(ratios) - 1)


def play(path: Path, bench: Ablated, device: str, cores: str) -> dict[str, object]:
    """Return what became of a kernel, as a line of the results."""
    start = time.monotonic()
    outcome = bench.judge(path)
    line = {"kernel": path.stem, "kind": path.parent.name, "decision": outcome.decision}
    line |= {"reason": outcome.reason, "named": outcome.named}
    line["seconds"] = round(time.monotonic() - start, 1)
    if path.parent.name == "cheats" and outcome.decision.startswith("ACCEPTED"):
        try:
            line["own_gain_pct"] = own_gain_pct(path, device, cores)
        except subprocess.SubprocessError as error:
            line["own_gain_pct"] = str(error)[:200]
    return line


def cost(out: Path, device: str, pairs: int, name: str, cores: str) -> None:
    """Time rounds of one honest kernel with all checks and without, in turns."""
    report = Report(out, f"honesty_cost_{device}")
    (path,) = (path for path in through_plugin.kernels(device, [name]) if path.stem == name)
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        plugins = {
            "checked": PLUGIN.format(functions=[], deciding=[]),
            "unchecked": WITHOUT_ALL,
        }
        benches = [(k, Ablated(Path(folder, k), device, p, cores)) for k, p in plugins.items()]
        for number in range(pairs + 1):
            for kind, bench in benches if number % 2 else benches[::-1]:
                outcome = bench.judge(path)
                if not outcome.is_right:
                    sys.exit(f"{kind}: {outcome.decision}\n{outcome.log[-4000:]}")
                shutil.rmtree(bench.folder / "records")
                seconds = round(outcome.seconds, 2)
                line = {"kind": kind, "seconds": seconds, "decision": outcome.decision}
                print(line, flush=True)
                rounds += [line] if number else []
            report.add("rounds", rounds)
    total: dict[str, Any] = {
        kind: statistics.median(line["seconds"] for line in rounds if line["kind"] == kind)
        for kind in plugins
    }
    total["more %"] = round(100 * (total["checked"] / total["unchecked"] - 1), 1)
    report.table(f"Rounds of {name}", [total])
    report.add("total", total)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--off", nargs="*", choices=GROUPS, default=[])
    parser.add_argument("--honest", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cores", default=f"0-{(os.cpu_count() or 1) - 1}")
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    if asked.cost:
        cost(asked.out, asked.device, asked.pairs, (asked.names or [TIMED])[0], asked.cores)
        return 0
    functions = [name for group in asked.off for name in GROUPS[group].split()]
    plugin = PLUGIN.format(functions=functions, deciding=DECIDING)
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    done = {json.loads(line)["kernel"] for line in lines}
    first, last = map(int, asked.cores.split("-"))
    share = (last + 1 - first) // asked.jobs
    idle: queue.SimpleQueue[tuple[Ablated, str]] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as pool:
        for number in range(asked.jobs):
            start = first + number * share
            cores = f"{start}-{start + share - 1}"
            idle.put((Ablated(Path(folder, str(number)), asked.device, plugin, cores), cores))

        def judge(path: Path) -> dict[str, object]:
            bench, cores = idle.get()
            try:
                return {**play(path, bench, asked.device, cores), "off": asked.off}
            finally:
                idle.put((bench, cores))

        paths = [
            path
            for path in through_plugin.kernels(asked.device, asked.names)
            if (asked.honest or path.parent.name == "cheats") and path.stem not in done
        ]
        for played in as_completed([pool.submit(judge, path) for path in paths]):
            text = json.dumps(played.result())
            print(text, flush=True)
            with asked.out.open("a") as file:
                file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
