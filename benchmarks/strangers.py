"""Kernels that strangers wrote, as they are: what becomes of them, and what a user has to declare.

    python benchmarks/strangers.py OUT [--gpu GPU] [--rounds] [--times N] [--jobs N]
        [--wheels DIR] [--packages P…] [--ops NAME…] [--ways plain file tree]

Each package comes from the index (or from a folder of wheels) by name and version into a throw-away
environment on top of this one. Each of its operations is tried twice: `file`, plain torch as the
baseline and their file as the candidate, and `tree`, their package as the project and a change
without effect; `--ways plain` tries plain torch alone. Without --rounds a package is only checked,
in one session, next to wrong results: zeros, the other sign, a narrower dtype. The table has the
gates that kopt derived. With --rounds each operation is a campaign of two shapes and two rounds, N
of them side by side, and each of its commands is timed. A `file` is judged twice more in copies of
the project after its baseline: with a wrong result, and as it is once all of it has been compiled.
On the CPU, where no GPU is named, Triton is interpreted, and such times decide nothing. OUT gets
strangers.json and strangers.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import site
import subprocess
import sys
import time
import venv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from strangers_ops import HELPERS, OPS, PACKAGES, Op

_TEST = """\
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from helpers import *
from pytest_kopt import snr
from {module} import {name} as op

C, DTYPE = {columns}, torch.{dtype}


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("R", {rows})
@pytest.mark.parametrize("how", {hows})
def test_{name}(kopt, R, how):
    DEVICE = kopt.device

    def T(*shape, g={backward}, d=DTYPE):
        return torch.randn(*shape, device=DEVICE, dtype=d).requires_grad_(g)

    def P(*shape):
        return torch.randn(*shape, device=DEVICE).softmax(-1).to(DTYPE).requires_grad_({backward})

    def reference({arguments}):
        {wide}
        return {plain}

    kopt(
        op if how == "right" else partial(changed, op, how),
        inputs=lambda: ({inputs},),
        reference=reference,
        dims={{"op": "{name}", "rows": R, "columns": C, "results": how}},
        backward={backward},
        nbytes=4 * R * C,
        {declared}
    )
