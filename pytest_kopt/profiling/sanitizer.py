"""NVIDIA's compute-sanitizer: its command line, and errors out of its log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOOL = "compute-sanitizer"
#: What it can look for: memory, races in shared memory, memory that was never written, barriers.
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Every access has to lie in an allocation of its own, not in a larger block of torch's cache.
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
_LOG = "sanitizer.log"
_MOST_ERRORS = "1000"

_PREFIX = re.compile(r"^=+ ?", re.MULTILINE)
#: What begins an error. `Warning: Race` is two threads that write the same value.
_BEGINS = re.compile(
    r"Invalid __\w+__ |Uninitialized __\w+__ |Misaligned |Barrier error|Malloc/Free error"
    r"|Error: (Race|Potential)|.* instruction (exception|error)|Warp |Stack overflow"
)
#: Where it happened, as newer versions say it, and as those before 12 do.
_NEW = re.compile(r"\bat (?P<kernel>.+?)\+0x[0-9a-f]+(?: in (?P<place>\S+?:\d+))?(?=$|[\s\[])")
_OLD = re.compile(r"\bat 0x[0-9a-f]+ in (?:(?P<place>\S+?:\d+):)?(?P<kernel>[^\[]+)")


@dataclass(frozen=True, slots=True)
class SanitizerError:
    """One error at one place: what it is, the kernel, and file:line ("": compiled without lines).

    `count` is how many threads or blocks reported it.
    """

    what: str
    kernel: str
    place: str
    count: int = 1

    def __str__(self) -> str:
        where = f", {self.place}" if self.place else "; compile with -lineinfo for the line"
        times = f" (reported {self.count} times)" if self.count > 1 else ""
        return f"{self.what} in {self.kernel or 'an unnamed kernel'}{where}{times}"


def command(tool: str, directory: Path) -> list[str]:
    """Return the words in front of a command line; its log goes into `directory`.

    Errors of the driver's interface are left out: libraries probe for what a device can do.
    """
    return [
        *(TOOL, "--tool", tool, "--target-processes", "all", "--report-api-errors", "no"),
        *("--require-cuda-init", "no", "--print-limit", _MOST_ERRORS),
        *("--log-file", str(directory / _LOG)),
    ]


def log(directory: Path) -> str:
    """Return the text of the log in `directory`; OSError when there is none."""
    return (directory / _LOG).read_text(errors="replace", encoding="utf-8")


def errors(text: str) -> list[SanitizerError]:
    """Return the errors of a log, each place once, in their order."""
    counts = Counter(_entries(text))
    return [SanitizerError(*key, count) for key, count in counts.items()]


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield what, kernel and place of every error: its first line, and where its next ones say."""
    entry: list[str] = []
    for line in [*_PREFIX.sub("", text).splitlines(), ""]:
        is_first = _BEGINS.match(line)
        if entry and (is_first or not line.startswith(" ")):
            yield _read(entry)
            entry = []
        if is_first or entry:
            entry.append(line)


def _read(entry: list[str]) -> tuple[str, str, str]:
    places = [
        (place["kernel"].strip(), place["place"] or "")
        for line in entry
        if "Host Frame" not in line and (place := _NEW.search(line) or _OLD.search(line))
    ]
    what = re.split(r" at (?=\S+\(|0x|\S+\+0x)", entry[0])[0].strip()
    kernel = next((kernel for kernel, _ in places), "")
    return what, kernel, " and ".join(dict.fromkeys(place for _, place in places if place))
