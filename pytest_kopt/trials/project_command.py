"""Commands of a project, such as a build: confined like kernel code, and ended with all they start.

A process of its own adopts what the command leaves behind and kills it before it ends. It writes
below the folder that the command runs in, to temporary files and to the caches of compilers.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NoReturn

from pytest_kopt.process_tree import adopt_orphans, end_with_parent, leave
from pytest_kopt.processes.isolation import isolate

#: Characters of a command's output that are kept; lines, and characters of them, that are shown.
_MOST, _ERRORS, _LAST, _WIDTH = 1 << 20, 6, 10, 500
#: A line of a compiler or linker that names a mistake; no Python traceback has one.
_ERROR = re.compile(r"(?<![a-z])error(\[\w+\])?: |undefined reference", re.IGNORECASE)
#: The exit status of a shell for a program that is not there.
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class ProjectCommand:
    """A command line of the manifest or the project's settings."""

    #: As written there: NAME=value words, then a program and its arguments.
    text: str
    #: What is set on top of the session's environment.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Whether it is confined (`kopt_isolation`).
    is_confined: bool = True

    def run(self, folder: Path, more: Mapping[str, str] | None = None) -> tuple[str, str]:
        """Run it in a folder, with `more` in its environment.

        Returns how it failed and what it printed then ("" where it did not), and its whole output.
        """
        # The process around the command imports this file and reads no manifest.
        from pytest_kopt.campaign.manifest import split_command

        extra, words = split_command(self.text)
        confined = "confined" if self.is_confined else "open"
        here = [sys.executable, "-m", __name__, confined, str(folder.resolve())]
        env = {**os.environ, **self.env, **(more or {}), **extra}
        # The command is the project's; the process around it runs what is installed here.
        outer = {**env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with tempfile.TemporaryDirectory(prefix="kopt-command-") as scratch:
            process = subprocess.Popen(
                [*here, scratch, env.get("PYTHONPATH", ""), *words],
                # Where no module of the project's is found before Python's own.
                cwd=scratch,
                env=outer,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # An interrupt from the terminal goes to this process alone, which ends the command.
                start_new_session=True,
            )
            with process:
                try:
                    output, _ = process.communicate()
                except BaseException:
                    process.terminate()
                    raise
        text = output.decode(errors="replace")[-_MOST:]
        return _failure(self.text, process.returncode, text), text


def _failure(command: str, code: int, output: str) -> str:
    """Return how a command failed: compilers' errors, then its last lines; "" where it did not.

    If that is not all that it printed, a file that is named holds all.
    """
    if not code:
        return ""
    lines = [line[:_WIDTH] for line in output.splitlines()]
    errors = [*filter(_ERROR.search, lines)][:_ERRORS]
    last = [line for line in lines[-_LAST:] if line not in errors]
    how = [f"`{command}` ended with status {code}", *(line.strip() for line in errors[:1])]
    shown = [": ".join(how), *errors[1:]]
    if len(lines) > len(errors) + len(last):
        with NamedTemporaryFile(
            "w", encoding="utf-8", prefix="kopt-", suffix=".log", delete=False
        ) as log:
            log.write(output)
        shown.append(f"all that it printed is in {log.name}; the end:")
    return "\n".join([*shown, *last])


def main() -> None:
    """Run the command of this process's arguments and end as it does."""
    confined, folder, scratch, python_path, *words = sys.argv[1:]
    end_with_parent()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: leave(1))
    child = os.fork()
    if not child:
        _become(words, Path(folder), Path(scratch) if confined == "confined" else None, python_path)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    leave(code if code >= 0 else 128 - code)


def _become(words: list[str], folder: Path, scratch: Path | None, python_path: str) -> NoReturn:
    """Replace this process by a command in `folder`, confined where it has a `scratch` folder.

    A confined process writes to its own folder in /proc only, as drivers of GPUs do at their start.
    So the command's process is confined, and not the one that waits for it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if scratch:
        isolate(scratch, (), (folder,))
    env = {**os.environ, "PYTHONPATH": python_path}
    if not python_path:
        del env["PYTHONPATH"]
    try:
        os.chdir(folder)
        os.execvpe(words[0], words, env)  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(1, f"{words[0]}: {error.strerror}\n".encode())
        os._exit(_NOT_FOUND)


if __name__ == "__main__":
    main()
