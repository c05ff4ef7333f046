"""The settings of a session: options and ini values, resolved once and then fixed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_kopt.campaign.git.worktrees import keeper
from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import CHOICES, FROM_MANIFEST, LOADED_BEFORE, SUITES, options
from pytest_kopt.profiling import sanitizer

Gate = Literal["no-regression", "improve"]
Suite = Literal["standard", "deterministic", "multigpu"]
DEFAULT_WORKSPACE = "agent/workspace"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the user; paths are absolute."""

    root: Path
    workspace: Path
    campaign: str | None
    round: int | Literal["next", "final"] | None
    base: str | None
    gate: Gate
    allow_removed: bool
    measure_same: bool
    candidates: tuple[str, ...]
    check_only: bool
    sanitize: tuple[str, ...]
    rebuild_command: str | None
    summary_csv: Path | None
    csv_is_folder: bool
    calibrate: int | None
    compare: str
    level: str | None
    verdict_path: Path | None
    notes: Path | None
    policy: str | None
    engine: str
    device: str
    gpu_wait: float
    timeout: float
    apply: bool
    profile: bool
    suite: Suite
    seed: int | None
    repeats: int | None
    iterations: int | None
    isolates: bool

    @property
    def active(self) -> bool:
        """Whether anything beyond running the tests was asked for."""
        return any((self.round, self.base, self.summary_csv, self.calibrate))

    @property
    def shows(self) -> bool:
        """Whether a line says which case is checked: a case may take minutes."""
        return self.active or self.check_only

    @property
    def times(self) -> bool:
        """Whether cases are timed: an ordinary `pytest` of a project checks them."""
        return self.active and not self.check_only

    @classmethod
    def from_config(cls, config: pytest.Config) -> Settings:
        """Resolve the settings; BadInput names the option, its value and what is legal."""
        option, here = config.option, Path(config.invocation_params.dir)
        _check_root(config)
        csv = option.kopt_summary_csv
        plain = ("base", "allow_removed", "measure_same", "check_only", "level", "profile")
        values: dict[str, Any] = {name: getattr(option, f"kopt_{name}") for name in plain}
        for name in ("gate", "compare", "engine", "device"):
            values[name] = choice(config, f"kopt_{name}")

        def absolute(path: str | None) -> Path | None:
            return None if path is None else (here / path).resolve()

        settings = cls(
            **values,
            root=config.rootpath,
            workspace=workspace_of(config),
            campaign=option.kopt_campaign or config.getini("kopt_campaign"),
            round=parse_round(option.kopt_round),
            # The links of a virtual environment name it: they are not followed.
            candidates=tuple(option.kopt_candidates),
            rebuild_command=config.getini("kopt_rebuild_command"),
            sanitize=_sanitizers(option.kopt_sanitize),
            summary_csv=absolute(csv),
            csv_is_folder=bool(csv and (csv.endswith("/") or (here / csv).is_dir())),
            calibrate=_count("--kopt-calibrate", option.kopt_calibrate, 4, 1000),
            verdict_path=absolute(option.kopt_verdict),
            notes=absolute(option.kopt_notes),
            policy=option.kopt_policy or config.getini("kopt_policy"),
            gpu_wait=_number(config, "kopt_gpu_wait", 60.0, 0, "minutes, 0 or more"),
            timeout=_number(config, "kopt_timeout", 300.0, 1e-9, "seconds above 0"),
            apply=not option.kopt_no_apply,
            suite=_suite(option),
            seed=_seed(config.getini("kopt_seed")),
            repeats=_count("--kopt-repeats", option.kopt_repeats),
            iterations=_count("--kopt-iters-per-repeat", option.kopt_iters_per_repeat),
            isolates=choice(config, "kopt_isolation") == "on",
        )
        settings._check(option)
        return settings

    def _check(self, option: Any) -> None:
        """Raise BadInput for options that do not go together."""
        judged = self.round is not None or self.base is not None
        for name, given, needed, legal in (
            ("--kopt-verdict", self.verdict_path, judged or self.calibrate, "--kopt-round N|next"),
            ("--kopt-comment", option.kopt_comment is not None, judged, "--kopt-round N|next"),
            ("--kopt-notes", self.notes, self.round, "--kopt-round N|next"),
            ("--kopt-candidates", self.candidates, self.round, "--kopt-round next"),
            ("--kopt-no-apply", option.kopt_no_apply, self.round, "--kopt-round N|next"),
            ("--kopt-level", self.level, self.round, "--kopt-round N|next"),
            ("--kopt-profile", self.profile, self.round, "--kopt-round N|next"),
            ("--kopt-gate", option.kopt_gate, self.base, "--kopt-base REF"),
            ("--kopt-allow-removed", self.allow_removed, self.base, "--kopt-base REF"),
            ("--kopt-measure-same", self.measure_same, judged, "--kopt-round N|next"),
            ("--kopt-repeats", self.repeats, self.active, "--summary-csv PATH"),
            ("--kopt-iters-per-repeat", self.iterations, self.active, "--summary-csv PATH"),
        ):
            if given and not needed:
                raise BadInput(f"needs {legal.partition(' ')[0]}", where=name, fix=f"add {legal}")
        if self.base is not None and (self.round is not None or option.kopt_campaign):
            what = "excludes --kopt-round and --kopt-campaign: it needs no campaign"
            raise BadInput(what, where="--kopt-base", fix="remove one of the options")
        neither = "remove it, or --kopt-round and --kopt-base"
        if judged and self.calibrate:
            what = "excludes --kopt-round and --kopt-base"
            raise BadInput(what, where="--kopt-calibrate", fix=neither)
        timed = ("round", "base", "calibrate", "repeats", "iters-per-repeat")
        given = (n for n in timed if getattr(option, f"kopt_{n.replace('-', '_')}") is not None)
        modes = {"--kopt-check-only": self.check_only, "--kopt-sanitize": self.sanitize}
        for mode in (mode for mode, is_asked in modes.items() if is_asked):
            for name in (f"--kopt-{n}" for n in given):
                what = f"excludes {name}: it times, compares and records nothing"
                raise BadInput(what, where=mode, fix=f"remove {name}")
        if self.sanitize and (self.check_only or self.summary_csv):
            what = "excludes --kopt-check-only and --summary-csv: it writes no rows"
            raise BadInput(what, where="--kopt-sanitize", fix="remove the other options")
        if self.base is not None and self.compare == "stored":
            what = "--kopt-base has no stored baseline to compare with"
            raise BadInput(what, where="--kopt-compare", legal=["auto", "paired"])
        if (judged or self.calibrate) and (self.repeats or self.iterations):
            where = "--kopt-repeats" if self.repeats else "--kopt-iters-per-repeat"
            what = "kopt sets the number of samples of a round, a PR check and a calibration"
            raise BadInput(
                what,
                where=where,
                fix="remove it, or --kopt-round, --kopt-base and --kopt-calibrate",
            )
        if judged and self.suite != "standard":
            what = "a round and a PR check measure the standard cases"
            raise BadInput(what, where=SUITES[self.suite], fix=neither)


