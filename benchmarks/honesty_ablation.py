"""What each check of honesty is worth: every kernel of the corpus once, every check to its end.

    python benchmarks/honesty_ablation.py RECORD [--doc docs/honesty.md] [NAME ...]   (minutes)

A round stops at the first finding that refuses a kernel. Here a kernel goes through all checks of
one case, in a fork of its own, and all that they find is written to RECORD (JSON lines; what it
holds is not run again). What would pass without one of the checks follows from that, since no check
needs what another one found. With --doc the table is written between the marks in that file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "corpus"
sys.path[:0] = [str(ROOT), str(CORPUS)]

import torch  # noqa: E402
from _pytest.config import PytestPluginManager  # noqa: E402
from ops import OPS  # noqa: E402
from pytest_kopt.honesty.watching.clock import Span  # noqa: E402
from tabulate import tabulate  # noqa: E402

from pytest_kopt.cases import domain  # noqa: E402
from pytest_kopt.cases.case import Case, declare  # noqa: E402
from pytest_kopt.cases.evidence import CaseEvidence  # noqa: E402
from pytest_kopt.cases.fixture import Session  # noqa: E402
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT  # noqa: E402
from pytest_kopt.cases.result import ExpectedCase  # noqa: E402
from pytest_kopt.cases.running import check, checking  # noqa: E402
from pytest_kopt.cases.running.bench import Bench  # noqa: E402
from pytest_kopt.cases.running.course import Course  # noqa: E402
from pytest_kopt.cases.running.heldout import time_shape, try_shape  # noqa: E402
from pytest_kopt.cases.running.runner import run_case  # noqa: E402
from pytest_kopt.cases.running.switches import compile_here  # noqa: E402
from pytest_kopt.cases.running.timing import judge_timed, time_case  # noqa: E402
from pytest_kopt.honesty.checks import Phase, ask, of_phase  # noqa: E402
from pytest_kopt.honesty.finding import Finding  # noqa: E402
from pytest_kopt.honesty.watching.watch import Watch  # noqa: E402
from pytest_kopt.measure.wall import WallEngine, one_thread  # noqa: E402
from tests.corpus.through_plugin import constants, kernels  # noqa: E402

SECONDS = 150
MARKS = "[//]: # (ablation)", "[//]: # (end of ablation)"
HARNESS = ("ops.py", "tests/test_case.py", "conftest.py")
WRONG, EDITED = "correctness", "harness-edit"


@dataclass(frozen=True, slots=True)
class Record:
    """What was found about a kernel: the names of checks that refuse it."""

    kernel: str
    is_cheat: bool
    found: tuple[str, ...]
    seconds: float


class Thorough(checking.Checking):
    """A check that takes every step, whatever an earlier one has shown."""

    def run(self) -> None:
        for step in of_phase(Phase.STEP):
            held = list(self.comparisons)
            try:
                self.found(step.ask(checking=self))
            except Exception as error:
                self.found([Finding(WRONG, f"{step.function} raises {error!r}"[:200])])
            if not all(item.passed for item in self.comparisons[len(held) :]):
                self.found(ask(Phase.WRONG, checking=self))
                self.found([Finding(WRONG, step.function)])
                self.comparisons = held
            self.findings += [replace(new, rejects=True) for new in self.broken]
            self.broken.clear()


def record(path: Path, folder: Path) -> Record:
    """Judge a kernel in a fork of this process, in a project of its own below `folder`."""
    begin = time.perf_counter()
    project = folder / path.stem
    make_project(project, path)
    before = {name: (project / name).read_bytes() for name in HARNESS}
    ours, theirs = Pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(SECONDS)
        try:
            judge(path, project, theirs)
            theirs.send(("done", None))
        finally:
            os._exit(0)
    theirs.close()
    found = {name for name, _, rejects in listen(ours) if rejects}
    os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if any((project / name).read_bytes() != text for name, text in before.items()):
        found.add(EDITED)
    return Record(
        path.stem,
        path.parent.name == "cheats",
        tuple(sorted(found)),
        round(time.perf_counter() - begin, 1),
    )


def make_project(project: Path, path: Path) -> None:
    """Lay out what a kernel of the corpus finds around it."""
    op = path.stem.split("__")[0]
    for folder in ("kernels", "tests"):
        (project / folder).mkdir(parents=True)
    shutil.copy(CORPUS / "ops.py", project)
    shutil.copy(CORPUS / "honest" / "tiling.py", project)
    shutil.copy(path, project / "kernels" / "kernel.py")
    shutil.copy(CORPUS / "baseline" / f"{op}.py", project / "kernels" / "incumbent.py")
    (project / "kernels" / "__init__.py").touch()
    campaign = project / "agent" / "workspace" / "corpus"
    campaign.mkdir(parents=True)
    (campaign / "ledger.jsonl").write_text("{}\n")
    (project / "conftest.py").touch()
    (project / "tests" / "test_case.py").write_text("rtol=1e-4, atol=1e-4\n")


def listen(channel: Connection) -> Iterator[tuple[str, str, bool]]:
    """Yield the findings that a child sends, and what its clock hides."""
    spans, since = dict[str, list[Span]](), 0.0
    while True:
        try:
            kind, value = channel.recv()
        except (EOFError, OSError):
            yield WRONG, "the process ended", True
            break
        if kind == "done":
            break
        if kind == "found":
            yield from map(tuple, value)
        elif kind == "begin":
            since = time.perf_counter()
        else:
            arm, inside = value
            spans.setdefault(arm, []).append(Span((time.perf_counter() - since) * 1e3, inside))
    both = spans.get(CANDIDATE, []), spans.get(INCUMBENT, [])
    for finding in ask(Phase.COMPARED, spans=both[0], others=both[1]):
        yield finding.check, finding.message, finding.rejects


def judge(path: Path, project: Path, channel: Connection) -> None:
    """Take a kernel through all checks; runs in its own process."""
    name = path.stem.split("__")[0]
    op, is_triton = OPS[name], constants(path).get("LANG") == "triton"
    os.chdir(project)
    for stream in (1, 2):
        os.dup2(os.open(project / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    sys.path.insert(0, str(project))
    sys.argv = ["pytest", "--kopt-round", "2"]
    os.environ.update(PYTEST_CURRENT_TEST="tests/test_case.py::test_case (call)")
    os.environ.update({"TRITON_INTERPRET": "1"} if is_triton else {})

    def tell(findings: Sequence[Finding]) -> None:
        channel.send(("found", [[f.check, str(f), f.rejects] for f in findings]))

    check.Checking = Thorough  # type: ignore[misc]
    shapes = op.tiny_shapes if is_triton else op.shapes
    incumbent = load(project, "incumbent")
    old = [a_case(getattr(incumbent, name), name, dims) for dims in shapes]
    first = run_case(old[-1], Bench("cpu", "auto", 1, freezes=True, check_only=True)).result
    expected = {first.nodeid: ExpectedCase.of(first)}
    watch = Watch.start(project)
    # What a kernel finds in the frames above it, in a run of pytest.
    request = SimpleNamespace(config=SimpleNamespace(pluginmanager=PytestPluginManager()))
    request.user_properties = []
    session = Session(request)  # type: ignore[arg-type]
    try:
        with watch.importing():
            candidate = load(project, "kernel")
    except Exception as error:
        tell([Finding(WRONG, f"the import raises {error!r}"), *watch.findings()])
        return
    tell(watch.findings())
    compile_here()
    new = [
        a_case(getattr(candidate, name), name, dims, constants(path).get("DOMAIN", ""))
        for dims in shapes
    ]
    bench = Bench(
        *("cpu", "auto", random.SystemRandom().getrandbits(60), expected),
        cpu=WallEngine(iterations=50, block_seconds=0.3),
        watch=watch,
        language=_language(path),
    )
    parts: list[Callable[[], None]] = [
        partial(checked, new[-1], bench, tell),
        partial(trained, new[-1], bench, is_triton, tell),
        *([] if is_triton else [partial(timed, new[-1], bench, tell)]),
        *([] if is_triton else [partial(clocked, new[-1], old[-1], channel)]),
        partial(held_out, name, new, old, is_triton, tell),
        lambda: tell([*watch.findings(), *ask(Phase.CASE, session=session)]),
    ]
    for part in parts:
        try:
            part()
        except Exception as error:
            tell([Finding(WRONG, f"raises {error!r}"[:300])])


def _language(path: Path) -> str:
    known = constants(path)
    return str(known.get("TARGET_LANG", known.get("LANG", "TORCH"))).upper()


def load(project: Path, name: str) -> ModuleType:
    """Import a module of the project's kernels by its dotted name."""
    return importlib.import_module(f"kernels.{name}")


