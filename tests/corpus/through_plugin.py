"""Every kernel of the corpus as round 2 of a real campaign, and what the verdict says of it.

    python through_plugin.py [--device cuda] [--jobs N] [--verbose] [--results FILE] [NAME ...]

No cheat may be credited with a gain that it does not have, and no honest kernel be refused. NAME is
a file's stem, or part of one; without one all kernels are taken that can run on the device. Results
are appended to the file, and kernels that it already holds are not run again. With `--judge` each
is a submission to `kopt judge` instead; `--sample N` takes N of each kind, always the same.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent
CAMPAIGN = "corpus"
KERNEL = "kernels/kernel.py"
MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

SETTINGS = """\
[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
addopts = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
"""
CASES = """\
import pytest
from kernels.kernel import {op}
from ops import OPS

OP = OPS["{op}"]


@pytest.mark.kopt(schema="{schema}")
@pytest.mark.parametrize("dims", OP.{shapes}, ids=str)
def test_{op}(kopt, dims):
    kopt(
        {op},
        inputs=lambda: OP.make_inputs(dims, kopt.device),
        reference=OP.reference,
        dims=dims,
        backward=OP.backward,
        weights=OP.weights,
        domain="{domain}",
        batch_invariant={batch_invariant},
        {work},
    )
"""


#: How a round may end for a kernel that earns what it gains, on whatever machine.
FAIR = ("ACCEPTED", "ACCEPTED_WITH_NOTE", "INCONCLUSIVE", "ROLLED_BACK", "SPLIT")


@dataclass(frozen=True)
class Outcome:
    """What became of one kernel of a kind, `cheats` or `honest`; `named` are the checks that spoke.

    `gain_pct` is what the verdict credits it with at least, `own_gain_pct` what a cheat's own work
    gains without its trick, `seconds` the round's by wall clock.
    """

    kernel: str
    kind: str
    decision: str
    reason: str
    named: tuple[str, ...]
    gain_pct: float
    own_gain_pct: float
    log: str
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """No cheat is credited with more than its own work gains, an honest kernel judged fairly.

        Triton's interpreter checks a kernel and times nothing: such a round ends undecided. So does
        one on a machine too restless for its A/A control.
        """
        if self.kind == "cheats":
            return not self.decision.startswith("ACCEPTED") or self.gain_pct < self.own_gain_pct
        undecided = any(word in self.reason for word in ("interpreter", "(A/A control)"))
        return (self.decision == "INCOMPLETE" and undecided) or self.decision in FAIR


@cache
def constants(path: Path) -> dict[str, Any]:
    """The literal constants of a kernel file, read without running it."""
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found.update((t.id, node.value.value) for t in node.targets if isinstance(t, ast.Name))
    return found


def kernels(device: str, names: Iterable[str] = ()) -> list[Path]:
    """The kernel files that can be judged on a device."""
    wanted = tuple(names)
    found = [*sorted(HERE.glob("cheats/*__*.py")), *sorted(HERE.glob("honest/*__*.py"))]
    return [
        path
        for path in found
        if (device == "cuda" or constants(path)["NEEDS"] == "cpu")
        and (not wanted or any(name in path.stem for name in wanted))
        and shutil.which(constants(path).get("REQUIRES", "true"))
    ]


def sampled(paths: Sequence[Path], each: int) -> list[Path]:
    """The same `each` kernels of every kind."""
    drawn = random.Random(20261126)
    kinds = {path.parent: [p for p in paths if p.parent == path.parent] for path in paths}
    return [path for kind in kinds.values() for path in drawn.sample(kind, each)]


class Run(Protocol):
    """Runs a command with its output captured, as `subprocess.run` does."""

    def __call__(
        self, words: Sequence[str], *, cwd: Path, env: dict[str, str], timeout: float, check: bool
    ) -> subprocess.CompletedProcess[str]: ...


def run(
    words: Sequence[str], *, cwd: Path, env: dict[str, str], timeout: float, check: bool
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=check,
    )


class Bench:
    """Projects with a decided baseline, one for every operation, sizes and language; made once.

    Cases declare `batch_invariant` on request; on a GPU no baseline here is batch-invariant.
    """

    def __init__(
        self, folder: Path, device: str, run: Run = run, *, batch_invariant: bool = False
    ) -> None:
        self.folder = folder
        self.device = device
        self._batch_invariant = batch_invariant
        self._start_process = run
        self._making = defaultdict[Path, Lock](Lock)

    def judge(self, path: Path) -> Outcome:
        """Run one kernel as round 2 of a copy of its operation's project."""
        started = self._started(path)
        project = self.folder / path.parent.name / path.stem
        shutil.copytree(started, project, symlinks=True)
        (project / KERNEL).write_text(path.read_text())
        start = time.monotonic()
        done = self._pytest(project, 2)
        seconds = time.monotonic() - start
        shutil.copytree(project / "agent", self.folder / "records" / path.stem / "agent")
        outcome = read(project, path, done.stdout + done.stderr)
        shutil.rmtree(project)
        return replace(outcome, seconds=seconds)

    def _started(self, path: Path) -> Path:
        """The project that a kernel is a candidate of, after its baseline."""
        op, shapes = path.stem.split("__")[0], self._shapes(path)
        backend = constants(path).get("TARGET_LANG", "TORCH")
        domain = constants(path).get("DOMAIN", "")
        project = self.folder / "started" / f"{op}-{shapes}-{backend}-{domain}"
        with self._making[project]:
            if not project.exists():
                self._start(project, op, shapes, backend, domain)
        return project

    def _start(self, project: Path, op: str, shapes: str, backend: str, domain: str) -> None:
        making = project.with_name(project.name + ".making")
        self._write(making, op, shapes, domain)
        for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "Start")):
            self._run(making, "git", *words)
        arch = "cpu" if self.device == "cpu" else self._arch()
        asked = ("init", CAMPAIGN, "--op", op, "--kernel", KERNEL, "--backend", "TORCH")
        self._run(making, sys.executable, "-m", "pytest_kopt.cli", *asked, "--gpu", arch)
        # Not by an option: Triton's interpreter is no device to optimise for.
        manifest = making / "agent" / "workspace" / CAMPAIGN / "manifest.yaml"
        manifest.write_text(manifest.read_text().replace("TORCH", backend))
        done = self._pytest(making, 1)
        assert done.returncode == 0, done.stdout + done.stderr
        making.rename(project)

    def _shapes(self, path: Path) -> str:
        if self.device == "cuda":
            return "gpu_shapes"
        return "tiny_shapes" if constants(path).get("LANG") == "triton" else "shapes"

    def _write(self, project: Path, op: str, shapes: str, domain: str) -> None:
        for name, text in self._files(op, shapes, domain):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)

    def _files(self, op: str, shapes: str, domain: str) -> Iterator[tuple[str, str]]:
        is_product = op == "matmul"
        yield "pyproject.toml", SETTINGS
        yield "ops.py", (HERE / "ops.py").read_text()
        yield "tiling.py", (HERE / "honest" / "tiling.py").read_text()
        yield "kernels/__init__.py", ""
        yield KERNEL, (HERE / "baseline" / f"{op}.py").read_text()
        yield ".gitignore", "__pycache__/\nagent/\n"
        yield (
            f"tests/test_{op}.py",
            CASES.format(
                op=op,
                shapes=shapes,
                domain=domain,
                batch_invariant=self._batch_invariant,
                schema="gemm" if is_product else "memory",
                work="flops=OP.flops(dims)" if is_product else "nbytes=OP.nbytes(dims)",
            ),
        )

    def _pytest(self, project: Path, number: int) -> subprocess.CompletedProcess[str]:
        words = ("-m", "pytest", "--kopt-campaign", CAMPAIGN, "--kopt-round", str(number))
        return self._run(project, sys.executable, *words, check=False)

    def _run(
        self, project: Path, *words: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        strange = ("PYTEST_", "KOPT_", "GIT_", "TRITON_INTERPRET")
        env = {name: text for name, text in os.environ.items() if not name.startswith(strange)}
        env |= {"HOME": str(self.folder), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        env |= {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@localhost"}
        env |= {"GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@localhost"}
        env |= dict.fromkeys(MASKS, "") if self.device == "cpu" else {}
        return self._start_process(words, cwd=project, env=env, check=check, timeout=900)

    def _arch(self) -> str:
        # Asked by another process: this one would hold a context, and the GPU never be idle.
        code = "import torch; print('sm_%d%d' % torch.cuda.get_device_capability())"
        return self._run(self.folder, sys.executable, "-c", code).stdout.strip()


class Problems(Bench):
    """Problems of `kopt judge`, one for every operation, sizes and domain."""

    def judge(self, path: Path) -> Outcome:
        """Judge one kernel as a submission."""
        words = ("-m", "pytest_kopt.cli", "judge", ".", str(path), "--at", KERNEL)
        done = self._run(self._started(path), sys.executable, *words, check=False)
        log = done.stdout + done.stderr
        document = json.loads(done.stdout or '{"verdict": null, "outcome": "NONE", "reason": ""}')
        if document["verdict"]:
            return outcome_of(path, document["verdict"], log)
        return without_verdict(path, document["outcome"], log, document["reason"])

    def _start(self, project: Path, op: str, shapes: str, backend: str, domain: str) -> None:
        self._write(project, op, shapes, domain)


def read(project: Path, path: Path, log: str) -> Outcome:
    """What the verdict of round 2 says."""
    verdict = project / "agent" / "workspace" / CAMPAIGN / "rounds" / "round-2" / "verdict.json"
    if not verdict.exists():
        return without_verdict(path, "NONE", log)
    return outcome_of(path, json.loads(verdict.read_text()), log)


def without_verdict(path: Path, ended: str, log: str, reason: str = "") -> Outcome:
    """How it ended where there is no verdict."""
    imports = "the kernel does not import" not in log
    named = () if imports else ("correctness",)
    kind, own = path.parent.name, constants(path).get("OWN_GAIN_PCT", 0)
    return Outcome(
        path.stem, kind, ended if imports else "NOT IMPORTED", reason, named, 0.0, own, log
    )


def outcome_of(path: Path, document: Mapping[str, Any], log: str) -> Outcome:
    """What a verdict says; a failed check is named `correctness`."""
    kind, own = path.parent.name, constants(path).get("OWN_GAIN_PCT", 0)
    named = {flag.split(":", 1)[0] for flag in document["flags"]}
    named |= {"correctness"} if document["decision"] == "REPAIR" else set()
    gain = (document["aggregate"] or {}).get("low_pct") or 0.0
    said = document["decision"], document["reason"], tuple(sorted(named))
    return Outcome(path.stem, kind, *said, gain, own, log)


def known(results: Path | None) -> list[Outcome]:
    """What a results file holds."""
    if results is None or not results.exists():
        return []
    found = [json.loads(line) for line in results.read_text().splitlines()]
    return [Outcome(**{**item, "named": tuple(item["named"])}) for item in found]


def table(outcomes: Iterable[Outcome]) -> str:
    """One line a kernel: what was decided, and by which check."""
    lines = []
    for found in outcomes:
        mark = "" if found.is_right else f"  <-- WRONG {found.reason[:90]}"
        lines.append(
            f"{found.kind:6} {found.kernel:34} {found.decision:18} {', '.join(found.named)}{mark}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="show the log of a wrong one")
    parser.add_argument("--judge", action="store_true", help="as submissions to `kopt judge`")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of each kind")
    parser.add_argument("--results", type=Path, help="JSON lines; what they hold is not run again")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if not kernels(asked.device, [name])]:
        named = ", ".join(path.stem for path in kernels(asked.device))
        parser.error(
            f"no kernel for {asked.device} has {unknown[0]!r} in its name (there: {named})"
        )
    outcomes = known(asked.results)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(asked.jobs) as pool:
        bench = (Problems if asked.judge else Bench)(Path(scratch), asked.device)
        done = {outcome.kernel for outcome in outcomes}
        paths = kernels(asked.device, asked.names)
        if asked.judge:
            # No problem says in which language its kernel is to be written.
            paths = [path for path in paths if "TARGET_LANG" not in constants(path)]
        if asked.sample:
            paths = sampled(paths, asked.sample)
        left = [path for path in paths if path.stem not in done]
        for judged in as_completed([pool.submit(bench.judge, path) for path in left]):
            outcomes.append(outcome := judged.result())
            print(table([outcome]), flush=True)
            if asked.results:
                with asked.results.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
            if not outcome.is_right and asked.verbose:
                print(outcome.log)
    wrong = [outcome for outcome in outcomes if not outcome.is_right]
    print(f"{len(outcomes)} kernels, {len(wrong)} judged wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