"""
#: What is made of results, by the names in `WRONG` of the helpers.
_RIGHT, *_ = _HOWS = ("right", "zeros", "sign", "less")
_INI = '[tool.pytest.ini_options]\npythonpath = ["."]\ntestpaths = ["tests"]\n'


@dataclass
class Outcome:
    """What became of one operation, one way; `declared` is what the test says besides.

    `seconds` are those of whole commands by what they do: `check` alone, or `init`, `baseline`,
    `round`, a round that is `wrong` and one that is `compiled` already, once for each time.
    """

    package: str
    op: str
    way: str
    became: str
    seconds: Mapping[str, Sequence[float]]
    declared: str
    flags: list[str]
    why: str = ""
    #: The gates that kopt derived.
    derived: str = ""
    #: The ways in which a wrong result was not refused, where they were tried.
    accepted: Sequence[str] = ()


@dataclass
class Bench:
    """The throw-away environment, and how large the cases are."""

    folder: Path
    gpu: str
    rows: tuple[int, ...]
    columns: int
    dtype: str

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin/python"

    @property
    def packages(self) -> Path:
        """Where what is installed in it lies."""
        return next(self.folder.glob("lib/python*/site-packages"))

    def run(
        self, project: Path, *words: str, seconds: int = 900
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in a project."""
        env = {**os.environ, "PYTHONPATH": ""}
        if self.gpu == "cpu":
            env["TRITON_INTERPRET"] = "1"
        return subprocess.run(
            [str(self.python), "-m", *words],
            cwd=project,
            env=env,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


def main() -> None:
    """Install, try, and write the table after each package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", default="cpu")
    parser.add_argument("--rounds", action="store_true")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--ways", nargs="*", default=["file", "tree"])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    on_gpu = given.gpu != "cpu"
    rows = (4096, 8192) if on_gpu else (16, 32)
    size = (4096, "bfloat16") if on_gpu else (256, "float32")
    environment = (given.out / "environment").resolve()
    bench = Bench(environment, given.gpu, rows if given.rounds else rows[1:], *size)
    found: list[Outcome] = []
    for package in given.packages:
        wanted = [op for op in OPS if op.package == package and op.name in (given.ops or [op.name])]
        said = "" if not wanted else _installed(bench, package, given.wheels)
        if said:
            found += [
                Outcome(package, op.name, "-", "not installed", {}, "", [], said) for op in wanted
            ]
        elif wanted and not on_gpu and not PACKAGES[package].on_cpu:
            why = "does not import without a GPU"
            found += [
                Outcome(package, op.name, "-", "needs a GPU", {}, "", [], why) for op in wanted
            ]
        elif wanted:
            for way in given.ways:
                place = given.out / f"{package}-{way}"
                shutil.rmtree(place, ignore_errors=True)
                tried = partial(_campaigns, given.jobs, given.times) if given.rounds else _checked
                for outcome in tried(bench, wanted, way, place.resolve()):
                    found.append(outcome)
                    _write(given.out, found)
        _write(given.out, found)


def _installed(bench: Bench, package: str, wheels: Path | None) -> str:
    """Install a package without what it depends on; return why that failed."""
    if not bench.folder.exists():
        venv.create(bench.folder, with_pip=False)
        places = [
            *site.getsitepackages(),
            *filter(None, os.environ.get("PYTHONPATH", "").split(":")),
        ]
        lines = [f"import site; site.addsitedir({path!r})" for path in places]
        (bench.packages / "base.pth").write_text("\n".join(lines) + "\n")
    known = PACKAGES[package]
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        pip = [shutil.which("pip") or "pip"]
    for name in (f"{package}=={known.version}", *known.needs):
        words = [*pip, "-q", "--python", str(bench.python), "install", "--no-deps", *source, name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
    return ""


def _checked(bench: Bench, ops: Sequence[Op], way: str, project: Path) -> Iterator[Outcome]:
    """Check all operations of a package in one session."""
    for op in ops:
        _write_case(bench, op, way, project, candidate=way != "plain", hows=_HOWS)
    if way == "tree":
        shutil.copytree(bench.packages / _module(ops[0]), project / _module(ops[0]))
    start = time.monotonic()
    done = bench.run(project, "pytest", "-q", "--kopt-check-only", "--summary-csv", "rows.csv")
    each = {"check": [(time.monotonic() - start) / len(ops)]}
    file = project / "rows.csv.evidence.json"
    results = json.loads(file.read_text()) if file.exists() else []
    for op in ops:
        mine = [r for r in results if f"::test_{op.name}[" in r["nodeid"]]
        if not mine:
            why = (done.stdout + done.stderr).strip()[-600:]
            yield Outcome(op.package, op.name, way, f"exit {done.returncode}", each, "", [], why)
            continue
        right, *wrong = (
            next(r for r in mine if r["dims"]["results"] == how and r["dims"]["rows"] == rows)
            for rows in bench.rows[:1]
            for how in _HOWS
        )
        flags = [f"{f['check']}: {f['message']}" for f in right["findings"]]
        refused = any(f["rejects"] for f in right["findings"])
        why = right["diagnosis"]
        became = "REJECTED" if refused else right["check"]
        became = "needs a GPU" if why.startswith("Triton's interpreter") else became
        derived = (right["evidence"].get("note") or "").partition("(torch reaches): ")[2]
        accepted = [r["dims"]["results"] for r in wrong if r["check"] == "PASS"]
        yield Outcome(
            op.package, op.name, way, became, each, op.declared, flags, why, derived, accepted
        )


def _campaigns(
    jobs: int, times: int, bench: Bench, ops: Sequence[Op], way: str, place: Path
) -> Iterator[Outcome]:
    """Play campaigns of two rounds of each operation, so many side by side."""

    def played(op: Op) -> Outcome:
        outcomes = [
            _campaign(bench, op, way, place / f"{op.name}-{number}") for number in range(times)
        ]
        each: defaultdict[str, list[float]] = defaultdict(list)
        for outcome in outcomes:
            for step, seconds in outcome.seconds.items():
                each[step] += seconds
        became = " or ".join(dict.fromkeys(outcome.became for outcome in outcomes))
        return replace(outcomes[-1], became=became, seconds=each)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(played, ops)


def _campaign(bench: Bench, op: Op, way: str, project: Path) -> Outcome:
    kernel = _write_case(bench, op, way, project, candidate=False)
    if way == "tree":
        shutil.copytree(bench.packages / _module(op), project / _module(op))
    backend = "TORCH" if bench.gpu == "cpu" else "TRITON"
    words = (
        *("init", "c", "--op", op.name, "--backend", backend, "--gpu", bench.gpu),
        *("--kernel", kernel, "--metric", "Forward GB/s"),
    )
    seconds: dict[str, list[float]] = {}

    def timed(step: str, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
        start = time.monotonic()
        done = bench.run(root, *words)
        seconds[step] = [time.monotonic() - start]
        project.with_name(f"{project.name}-{step}.txt").write_text(done.stdout + done.stderr)
        return done

    def judged(step: str, root: Path, number: str) -> subprocess.CompletedProcess[str]:
        return timed(step, root, "pytest", "-q", "--kopt-campaign", "c", "--kopt-round", number)

    done = timed("init", project, "pytest_kopt.cli", *words)
    done = done if done.returncode else judged("baseline", project, "1")
    if not done.returncode:
        path, copies = project / kernel, dict[str, Path]()
        if way == "file":
            _write_case(bench, op, way, project, candidate=True)
            copies = {
                step: project.with_name(f"{project.name}-{step}") for step in ("wrong", "compiled")
            }
            for copy in copies.values():
                shutil.copytree(project, copy)
            head, _, result = path.read_text().rpartition("    return ")
            (copies["wrong"] / kernel).write_text(f"{head}    return 1.5 * ({result.rstrip()})\n")
        else:
            path.write_text(f"{path.read_text()}\n_WITHOUT_EFFECT = 1\n")
        done = judged("round", project, "2")
        for step, root in copies.items():
            judged(step, root, "2")
    rounds = sorted((project / "agent/workspace/c/rounds").glob("round-*/verdict.json"))
    verdict = json.loads(rounds[-1].read_text()) if rounds else {}
    became = verdict.get("decision") or f"exit {done.returncode}"
    why = "\n".join([verdict.get("reason", ""), (done.stdout + done.stderr)[-1500:]])
    flags = verdict.get("flags", [])
    return Outcome(op.package, op.name, way, became, seconds, op.declared, flags, why)


def _module(op: Op) -> str:
    return PACKAGES[op.package].module


def _write_case(
    bench: Bench,
    op: Op,
    way: str,
    project: Path,
    *,
    candidate: bool,
    hows: Sequence[str] = (_RIGHT,),
) -> str:
    """Write an operation's case and kernel; return the kernel file's path below the project."""
    arguments = ", ".join(op.inputs)
    names = [
        f"{name} = {name}.double() if {name}.is_floating_point() else {name}" for name in op.inputs
    ]
    test = _TEST.format(
        module=f"kernels.{op.name}",
        name=op.name,
        rows=[*bench.rows],
        hows=[*hows],
        columns=bench.columns,
        dtype=bench.dtype,
        backward=op.backward,
        arguments=arguments,
        wide="\n        ".join(names),
        plain=op.plain,
        inputs=", ".join(op.inputs.values()),
        declared=f"{op.declared}," if op.declared else "",
    )
    plain = f"from helpers import *\n\n\ndef {op.name}({arguments}):\n    return {op.plain}\n"
    wrapper = f"\n\ndef {op.name}({arguments}):\n    return {{call}}\n"
    # Theirs may have the very name.
    theirs = re.match(r"[\w.]+", op.call).group().split(".")[0]  # type: ignore[union-attr]
    call = re.sub(rf"^{theirs}\b", f"_their_{theirs}", op.call)
    if way == "tree":
        path = op.file.removesuffix(".py").replace("/", ".")
        text = f"from helpers import *\nfrom {path} import {theirs} as _their_{theirs}\n"
        if theirs == "packed":
            text = "from helpers import packed as _their_packed\n"
        text += wrapper.format(call=call)
    elif candidate:
        above = op.file.rpartition("/")[0].replace("/", ".")
        text = (bench.packages / op.file).read_text()
        text = re.sub(r"^from \.(?=\w)", f"from {above}.", text, flags=re.MULTILINE)
        own = "from helpers import packed\n" if theirs == "packed" else ""
        text += f"\n\n{own}_their_{theirs} = {theirs}\n{wrapper.format(call=call)}"
    else:
        text = plain
    for name, content in {
        "pyproject.toml": _INI,
        "helpers.py": HELPERS,
        "kernels/__init__.py": "",
        f"kernels/{op.name}.py": text,
        f"tests/test_{op.name}.py": test,
    }.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return op.file if way == "tree" else f"kernels/{op.name}.py"


def _write(out: Path, found: Sequence[Outcome]) -> None:
    (out / "strangers.json").write_text(json.dumps([asdict(o) for o in found], indent=1) + "\n")
    names = "package | op | way | became | s | declared | derived (torch reaches) | accepted"
    lines = [f"| {names} | flags, or why |", "| --- " * 9 + "|"]
    for o in found:
        shown = "; ".join(o.flags) or ("" if o.became in ("PASS", "ACCEPTED") else o.why)
        shown = " ".join(shown.split())[:160].replace("|", "/")
        seconds = ", ".join(f"{step} {median(taken):.1f}" for step, taken in o.seconds.items())
        tried = (o.derived, " ".join(o.accepted))
        cells = (o.package, o.op, o.way, o.became, seconds, o.declared, *tried, shown)
        lines.append(f"| {' | '.join(cells)} |")
    (out / "strangers.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