def workspace_of(config: pytest.Config) -> Path:
    """Return the directory of the campaigns, which all trees of a repository share."""
    return keeper(config.rootpath) / (config.getini("kopt_workspace") or DEFAULT_WORKSPACE)


def _check_root(config: pytest.Config) -> None:
    """Raise BadInput where a path after one of our options has moved pytest's root directory.

    Before pytest knows the options of its plugins it takes the word after them for one of tests,
    and looks for the project around it.
    """
    here, words = Path(config.invocation_params.dir), config.invocation_params.args
    if config.option.rootdir or config.option.inifilename:
        return
    with_path = {
        name
        for names, how in options()
        if {"PATH", "FILE"} & {*how.get("metavar", "").split("|")}
        for name in names
    }
    of_manifest = config.stash.get(FROM_MANIFEST, ())
    tests = [word for word in config.option.file_or_dir if word not in of_manifest]
    for option, word in pairwise(map(str, words)):
        if not (option in with_path and (here / word).exists()):
            continue
        # Pytest's root directory for the paths of these tests alone.
        own = pytest.Config.fromdictargs({}, ["--noconftest", *LOADED_BEFORE, *tests])
        if config.rootpath != own.rootpath:
            raise BadInput(
                f"pytest took {word} for a path to tests and looks for the project in "
                f"{config.rootpath}",
                where=option,
                fix=f"{option}={word}",
            )


def parse_round(text: str | None) -> int | Literal["next", "final"] | None:
    """Return a round number, "next" or "final"; BadInput for anything else."""
    if text is None:
        return None
    if text in ("next", "final"):
        return "next" if text == "next" else "final"
    if text.isascii() and text.isdecimal() and len(text) <= 4 and int(text):
        return int(text)
    raise BadInput(f"round is {text!r}", where="--kopt-round", legal="1 to 9999, next or final")


def _count(name: str, value: int | None, least: int = 1, most: int = 100_000) -> int | None:
    if value is not None and not least <= value <= most:
        raise BadInput(f"is {value}", where=name, legal=f"{least} to {most}")
    return value


def _sanitizers(text: str | None) -> tuple[str, ...]:
    """Return the tools of compute-sanitizer that a text names; BadInput where one cannot run."""
    names = tuple(filter(None, (word.strip() for word in (text or "").split(","))))
    if unknown := [name for name in names if name not in sanitizer.TOOLS]:
        what = f"{sanitizer.TOOL} has no {unknown[0]!r}"
        raise BadInput(what, where="--kopt-sanitize", legal=sanitizer.TOOLS)
    if text is not None and not names:
        raise BadInput("names no tool", where="--kopt-sanitize", legal=sanitizer.TOOLS)
    if names and shutil.which(sanitizer.TOOL) is None:
        raise BadInput(
            f"{sanitizer.TOOL} is not on PATH",
            where="--kopt-sanitize",
            fix="add the bin folder of the CUDA toolkit to PATH, such as /usr/local/cuda/bin",
        )
    return names


def _suite(option: Any) -> Suite:
    if not option.kopt_deterministic_only:
        return "multigpu" if option.kopt_dist_only else "standard"
    if option.kopt_dist_only:
        what = "--kopt-deterministic-only and --kopt-dist-only exclude each other"
        raise BadInput(what, fix="remove one of them")
    return "deterministic"


def choice(config: pytest.Config, name: str) -> str:
    """Return what an option or its ini value says, the first of what is legal where none does."""
    legal = CHOICES[name]
    value = getattr(config.option, name, None) or config.getini(name) or legal[0]
    if value not in legal:
        raise BadInput(f"{name} is {value!r}", where="ini", legal=legal)
    return str(value)


def _number(config: pytest.Config, name: str, default: float, least: float, legal: str) -> float:
    """Return what an option or its ini value says, a finite number from `least` on."""
    value = getattr(config.option, name)
    if value is None:
        value = config.getini(name)
    try:
        number = default if value is None else float(value)
    except ValueError:
        number = -1.0
    if not least <= number < float("inf"):
        where = f"--{name.replace('_', '-')}"
        raise BadInput(f"{value!r} is out of range", where=where, legal=legal)
    return number


def _seed(value: str | None) -> int | None:
    if value is not None and not str(value).isdecimal():
        raise BadInput(f"kopt_seed is {value!r}", where="ini", legal="a number >= 0")
    return None if value is None else int(value)
