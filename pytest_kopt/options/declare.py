"""The options of the group "kopt" and their ini twins."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

#: What is legal, by option or ini value; the first where none is given.
CHOICES = {
    "kopt_level": ("quick", "full"),
    "kopt_compare": ("auto", "paired", "stored"),
    "kopt_gate": ("no-regression", "improve"),
    "kopt_engine": ("auto", "graph", "events", "wall", "do_bench"),
    "kopt_device": ("auto", "cpu", "cuda"),
    "kopt_isolation": ("on", "off"),
}
#: Ini values that no option has.
_INI = {
    "kopt_workspace": "directory of the campaigns (default: agent/workspace)",
    "kopt_rebuild_command": "builds compiled kernels in place, for --kopt-base",
    "kopt_isolation": "on (default) or off: whether kernel code is kept to its own files",
    "kopt_seed": "session seed, to repeat a recorded session (default: a fresh secret)",
}
#: Options that may stand in an ini file too.
_TWINS = ("campaign", "policy", "device", "engine", "compare", "gpu_wait", "gate", "timeout")
#: Options as in their help: name, and what may follow it. Nothing follows a flag.
_OPTIONS = {
    "--kopt-campaign NAME": "campaign whose rounds are measured",
    "--kopt-round N|next|final": "round this session measures and decides; 1 is the baseline, "
    "final compares with it",
    "--kopt-summary-csv PATH|DIR/": "write the CSV there too, also without a campaign; into a "
    "directory, one CSV for each test function; --summary-csv for short, unless the project has "
    "its own",
    "--kopt-level": "the representative cases or all (default: quick if representative_shapes are "
    "set)",
    "--kopt-compare": "paired: measure both versions now; stored: use the incumbent's recorded "
    "figures",
    "--kopt-base REF|PATH": "no campaign: compare the working tree with the merge base of REF and "
    "HEAD, or with the version of some files at PATH, paired",
    "--kopt-gate": "what --kopt-base demands of the change (default: no-regression)",
    "--kopt-allow-removed": "let --kopt-base pass though cases of the base are gone, or "
    "changed together with what they call",
    "--kopt-measure-same": "also time cases in which the GPU does the same work for both versions",
    "--kopt-check-only": "check the cases, as without any option, try them near their inputs, and "
    "list what they do not test; --summary-csv has rows without times",
    "--kopt-sanitize TOOLS": "run the cases once under tools of NVIDIA's compute-sanitizer, "
    "memcheck,racecheck,initcheck for example; time and compare nothing",
    "--kopt-candidates PATH|REF": "a version that races in one round, repeatable; the best is "
    "judged; a folder with kernel files at their paths below the root, or a git ref",
    "--kopt-calibrate N": "compare every case with itself in N fresh processes: the noise floor",
    "--kopt-profile": "profile the round's cases after measuring them, into profiles/round-N/",
    "--kopt-verdict PATH": "write verdict.json there (for CI)",
    "--kopt-comment PATH": "write the verdict as Markdown there (for a pull request)",
    "--kopt-notes FILE": "the round's notes: hypothesis, …",
    "--kopt-policy NAME|FILE": "decision policy: primus, kernel-opt or a file",
    "--kopt-engine": "timing engine (default: auto)",
    "--kopt-device": "device to measure on",
    "--kopt-gpu-wait MINUTES": "how long to wait for an idle GPU (default: 60; 0: do not wait)",
    "--kopt-timeout SECONDS": "limit for one case (default: 300)",
    "--kopt-repeats N": "samples of a case with --summary-csv (default: 3)",
    "--kopt-iters-per-repeat N": "calls in a sample on the CPU with --summary-csv (default: up "
    "to 50)",
    "--kopt-no-apply": "decide and record, but touch neither git nor kernel files",
    "--kopt-deterministic-only": "of the tests that use kopt, run those marked deterministic alone",
    "--kopt-dist-only": "of the tests that use kopt, run those marked multigpu alone",
}
#: Options of pytest's with which no test is run.
_SHOWING = {
    *("--collect-only", "--collectonly", "--co", "--setup-only", "--setup-plan", "--cache-show"),
    *("--fixtures", "--funcargs", "--fixtures-per-test", "--markers", "-h", "--help"),
    *("-V", "--version"),
}
_NUMBERS: dict[str, type] = {"N": int, "MINUTES": float, "SECONDS": float}
#: Names under which processes of ours find their orders: a child's plugin, an xdist worker's input.
SERVE = "kopt-serve"
WORKERINPUT = "kopt_orders"
#: Behind the words of a pytest that is set up after this package was imported: no error of
#: `filterwarnings` or of `-W error`.
LOADED_BEFORE = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
#: The plugin of a comparison in a temporary tree: its `base` is the user's name of the base.
IN_TREE = "kopt-in-tree"
#: Options of sessions that end in a verdict, and where their values are.
JUDGING = {
    "--kopt-round": "kopt_round",
    "--kopt-base": "kopt_base",
}
#: Where the values of all options are with which tests run in a process of their own.
ACTIVE = (*JUDGING.values(), "kopt_summary_csv", "kopt_calibrate")
#: The process's own stderr, kept before pytest redirects it: where a stuck case's stacks go.
STDERR: pytest.StashKey[int] = pytest.StashKey()
#: The files, folders and cases that a command names.
NAMED: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()
#: The arguments that the campaign's manifest puts in front of the user's.
FROM_MANIFEST: pytest.StashKey[list[str]] = pytest.StashKey()
#: Options that name a file which a session reads or writes.
PATH_OPTIONS = (
    *("--kopt-notes", "--kopt-verdict", "--kopt-comment", "--kopt-policy"),
    "--kopt-summary-csv",
)
#: What a project may have an option of its own for: short for the same word with `--kopt`.
SHORT = "--summary-csv"
#: The special suites, by the marker of their tests: the option that runs one alone.
SUITES = {"deterministic": "--kopt-deterministic-only", "multigpu": "--kopt-dist-only"}
MARKER = "kopt(schema): a case of a kernel optimisation campaign; see the fixture of the same name"
#: Names that a project may have for its own: known where kopt is used, and not before.
SUITE_MARKERS = (
    "deterministic: bitwise determinism suite, run with --kopt-deterministic-only",
    "multigpu: needs several GPUs in one test, run with --kopt-dist-only",
)


def add_options(parser: pytest.Parser) -> None:
    """Register everything; costs no import."""
    group = parser.getgroup("kopt", "GPU-kernel optimisation campaigns")
    for names, properties in options():
        group.addoption(*names, **properties)
    for name, text in _INI.items():
        parser.addini(name, text, default=None)
    for name in _TWINS:
        parser.addini(f"kopt_{name}", f"as --kopt-{name.replace('_', '-')}", default=None)


def options() -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield each option's names, and what argparse is to know of it."""
    for spelled, text in _OPTIONS.items():
        *names, last = spelled.split()
        is_flag = last.startswith("--")
        names += [last] * is_flag
        dest = names[-1].removeprefix("--").replace("-", "_")
        keywords: dict[str, Any] = {"metavar": last, "type": _NUMBERS.get(last, str)}
        if dest in CHOICES:
            keywords = {"choices": CHOICES[dest]}
        elif is_flag:
            keywords = {"action": "store_true"}
        elif dest == "kopt_candidates":
            keywords |= {"action": "append", "default": []}
        yield names, {**keywords, "dest": dest, "help": text}


