"""`kopt calibrate`: this machine's ceilings, and the smallest gain it can show for these cases."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_kopt.cli.command_line import argument, command, one_of
from pytest_kopt.options.declare import CHOICES
from pytest_kopt.options.project import Project
from pytest_kopt.show.rooflines import ceiling_lines


@command(
    "kopt calibrate --tests tests/test_softmax.py --processes 20",
    one_of(
        argument("--ceilings", action="store_true", help="only the ceilings; needs no cases"),
        argument("--noise", action="store_true", help="only the noise floor"),
    ),
    argument("--tests", default="", metavar="'ARGS'", help="pytest arguments that select cases"),
    argument("--processes", type=int, default=8, metavar="N", help="fresh processes (default: 8)"),
    argument("--device", choices=CHOICES["kopt_device"], default="auto"),
    argument("-o", "--output", type=Path, metavar="FILE", help="write the noise as JSON too"),
)
def calibrate(arguments: argparse.Namespace) -> int:
    """Measure this machine: its ceilings (copy bandwidth, matrix rates, launch overhead), then the
    noise floor and smallest resolvable gain of the cases, compared with themselves.
    """
    if not arguments.noise:
        _ceilings(arguments.device)
    return 0 if arguments.ceilings else _noise(arguments)


def _ceilings(option: str) -> None:
    from pytest_kopt.devices.visible import choose
    from pytest_kopt.knowledge.facts import DeviceCeilings, Facts, save
    from pytest_kopt.measure.measured_peaks import measure_ceilings

    project = Project.here()
    measured = measure_ceilings(choose(option))
    # What lies above a documented peak is refused before it is kept.
    documented = DeviceCeilings(measured.device, measured, Facts())
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
            if arguments.output:
                shutil.copyfile(file, arguments.output)
            path = keep(project.workspace, json.loads(file.read_text()))
            project.keep_workspace_out_of_git()
            print(f"written to {path}, for later verdicts on this machine", flush=True)
    return session.returncode
