"""The settings of a session: options and ini values, resolved once and then fixed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import ENGINES

Suite = Literal["standard", "deterministic", "multigpu"]
DEFAULT_TIMEOUT = 300.0
DEFAULT_WORKSPACE = "agent/workspace"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for; paths are absolute."""

    root: Path
    workspace: Path
    campaign: str | None
    round: int | Literal["next"] | None
    summary_csv: Path | None
    calibrate: int | None
    compare: str
    verdict_path: Path | None
    notes: Path | None
    policy: str | None
    engine: str
    device: str
    timeout: float
    apply: bool
    profile: bool
    suite: Suite
    seed: int | None

    @property
    def active(self) -> bool:
        """Whether anything beyond running the tests was asked for."""
        return any((self.round, self.summary_csv, self.calibrate))

    @classmethod
    def from_config(cls, config: pytest.Config) -> Settings:
        """Resolve the settings; BadInput names the option, its value and what is legal."""
        option = config.option
        here = Path(config.invocation_params.dir)
        settings = cls(
            root=config.rootpath,
            workspace=workspace_of(config),
            campaign=option.kopt_campaign or config.getini("kopt_campaign"),
            round=parse_round(option.kopt_round),
            summary_csv=_absolute(here, option.kopt_summary_csv),
            calibrate=_calibrate(option.kopt_calibrate),
            compare=_choice(config, "compare", ("auto", "paired", "stored")),
            verdict_path=_absolute(here, option.kopt_verdict),
            notes=_absolute(here, option.kopt_notes),
            policy=option.kopt_policy or config.getini("kopt_policy"),
            engine=_choice(config, "engine", ENGINES),
            device=_choice(config, "device", ("auto", "cpu", "cuda")),
            timeout=_timeout(config),
            apply=not option.kopt_no_apply,
            profile=option.kopt_profile,
            suite=_suite(config),
            seed=_seed(config),
        )
        if settings.round is None:
            for name, given in (
                ("--kopt-verdict", settings.verdict_path and not settings.calibrate),
                ("--kopt-notes", settings.notes),
                ("--kopt-no-apply", option.kopt_no_apply),
                ("--kopt-profile", settings.profile),
            ):
                if given:
                    raise BadInput(f"{name} needs a round", where=name, legal="--kopt-round N|next")
        elif settings.suite != "standard":
            raise BadInput(
                "a round measures the standard cases",
                where=_SUITES[settings.suite],
                legal="no round",
            )
        return settings


_SUITES = {"deterministic": "--kopt-deterministic-only", "multigpu": "--kopt-dist-only"}


def workspace_of(config: pytest.Config) -> Path:
    """Return the directory of the campaigns."""
    return config.rootpath / (config.getini("kopt_workspace") or DEFAULT_WORKSPACE)


def parse_round(text: str | None) -> int | Literal["next"] | None:
    """Return a round number or "next"; BadInput for anything else."""
    if text is None:
        return None
    if text == "next":
        return "next"
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= 119:
        return int(text)
    raise BadInput(f"round is {text!r}", where="--kopt-round", legal="1 to 119, or next")


def _calibrate(count: int | None) -> int | None:
    if count is not None and not 4 <= count <= 1000:
        raise BadInput(f"{count} processes", where="--kopt-calibrate", legal="4 to 1000")
    return count


def _suite(config: pytest.Config) -> Suite:
    if config.option.kopt_deterministic_only and config.option.kopt_dist_only:
        raise BadInput(
            "--kopt-deterministic-only and --kopt-dist-only exclude each other",
            legal="one of them at a time",
        )
    if config.option.kopt_deterministic_only:
        return "deterministic"
    return "multigpu" if config.option.kopt_dist_only else "standard"


def _choice(config: pytest.Config, name: str, legal: tuple[str, ...]) -> str:
    value = getattr(config.option, f"kopt_{name}") or config.getini(f"kopt_{name}") or "auto"
    if value not in legal:
        raise BadInput(f"kopt_{name} is {value!r}", where="ini", legal=legal)
    return str(value)


def _timeout(config: pytest.Config) -> float:
    given = config.option.kopt_timeout
    if given is None:
        given = config.getini("kopt_timeout") or DEFAULT_TIMEOUT
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise BadInput(f"timeout is {given!r}", where="--kopt-timeout", legal="seconds above 0")
    return seconds


def _seed(config: pytest.Config) -> int | None:
    given = config.getini("kopt_seed")
    if given is None:
        return None
    if not str(given).isdecimal():
        raise BadInput(f"kopt_seed is {given!r}", where="ini", legal="a number >= 0")
    return int(given)


def _absolute(here: Path, path: Path | None) -> Path | None:
    return None if path is None else (here / path).resolve()