def settings_keys() -> set[str]:
    """Return the names of our ini values."""
    return {*_INI, *(f"kopt_{name}" for name in _TWINS)}


def judges(config: pytest.Config) -> bool:
    """Say whether a command, not parsed yet, asks for a verdict of the process that it starts."""
    words = map(str, config.invocation_params.args)
    return (
        not JUDGING.keys().isdisjoint(word.partition("=")[0] for word in words)
        and not config.pluginmanager.has_plugin(SERVE)
        and "PYTEST_XDIST_WORKER" not in os.environ
    )


def only_shows(config: pytest.Config) -> bool:
    """Say whether a command has pytest show something and run no test."""
    return not _SHOWING.isdisjoint(map(str, config.invocation_params.args))


def measures(config: pytest.Config) -> bool:
    """Say whether a command, not parsed yet, has cases timed, here or in a process below."""
    words = {str(word).partition("=")[0] for word in config.invocation_params.args}
    return bool(words & {*JUDGING, "--kopt-summary-csv"}) or config.pluginmanager.has_plugin(SERVE)


def is_free(parser: pytest.Parser, config: pytest.Config) -> bool:
    """Say whether no option of another plugin, as far as they are loaded, has our short name."""
    try:
        return bool(parser.parse_known_and_unknown_args([SHORT], copy.copy(config.option))[1])
    except pytest.UsageError:
        # Somebody's, that wants a value.
        return False


def spell_out(words: list[str]) -> dict[int, str]:
    """Give our short name its prefix in a command; return each old word by the new one's `id`."""
    before = {}
    for place, word in enumerate(words):
        if word.partition("=")[0] == SHORT:
            words[place] = f"--kopt{word[1:]}"
            before[id(words[place])] = word
    return before


def device_of(words: Sequence[str]) -> str:
    """Return what a command of pytest's, of which nothing is parsed yet, says of the device."""
    pieces = [piece for word in words for piece in word.split("=", 1)]
    device = dict(pairwise(pieces)).get("--kopt-device", "auto")
    return device if device in CHOICES["kopt_device"] else "auto"


def is_asked_for(config: pytest.Config) -> bool:
    """Say whether an option, another process of ours or an ini value asks for kopt.

    While conftest files are loaded, options are parsed as far as they are known.
    """
    if config.pluginmanager.has_plugin(SERVE) or WORKERINPUT in getattr(config, "workerinput", {}):
        return True
    values = vars(config.known_args_namespace) | vars(config.option)
    return any(values[name] for name in values if name.startswith("kopt_"))
