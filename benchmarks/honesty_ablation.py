"""Which groups of checks are needed so that no cheat is credited with a gain that it does not have.

    python benchmarks/honesty_ablation.py OUT [--off GROUP ...] [--device cuda] [NAME ...]

Every cheat of the corpus is round 2 of a real campaign in which the checks of some groups (default:
all of them) are never asked; OUT gets a JSON line each, and what it holds is not run again. What is
accepted is then timed by a clock of this script's own: whole processes that call one version on
inputs drawn for every call, by the wall clock of the process that starts them. A cheat is credited
wrongly if it gains less than half as much there. NAME is a file's stem, or part of one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.corpus import through_plugin  # noqa: E402

#: The functions that make each group's findings, as honesty/checks.py names them.
GROUPS = {
    "watching": (
        "honesty.watching.state:changes honesty.watching.watch:patched "
        "honesty.watching.watch:heard cases.running.execution:left_behind "
        "honesty.watching.state:left_threads honesty.watching.state:left_profiler "
        "honesty.watching.state:taken_threads cases.fixture:forged"
    ),
    "caches": (
        "cases.running.steps.contents:counted cases.running.steps.contents:after_many_calls "
        "honesty.outputs:stale cases.running.steps.contents:remembered "
        "cases.running.steps.training_check:caches "
        "cases.running.steps.training_check:known_tensors "
        "cases.running.spot_checks:known_content"
    ),
    "audit": "honesty.audit:audit honesty.transfer:bucket_findings",
    "replay": "cases.running.steps.by_hand:by_hand",
    "late": "honesty.outputs:late cases.running.steps.aftermath:aftermath",
    "sharing": "honesty.outputs:shared",
}
PLUGIN = """\
from pytest_kopt.honesty import checks

OFF = {functions!r}
assert {{check.function for check in checks.TABLE}}.issuperset(OFF)
checks.TABLE = tuple(check for check in checks.TABLE if check.function not in OFF)
"""
#: Calls one version of a kernel, or none, on inputs of their own; takes the sum of each result.
CALLER = """\
import importlib.util, sys
import torch

sys.path[:0] = [sys.argv[2]]
from ops import OPS

name, calls = sys.argv[3], int(sys.argv[4])
op, function = OPS[name], lambda *given: given[0]
if sys.argv[1]:
    spec = importlib.util.spec_from_file_location("kernel", sys.argv[1])
    kernel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernel)
    function = getattr(kernel, name)
torch.set_num_threads(1)
for number in range(calls):
    for dims in op.shapes:
        torch.manual_seed(number)
        given = op.make_inputs(dims, "cpu")
        float(torch.as_tensor(function(*given)).double().sum())
"""
CALLS, TIMES = 40, 3


class Ablated(through_plugin.Bench):
    """Projects whose sessions never ask some checks."""

    def __init__(self, folder: Path, device: str, functions: list[str]) -> None:
        super().__init__(folder, device)
        self._plugin = PLUGIN.format(functions=functions)

    def _files(self, op: str, shapes: str, domain: str) -> Iterator[tuple[str, str]]:
        for name, text in super()._files(op, shapes, domain):
            if name == "pyproject.toml":
                text = text.replace("addopts = [", 'addopts = ["-p", "ablated", ')
            yield name, text
        yield "ablated.py", self._plugin


def seconds(path: Path | None, op: str) -> float:
    """Return what a process takes longer for twice as many calls of a version, None: of nothing."""
    took = []
    for calls in (CALLS, 2 * CALLS):
        words = [sys.executable, "-c", CALLER, str(path or ""), str(through_plugin.HERE), op]
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            subprocess.run(
                [*words, str(calls)], cwd=folder, check=True, capture_output=True, timeout=600
            )
            took.append(time.perf_counter() - start)
    return took[1] - took[0]


def true_gain_pct(path: Path) -> float:
    """Return a kernel's gain over its baseline in percent, by whole processes."""
    op = path.stem.split("__")[0]
    baseline = through_plugin.HERE / "baseline" / f"{op}.py"
    old, new, drawing = (
        statistics.median(seconds(each, op) for _ in range(TIMES))
        for each in (baseline, path, None)
    )
    return 100 * ((old - drawing) / max(new - drawing, 1e-9) - 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--off", nargs="*", choices=GROUPS, default=[*GROUPS])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--names", nargs="*", default=[])
    asked = parser.parse_args()
    functions = [name for group in asked.off for name in GROUPS[group].split()]
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    done = {json.loads(line)["kernel"] for line in lines}
    with tempfile.TemporaryDirectory() as folder:
        bench = Ablated(Path(folder), asked.device, functions)
        for path in through_plugin.kernels(asked.device, asked.names):
            if path.parent.name != "cheats" or path.stem in done:
                continue
            outcome = bench.judge(path)
            line = {"kernel": path.stem, "off": asked.off, "decision": outcome.decision}
            line |= {"reason": outcome.reason, "named": outcome.named}
            if outcome.decision.startswith("ACCEPTED"):
                line["true_gain_pct"] = true_gain_pct(path)
            print(json.dumps(line), flush=True)
            with asked.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
