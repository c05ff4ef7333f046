"""`kopt judge`: submissions of strangers, each against the baseline of a problem."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from pytest_kopt.cli.command_line import argument, command
from pytest_kopt.errors import BadInput
from pytest_kopt.standalone.cases import Cases
from pytest_kopt.standalone.submissions import ProcessLimits
from pytest_kopt.standalone.submissions import judge as judge_submission


@command(
    "kopt judge problems/softmax submission.py --at kernels/softmax.py",
    argument("problem", type=Path, metavar="PROBLEM", help="a project: cases and the baseline"),
    argument("submissions", type=Path, nargs="+", metavar="SUBMISSION", help="a kernel's file"),
    argument(
        "--at",
        metavar="PATH",
        help="the baseline's file in PROBLEM; default: the one with the submission's name",
    ),
    argument(
        "--seconds", type=float, default=900.0, metavar="N", help="for all of it (default: 900)"
    ),
    argument("--memory", type=int, default=16384, metavar="MIB", help="default: 16384"),
    argument(
        "--disk",
        type=int,
        default=4096,
        metavar="MIB",
        help="for all files, of which one may have a quarter (default: 4096)",
    ),
    argument("--processes", type=int, default=256, metavar="N", help="at a time (default: 256)"),
)
def judge(arguments: argparse.Namespace) -> int:
    """Judge submissions, one after the other, each confined and within limits, against PROBLEM's
    own kernel. Prints one line of JSON for each. Words after -- go to pytest. The exit code is the
    submission's (0 faster, 1 wrong or over a limit, 8 slower or refused, 9 undecided); 0 for
    several, whatever they come to.
    """
    problem, submissions = arguments.problem.resolve(), arguments.submissions
    if not problem.is_dir():
        raise BadInput("there is no such folder", where=str(arguments.problem))
    paths = [Path(os.path.abspath(path)) for path in submissions]
    mib = 1 << 20
    memory, disk = arguments.memory * mib, arguments.disk * mib
    limits = ProcessLimits(arguments.seconds, memory, disk, arguments.processes)
    os.chdir(problem)
    codes = []
    for shown, path in zip(submissions, paths, strict=True):
        cases = Cases.named([], [problem if arguments.at else path], arguments.at)
        if not (cases.root / cases.place).is_file():
            raise BadInput("there is no baseline", where=cases.place or str(problem), legal="--at")
        document = judge_submission(path, cases, limits, arguments.words)
        print(json.dumps({**document, "submission": str(shown)}), flush=True)
        codes.append(int(document["exit_code"]))
    return codes[0] if len(codes) == 1 else 0
