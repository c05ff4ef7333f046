"""Which groups of checks are needed, and what all of them cost.

    python benchmarks/honesty_ablation.py OUT [--off GROUP ...] [--honest] [--device cuda]
                                              [--cores FIRST-LAST] [--jobs N] [--names NAME ...]
    python benchmarks/honesty_ablation.py OUT --cost [--device cuda] [--pairs N]

Every cheat of the corpus is round 2 of a real campaign in which the checks of some groups are never
asked; OUT gets a JSON line each, and what it holds is not run again. What is accepted is then timed
in a process of its own, on inputs drawn for every call, by processor time (on a GPU by the clock on
the wall): a cheat is credited wrongly if it gains less than half as much there. NAME is a file's
stem, or part of one; with --honest the honest kernels are played too. Each of N jobs has its share
of the cores, and on the CPU does not wait for the others to time.

With --cost a version that loses and one that is kept are played N times with all checks, and in
turns without: of a check only the comparison with the reference on fresh inputs is left. A table
has what each rule of docs/honesty.md takes, in the process that does its work. OUT is a folder, for
honesty_cost_DEVICE.json and .md.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "sharing": "honesty.outputs:shared",
}
#: Those of the process that decides, which has no torch; all others are called where kernels run.
DECIDING = GROUPS["audit"].split()
#: Plugins exchange functions, in the process that decides and in those that run cases. What their
#: names stand for comes first.
HEAD = """\
import sys
from pathlib import Path
from pkgutil import resolve_name

from pytest_kopt.devices import lock


def finds_nothing(*given, **named):
    return []


def owners():
    for module in [m for name, m in sys.modules.items() if name.startswith("pytest_kopt")]:
        yield module
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
        yield from (kind for kind in kinds if kind.__module__ == module.__name__)


def exchange(name, made_of):
    function = resolve_name(f"pytest_kopt.{name}")
    value = made_of(function)
    for owner in owners():
        for key, held in [*vars(owner).items()]:
            if held is function:
                setattr(owner, key, value)


runs_cases = "pytest_kopt.processes.served" in sys.modules
"""
PLUGIN = (
    HEAD
    + """
for name in functions:
    if (name in deciding) != runs_cases:
        exchange(name, lambda function: finds_nothing)
"""
)
WITHOUT_ALL = (
    HEAD
    + """
if runs_cases:
    from pytest_kopt.cases.running.steps.fresh_content import fresh_content

    instead = {
        "cases.running.check:_steps": lambda checking: [fresh_content],
        "cases.running.timed_calls:Content": lambda *given, **named: None,
        "cases.running.timed_calls:Gradients": lambda *given, **named: None,
    }
    silent = (
        "cases.running.check:_after_steps cases.running.checking:Checking._findings_of_call "
        "cases.running.steps.contents:still_busy cases.running.steps.equal_calls:equal_calls "
        "cases.running.spot_checks:wrong_results cases.running.timing:uncaptured "
        "honesty.work:too_fast"
    )
else:
    from types import SimpleNamespace

    from pytest_kopt.cases.replies import Loaded
    from pytest_kopt.paired.credit import UNEXAMINED
    from pytest_kopt.paired.samples import BlockTime

    judge = SimpleNamespace(
        has_died=False,
        folder=None,
        await_loaded=lambda nodeid: Loaded(sets=[sets[nodeid.partition("[")[2]]]),
        **dict.fromkeys(("load", "kill", "end"), finds_nothing),
    )
    instead = {
        "paired.arms:Arms.start_judge": lambda *given: judge,
        # The current best alone and the outside clock are asked above it.
        "paired.comparison:_GAIN": float("inf"),
        "paired.blocks:Blocks._look": lambda *given: BlockTime(1.0, None, 1.0, 1.0, 1.0),
        "paired.blocks:Blocks.keeps": lambda *given: None,
        "paired.blocks:Blocks.looked_at": [],
        "paired.comparison:Comparison.untried": "",
        "paired.credit:examine": lambda *given: UNEXAMINED,
        # Blocks are timed by the clock on the wall then.
        "processes.child:Child.inspected": None,
    }
    silent = (
        "honesty.audit:audit paired.comparison:Comparison.findings_nearby "
        "paired.comparison:Comparison.try_nearby trials.harness:HarnessWatch.check_dependencies"
    )
for name, value in (instead | dict.fromkeys(silent.split(), finds_nothing)).items():
    exchange(name, lambda function: value)
