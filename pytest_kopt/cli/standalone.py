"""Commands without a campaign: `compare`, `time`, `judge`, `record`, `bisect`, `calibrate`."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_kopt.cli.command_line import JSON, Argument, argument, command, no_result, one_of, show
from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options.declare import CHOICES
from pytest_kopt.options.project import Project
from pytest_kopt.recording.recorded_cases import recorded
from pytest_kopt.recording.recorder import run_recorded
from pytest_kopt.show.rooflines import ceiling_lines
from pytest_kopt.standalone import two_versions
from pytest_kopt.standalone.cases import Cases
from pytest_kopt.standalone.submissions import judged

_CASES: tuple[Argument, ...] = (
    argument(
        "tests",
        nargs="*",
        default=[],
        metavar="TESTS",
        help="files, folders or cases; default: testpaths of the project's settings",
    ),
    argument(
        "--at",
        metavar="PATH",
        help="the file of the project that they are versions of, or the folder that they are "
        "versions of, relative to the project's root directory: kernels/softmax.py",
    ),
    argument("--call", metavar="NAME", help="instead of TESTS: call this function: softmax"),
    argument(
        "--shapes",
        action="append",
        default=[],
        metavar="ARGUMENTS",
        help="the arguments of a case with --call, may be repeated: 'f32[4096,1024] 1e-5', "
        "'x=bf16[8,128] index=i64[8]<128'",
    ),
    argument(
        "--write-test",
        metavar="FILE",
        help="keep the test that --call and --shapes make: tests/test_softmax.py",
    ),
    JSON,
)


@command(
    "kopt compare old.py new.py tests/test_softmax.py",
    argument("old", metavar="OLD", help="a file, a folder or a git ref"),
    argument("new", metavar="NEW", help="the same kind: the version that is judged"),
    *_CASES,
    no_result(verdict=None),
)
def compare(arguments: argparse.Namespace) -> int:
    """Check two versions and compare them, without git and without a campaign: the PR check
    (pytest --kopt-base) in a copy of the project, which stays as it is. Words after -- go to
    pytest. Exit codes: 0 not slower, 8 slower or refused, 9 undecided, 1 wrong, 4 bad input, 10 no
    idle GPU, 11 not judged.
    """
    # Made cases are run in another folder.
    paths = Path(arguments.old).resolve(), Path(arguments.new).resolve()
    cases = _cases(arguments, paths)
    with two_versions.both(arguments.old, arguments.new, paths, cases) as (tree, base):
        words = [*cases.within(tree), *arguments.words]
        code, verdict, reason = two_versions.check(tree, base, words, silent=arguments.json)
    if arguments.json:
        _print(code, reason, cases, verdict=verdict and verdict.model_dump(mode="json"))
    return code


@command(
    "kopt time kernels/softmax.py",
    argument("file", type=Path, metavar="FILE", help="the kernel's file"),
    *_CASES,
    no_result(rows=[]),
)
def time(arguments: argparse.Namespace) -> int:
    """Check and time one version of a kernel, with its roofline: the cases that import it. Words
    after -- go to pytest. Exit codes: 0 right, 1 wrong, 4 bad input.
    """
    if not arguments.file.is_file():
        raise BadInput("there is no such file", where=str(arguments.file))
    file = arguments.file.resolve()
    cases = _cases(arguments, [file])
    with two_versions.alone(file, cases) as tree:
        words = [*cases.within(tree, cases.of_its_place()), *arguments.words]
        code, rows, reason = two_versions.time(tree, words, silent=arguments.json)
    if arguments.json:
        _print(code, reason, cases, rows=rows)
    return code


def _cases(arguments: argparse.Namespace, versions: Sequence[Path]) -> Cases:
    """Return the cases that the arguments name or describe, which are said and kept."""
    if not arguments.call:
        if arguments.shapes or arguments.write_test:
            raise BadInput("--shapes and --write-test need --call", fix="add --call NAME")
        return Cases.named(arguments.tests, versions, arguments.at)
    if arguments.tests:
        raise BadInput(
            f"{' '.join(map(repr, arguments.tests))} was read as TESTS, which --call does without",
            fix="write all arguments of a case in one word: --shapes 'f32[256,1024] f32[1024]'; "
            "--shapes again for another case",
        )
    if not arguments.shapes:
        fix = f"add --shapes 'f32[4096,1024]' to --call {arguments.call}"
        raise BadInput("--call needs --shapes", fix=fix)
    for version in versions:
        if not version.is_file():
            raise BadInput("is not a file; --call needs files", where=str(version))
    kept = Path(arguments.write_test).resolve() if arguments.write_test else None
    name = kept.name if kept else f"test_kopt_{arguments.call}.py"
    cases = Cases.made(arguments.call, arguments.shapes, versions, arguments.at, name)
    lines = [f"reference: {cases.reference}"]
    if kept:
        for path, source in cases.files.items():
            _keep(kept.with_name(path), source)
        files = " and ".join(str(kept.with_name(path)) for path in cases.files)
        lines += [f"written: {files}", f'plain pytest: set pythonpath = ["."] in {cases.root}']
    if not arguments.json:
        print("\n".join(lines), flush=True)
    return cases


def _keep(file: Path, source: bytes) -> None:
    """Write a file that is not there yet; BadInput where another one is."""
    if file.exists() and file.read_bytes() != source:
        raise BadInput("exists and differs", where=str(file), fix="--write-test with another FILE")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(source)


def _print(code: int, reason: str, cases: Cases, **document: object) -> None:
    """Print how it ended as one document."""
    about = {"exit_code": code, "reason": reason}
    if cases.reference:
        about["reference"] = cases.reference
    print(json.dumps(about | document, indent=1))


@command(
    "kopt judge problems/softmax submission.py --at kernels/softmax.py",
    argument("problem", type=Path, metavar="PROBLEM", help="a project: cases and the baseline"),
    argument("submission", type=Path, metavar="SUBMISSION", help="a kernel's file"),
    argument(
        "--at",
        metavar="PATH",
        help="the baseline's file, relative to PROBLEM; default: the one with the submission's "
        "name",
    ),
    argument(
        "--seconds",
        type=float,
        default=900.0,
        metavar="N",
        help="time limit (default: 900)",
    ),
    argument("--json", action="store_true", default=True, help="the line is JSON without it too"),
    no_result(outcome="not judged", seconds=0.0, verdict=None),
)
def judge(arguments: argparse.Namespace) -> int:
    """Judge a submission, confined and within a time limit, against PROBLEM's own kernel, and print
    one line of JSON. Words after -- go to pytest. Exit codes: 0 faster, 8 slower or refused for
    reward hacking, 9 undecided, 1 wrong or over the time limit, 4, 10 or 11 not judged.
    """
    if not arguments.problem.is_dir():
        raise BadInput("there is no such folder", where=str(arguments.problem))
    submission = Path(os.path.abspath(arguments.submission))
    os.chdir(arguments.problem)
    named = Path.cwd() if arguments.at else submission
    cases = Cases.named(None, [named], arguments.at)
    if not (cases.root / cases.place).is_file():
        fix = "--at PATH of the baseline kernel"
        raise BadInput("there is no baseline", where=cases.place or str(named), fix=fix)
    document = judged(submission, cases, arguments.seconds, arguments.words)
    print(json.dumps(document))
    return int(document["exit_code"])


@command(
    "kopt record --call kernels.softmax:softmax -- python train.py",
    argument("--call", required=True, metavar="MODULE:NAME", help="the function: pkg.mod:softmax"),
    argument(
        "--into",
        type=lambda text: Path(text).resolve(),
        default=Path("recorded"),
        metavar="FOLDER",
        help="where the record goes (default: recorded)",
    ),
    argument("--contents", action="store_true", help="keep the tensors too, up to 64 MiB each"),
)
def record(arguments: argparse.Namespace) -> int:
    """Run a Python program and record with which arguments it calls a function: each signature,
    how often, and how long the calls take. Tests draw such arguments with
    pytest_kopt.recorded(FOLDER). The exit code is the program's, or 4: nothing that can be drawn
    was called.
    """
    into, contents = arguments.into.resolve(), arguments.contents
    code = run_recorded(arguments.words, arguments.call, into, contents=contents)
    if not code:
        cases = recorded(into)
        calls = sum(case.calls for case in cases)
        # What the program prints may be data.
        print(f"{into}: {calls} calls of {len(cases)} signatures", file=sys.stderr)
    return code


@command(
    "kopt bisect v1.2 main -- tests/test_gemm.py",
    argument("good", metavar="GOOD", help="a commit before the slow one"),
    argument("bad", metavar="BAD", nargs="?", default="HEAD", help="default: HEAD"),
    JSON,
)
def bisect(arguments: argparse.Namespace) -> int:
    """Find the first commit after GOOD that is slower: `git bisect` chooses commits, and the PR
    check compares each with GOOD, in a work tree of its own. Words after -- go to pytest. Exit code
    8 if BAD is slower, 0 otherwise.
    """
    from pytest_kopt.standalone import bisection

    ends = (arguments.good, arguments.bad)
    document = bisection.bisect(Project.here().root, *ends, arguments.words)
    show(arguments, document, bisection.lines)
    return ExitCode.ROLLED_BACK if document["first_slower"] else ExitCode.OK


@command(
    "kopt calibrate --tests tests/test_softmax.py --processes 20",
    one_of(
        argument("--ceilings", action="store_true", help="only the ceilings; needs no cases"),
        argument("--noise", action="store_true", help="only the noise floor"),
    ),
    argument("--tests", default="", metavar="'ARGS'", help="pytest arguments that select cases"),
    argument("--processes", type=int, default=8, metavar="N", help="fresh processes (default: 8)"),
    argument("--device", choices=CHOICES["kopt_device"], default="auto"),
)
def calibrate(arguments: argparse.Namespace) -> int:
    """Measure this machine: its ceilings (copy bandwidth, matrix rates, launch overhead), then the
    noise floor and smallest resolvable gain of the cases, compared with themselves.
    """
    if not arguments.noise:
        _ceilings(arguments.device)
    return 0 if arguments.ceilings else _noise(arguments)


def _ceilings(option: str) -> None:
    from pytest_kopt.devices.vendor import choose
    from pytest_kopt.knowledge.facts import DeviceCeilings, save
    from pytest_kopt.measure.measured_peaks import measure_ceilings

    project = Project.here()
    measured = measure_ceilings(choose(option))
    # What lies above a documented peak is refused before it is kept.
    documented = DeviceCeilings(measured.device, measured)
    path = save(project.workspace, measured)
    project.keep_workspace_out_of_git()
    for line in ceiling_lines(measured, documented):
        print(line)
    print(f"written to {path}", flush=True)


def _noise(arguments: argparse.Namespace) -> int:
    from pytest_kopt.paired.noise import keep

    project = Project.here()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "noise.json"
        words = [sys.executable, "-m", "pytest", "--kopt-calibrate", str(arguments.processes)]
        words += ["--kopt-device", arguments.device, "--kopt-verdict", str(file)]
        session = subprocess.run([*words, *shlex.split(arguments.tests)], check=False)
        if file.is_file():
            path = keep(project.workspace, json.loads(file.read_text(encoding="utf-8")))
            project.keep_workspace_out_of_git()
            print(f"written to {path}, for later verdicts on this model of device", flush=True)
    return session.returncode
