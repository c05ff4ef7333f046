"""Runs a Python program in an interpreter where a function of it is recorded."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.recording.recorder import record

_RUN = "from pytest_kopt.recording.program import main; main()"


def run_recorded(words: Sequence[str], target: str, into: Path, *, contents: bool) -> int:
    """Run `python FILE …` or `python -m MODULE …`, as `words` have it, and write the record.

    It runs in this process's own Python, and prints where we do. Returns its exit code. BadInput
    for any other command.
    """
    program, *rest = words or ("",)
    is_python = Path(program).name.startswith("python")
    if not is_python or not rest or (rest[0].startswith("-") and (rest[0] != "-m" or not rest[1:])):
        raise BadInput(
            f"{' '.join(words)!r} is no Python program",
            where="kopt record",
            legal="kopt record … -- python train.py, or -- python -m train",
        )
    orders = json.dumps({"target": target, "into": str(into), "contents": contents})
    return subprocess.call([sys.executable, "-c", _RUN, orders, *rest])


def main() -> None:
    """Run a program's words after the orders; what it raises is raised, SystemExit too."""
    orders, words = json.loads(sys.argv[1]), sys.argv[2:]
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    sys.path[0] = os.getcwd() if is_module else str(Path(words[0]).resolve().parent)
    try:
        with record(orders["target"], orders["into"], contents=orders["contents"]):
            if is_module:
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
    except BadInput as error:
        print(f"ERROR: {error}", file=sys.stderr)  # noqa: T201 - a command's own message
        sys.exit(ExitCode.USAGE)