def a_case(
    function: Callable[..., Any], name: str, dims: Mapping[str, int], domain: str = ""
) -> Case:
    """Declare an operation of the corpus at some sizes."""
    op = OPS[name]
    return declare(
        f"tests/test_case.py::test_case[{dims}]",
        *("gemm" if name == "matmul" else "memory", function),
        inputs=lambda: op.make_inputs(dims, "cpu"),
        reference=op.reference,
        dims=dims,
        backward=op.backward,
        weights=op.weights,
        nbytes=op.nbytes(dims),
        domain=domain,
    )


def checked(case: Case, bench: Bench, tell: Callable[[Sequence[Finding]], None]) -> None:
    """Take every step of a check."""
    with one_thread():
        report = check.check_case(case, bench)
        found = [*report.findings]
    if report.check != "PASS":
        found.append(Finding(WRONG, report.diagnosis[:300]))
    tell([*found, *bench.watched()])


def trained(
    case: Case, bench: Bench, is_triton: bool, tell: Callable[[Sequence[Finding]], None]
) -> None:
    """Run the simulated training loop; time the case with fresh and with known tensors."""
    with one_thread():
        course = Course(case, bench, "PASS", figures={"out_snr": 100.0})
        found = ask(Phase.TRAINED, course=course)
        if not is_triton:
            found += ask(Phase.RECALLED, course=course)
        tell(found)