"""
)
#: The functions that carry each rule of docs/honesty.md, in the process that decides and in those
#: that run cases, with the argument that they do so for. Rule 7 acts before a plugin is loaded, and
#: checks of a case that "none" requires have no rule. What stands under "" has its time taken off
#: that of the function that calls it: it waits for another process, or compares with the reference,
#: as a round without checks does.
CARRIERS = (
    {
        "1": "paired.credit:look_total",
        "2": "paired.credit:look_outside paired.credit:look_around "
        "paired.blocks:Blocks.seen_outside devices.processes:Inspected.cpu_ms",
        "3": "paired.credit:look_anew",
        "4": "paired.judge:SeenBlock.see",
        "4-near": "paired.comparison:Lane.try_nearby",
        "5": "paired.credit:look_alone paired.blocks:Blocks.run=alone",
        "6": "trials.harness:HarnessWatch.check_dependencies",
        "9": "trials.harness:HarnessWatch.check",
        "10": "trials.measurements:Measurements.time_also",
        "11": "honesty.audit:audit",
        "13": "paired.judge:Judge.accuses",
        "": "processes.child:Child.expect=Written",
    },
    {
        "3": "cases.running.spot_checks:Spotted.write cases.running.spot_checks:Spotted.look",
        "4": "cases.running.judge_orders:serve_judge cases.running.inspected_results:hand_over "
        "cases.running.spot_checks:Spotted.keep cases.running.spot_checks:wrong_results",
        "8": "honesty.work:too_fast",
        "12": "cases.running.steps.equal_calls:parts_of_a_batch "
        "cases.running.steps.equal_calls:same_distribution",
        "none": "cases.running.check:_take_steps cases.running.check:_after_steps",
        "": "cases.running.steps.fresh_content:fresh_content processes.served:Serve.receive",
    },
)
#: Writes down, a line a call, what the functions in CARRIERS take themselves.
TIMED = (
    HEAD
    + """
import fcntl
import os
from functools import wraps
from inspect import isgeneratorfunction
from time import perf_counter
from types import SimpleNamespace

file = os.open(costs, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
#: Of each call that goes on, what those that it made have taken.
inner = [0.0]


def write(rule, seconds):
    os.write(file, f"{os.getpid()} {rule} {1e3 * seconds}\\n".encode())


def timed(rule, function, argument=""):
    @wraps(function)
    def call(*given, **named):
        if argument and not any(argument in str(each) for each in given):
            return function(*given, **named)
        inner.append(0.0)
        begin = perf_counter()
        try:
            found = function(*given, **named)
            return [*found] if isgeneratorfunction(function) else found
        finally:
            passed = perf_counter() - begin
            own = passed - inner.pop()
            inner[-1] += passed
            if rule:
                write(rule, own)

    return call


lock.fcntl = SimpleNamespace(**(vars(fcntl) | {"flock": timed("", fcntl.flock)}))
for rule, names in carriers[runs_cases].items():
    for name, _, argument in (each.partition("=") for each in names.split()):
        exchange(name, lambda function: timed(rule, function, argument))
if runs_cases:
    write("7", 0.0)
"""
)
#: Confines itself as a process that runs kernel code does, and prints the ms that it took.
CONFINED = """\
import sys, time
from pathlib import Path
from pytest_kopt.processes.isolation import isolate, separate_caches

begin = time.perf_counter()
isolate(Path(sys.argv[1]), [Path(sys.argv[2])])
separate_caches(Path(sys.argv[1]))
print(1e3 * (time.perf_counter() - begin))
"""
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
#: An honest kernel that does its work so many times, and how many times each version does.
KERNEL = """\
import torch


def rmsnorm(x, w):
    for _ in range({times}):
        out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w
    return out
"""
BASELINE, ROUNDS = 2, {"lost": 4, "kept": 1}
#: Five memory-bound cases: rows and columns.
SIZES = {
    "cpu": ((256, 512), (512, 512), (256, 1024), (512, 1024), (1024, 1024)),
    "cuda": ((4096, 2048), (8192, 4096), (2048, 8192), (16384, 4096), (8192, 8192)),
}
#: The input sets of a block, as a judge counts them: on a GPU each process does so itself.
SETS = {"cpu": (17, 10, 10, 5, 3), "cuda": (0,) * 5}


class Ablated(through_plugin.Bench):
    """Projects whose sessions never ask some checks, on cores with a timing lock of their own."""

    def __init__(self, folder: Path, device: str, plugin: str, cores: str) -> None:
        folder.mkdir()
        super().__init__(folder, device, self._on_cores)
        self._cores = cores
        self._plugin = plugin
        # Confinement is one of the checks.
        self._more = 'kopt_isolation = "off"\n' if plugin.endswith(WITHOUT_ALL) else ""
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


class Costed(Ablated):
    """Projects of five memory-bound cases, whose baseline does its work twice."""

    def _files(self, op: str, shapes: str, domain: str) -> Iterator[tuple[str, str]]:
        dims = _dims(self.device)
        for name, text in super()._files(op, shapes, domain):
            if name == through_plugin.KERNEL:
                text = KERNEL.format(times=BASELINE)
            if self.device == "cpu":
                text = text.replace("batch_invariant=False", "batch_invariant=True")
            yield name, text.replace(f"OP.{shapes}", repr(dims))

    def play(self, name: str) -> dict[str, Any]:
        """Return what a round of the kernel with this name took, as a line of the results."""
        path = self.folder / "honest" / f"rmsnorm__{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(KERNEL.format(times=ROUNDS[name]))
        before = os.times()
        outcome = self.judge(path)
        after = os.times()
        # Of all processes that ended and were waited for: so little depends on others' work here.
        spent = after.children_user + after.children_system
        spent -= before.children_user + before.children_system
        if outcome.decision != ("ACCEPTED" if name == "kept" else "ROLLED_BACK"):
            sys.exit(f"{name}: {outcome.decision}\n{outcome.log[-4000:]}")
        (evidence,) = (self.folder / "records").rglob("round-2/**/evidence.json")
        spans = json.loads(evidence.read_text())["session"]["timeline"]
        shutil.rmtree(self.folder / "records")
        return {
            "round": name,
            "decision": outcome.decision,
            "seconds": round(outcome.seconds, 2),
            "cpu_seconds": round(spent, 2),
            "phases_ms": _sums(
                (f"{span['process']}: {span['phase']}", 1e3 * (span["end"] - span["begin"]))
                for span in spans
            ),
        }


def _dims(device: str) -> list[dict[str, int]]:
    return [{"T": rows, "H": columns} for rows, columns in SIZES[device]]


def _sets(device: str) -> dict[str, int]:
    """Return the input sets of each case by the end of its node id."""
    return {f"{dims}]": sets for dims, sets in zip(_dims(device), SETS[device], strict=True)}


def _sums(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for key, ms in parts:
        sums[key] = sums.get(key, 0.0) + ms
    return {key: round(ms, 2) for key, ms in sums.items()}


def rules_ms(costs: Path, confined_ms: float) -> dict[str, float]:
    """Return the ms of each rule that a round's processes have written down."""
    lines = [line.split() for line in costs.read_text().splitlines()]
    costs.unlink()
    confined = (("7", confined_ms) for pid in {pid for pid, rule, _ in lines if rule == "7"})
    return _sums([*((rule, float(ms)) for _, rule, ms in lines), *confined])


def confined_ms() -> float:
    """Return what it takes a process to confine itself."""
    took = []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as hidden:
            words = [sys.executable, "-c", CONFINED, scratch, hidden]
            done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT)
            took.append(float(done.stdout))
    return statistics.median(took)


