"""Running a vendor's command-line tool, only ever to have it print something."""

from __future__ import annotations

import shutil
import subprocess

_SECONDS = 30.0


class Unanswered(Exception):
    """The tool failed or did not know what it was asked."""


def ask(*command: str) -> str:
    """Return what a query prints; Unanswered when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unanswered(f"{command[0]}: {error}") from None
    if done.returncode:
        raise Unanswered(f"{command[0]} ended with {done.returncode}: {done.stdout or done.stderr}")
    return done.stdout


def is_there(name: str) -> bool:
    """Say whether a tool is on PATH."""
    return shutil.which(name) is not None


def number(text: str | None) -> float | None:
    """Return the number at the start of a tool's answer, None for `[N/A]` and the like."""
    words = (text or "").strip().strip("()").split()
    try:
        return float(words[0].lower().removesuffix("mhz"))
    except (IndexError, ValueError):
        return None