def timed(case: Case, bench: Bench, tell: Callable[[Sequence[Finding]], None]) -> None:
    """Time a case and look at what its timed calls return."""
    with one_thread():
        evidence = CaseEvidence(accuracy=bench.frozen(case.nodeid).accuracy)
        course = Course(case, bench, "PASS", evidence=evidence, written=1)
        judge_timed(course, time_case(course))
        tell([*course.findings, *bench.watched()])


def clocked(case: Case, incumbent: Case, channel: Connection) -> None:
    """Run calls of both versions by this process's clock, and tell before and after."""
    given = case.arguments()
    for arm, function in (*[(INCUMBENT, incumbent.function), (CANDIDATE, case.function)] * 3,):
        channel.send(("begin", None))
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.05:
            function(*given)
        channel.send(("end", (arm, (time.perf_counter() - begin) * 1e3)))


def held_out(
    name: str,
    new: Sequence[Case],
    old: Sequence[Case],
    is_triton: bool,
    tell: Callable[[Sequence[Finding]], None],
) -> None:
    """Try shapes and contents near the declared ones in both versions."""
    dice, tried = random.Random(), []
    for case, other in zip(new, old, strict=True):
        versions = {CANDIDATE: case.function, INCUMBENT: other.function}
        near = [*domain.cases_of(case, dice.getrandbits(60))]
        for kind in ("aligned", "uneven"):
            dims = domain.perturbed(dict(case.dims), case.dims, kind, dice)  # type: ignore[arg-type]
            near.append(
                (kind, replace(a_case(case.function, name, dims or {}), nodeid=case.nodeid))
            )
        for kind, moved in near:
            seed = dice.getrandbits(60)
            kind = "uneven" if is_triton and kind == "aligned" else kind
            with one_thread():
                found = try_shape(kind, moved, versions, "cpu", seed)  # type: ignore[arg-type]
                if found is not None and found.asks_for_times:
                    time_shape(found, case, moved, versions, "cpu", seed)
                tried.append(found)
    near = [item for item in tried if item]
    facts = {"candidate": CANDIDATE, "incumbent": INCUMBENT, "gains": {}, "died": ""}
    tell(ask(Phase.NEARBY, tried=near, **facts))


def escapes(records: Sequence[Record], without: str = "") -> list[str]:
    """Return the cheats that nothing but this check refuses."""
    return [item.kernel for item in records if item.is_cheat and not {*item.found} - {without}]


def table(records: Sequence[Record]) -> str:
    """Return what every check names and what escapes without it, as Markdown."""
    cheats = [item for item in records if item.is_cheat]
    honest = [item for item in records if not item.is_cheat]
    named = Counter(name for item in cheats for name in item.found)
    wrongly = Counter(name for item in honest for name in item.found)

    def row(what: str, count: int, wrong: int, lost: Sequence[str]) -> list[object]:
        return [what, count, wrong or "", ", ".join(lost)]

    always = escapes(records)
    rows = [row("nothing", len(cheats), sum(wrongly.values()), always)]
    for name, count in sorted(named.items(), key=lambda item: (-item[1], item[0])):
        more = [kernel for kernel in escapes(records, name) if kernel not in always]
        rows.append(row(name, count, wrongly[name], more))
    head = ["switched off", f"of {len(cheats)} cheats", f"of {len(honest)} honest", "escapes also"]
    return tabulate(rows, headers=head, tablefmt="github")


def known(path: Path) -> list[Record]:
    """Return what a record holds."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Record(**{k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(line).items()})
        for line in lines
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--doc", type=Path)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    records = known(asked.record)
    done = {item.kernel for item in records}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for path in kernels("cpu", asked.names):
            if path.stem not in done:
                records.append(record(path, Path(scratch)))
                with asked.record.open("a") as file:
                    file.write(json.dumps(asdict(records[-1])) + "\n")
    text = table(records)
    print(text)
    if asked.doc:
        before, _, rest = asked.doc.read_text().partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        asked.doc.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