def cost(out: Path, device: str, pairs: int, cores: str) -> None:
    """Time rounds of five memory-bound cases with all checks and without, in turns."""
    report = Report(out, f"honesty_cost_{device}")
    rounds: list[dict[str, Any]] = []
    # Kernel code may write there, confined as it is.
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir="/dev/shm") as shared,
    ):
        costs, once_ms = Path(shared, "costs"), confined_ms()
        plugins = {
            "checked": f"costs, carriers = {str(costs)!r}, {CARRIERS!r}\n{TIMED}",
            "unchecked": f"sets = {_sets(device)!r}\n{WITHOUT_ALL}",
        }
        benches = [(k, Costed(Path(folder, k), device, p, cores)) for k, p in plugins.items()]
        for _, bench in benches:
            bench.play("lost")
        for number in range(pairs):
            for kind, bench in benches if number % 2 else benches[::-1]:
                for name in ROUNDS:
                    costs.unlink(missing_ok=True)
                    line = {"kind": kind, **bench.play(name)}
                    if kind == "checked":
                        line["rules_ms"] = rules_ms(costs, once_ms)
                    print(line, flush=True)
                    rounds.append(line)
                    report.add("rounds", rounds)
    report.add("shares", shares := [_share(rounds, name) for name in ROUNDS])
    report.table("Rounds with checks and without", shares)
    report.add("rules", rules := [*_by_rule(rounds)])
    report.table("What each rule takes", rules)


def _median(rounds: Iterable[Mapping[str, Any]], key: str, **which: str) -> float:
    return statistics.median(line[key] for line in rounds if which.items() <= line.items())


def _share(rounds: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return what checks add to a round of a name, by the wall and by processors."""
    share: dict[str, Any] = {"round": name}
    for key, what in (("seconds", "s"), ("cpu_seconds", "CPU s")):
        with_all, without = (
            _median(rounds, key, round=name, kind=kind) for kind in ("checked", "unchecked")
        )
        share |= {f"with, {what}": with_all, f"without, {what}": without}
        share[f"more {what} %"] = round(100 * (with_all / without - 1), 1)
    return share


def _by_rule(rounds: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    rules = {"7", *CARRIERS[0], *CARRIERS[1]} - {""}
    for rule in sorted(rules, key=lambda rule: (len(rule.partition("-")[0]), rule)):
        row: dict[str, Any] = {"rule": rule}
        for name in ROUNDS:
            lines = (line for line in rounds if line["round"] == name and "rules_ms" in line)
            took = [line["rules_ms"].get(rule, 0.0) for line in lines]
            row[f"{name}, ms"] = round(statistics.median(took), 2)
        yield row


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
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    if asked.cost:
        cost(asked.out, asked.device, asked.pairs, asked.cores)
        return 0
    functions = [name for group in asked.off for name in GROUPS[group].split()]
    plugin = f"functions, deciding = {functions!r}, {DECIDING!r}\n{PLUGIN}"
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
