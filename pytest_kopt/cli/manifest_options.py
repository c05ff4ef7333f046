"""The options of `kopt init`: one for every key of the manifest that a person sets."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pytest_kopt.campaign.manifest import Manifest

#: What the plugin writes into the manifest itself.
_OURS = {"execution_mode", "created", "csv_schema", "quick_command"}
_SHORT = {
    "performance_target": "target",
    "primary_metric": "metric",
    "kernel_source": "kernel",
    "git_branch": "branch",
}
#: The options by how often they are needed; the others are rare.
_GROUPS = {
    "needed, where the tree does not tell": (
        *("kernel_source", "target_op", "target_backend", "target_gpu", "target_lang"),
    ),
    "common": (
        *("tests", "primary_metric", "performance_target", "policy", "rebuild_command"),
        *("test_command", "git_branch", "git_commit"),
    ),
}
_RARE = "rare"
#: What a key is for, and an example of it.
_HELP = {
    "target_op": "target operator: gemm_fp8_blockwise (default: the kernel file's name)",
    "target_backend": "TRITON, CUDA, HIP, CUTEDSL, CK, FLYDSL, TORCH, … (default: by what the "
    "kernel imports)",
    "target_lang": "language, if the backend does not imply it: HIP",
    "target_gpu": "H200, MI300X, … (on this machine, or see --elsewhere); an architecture (sm_90, "
    "gfx942), whose peaks are unknown; or cpu (default: this machine's)",
    "target_model": "the GPU's model, if --gpu names its architecture: H200",
    "project_skill": "the project's own instructions: docs/kernels.md",
    "performance_target": "when to stop: '>500 TFLOPS', '>60%% peak efficiency', '<12 us'",
    "primary_metric": "what decides: 'Forward TFLOPS' (default: combined step or forward)",
    "target_shapes": "the cases of interest: gemm B=1 M=512 N=512 K=512 (default: all)",
    "kernel_source": "file or folder to optimise: kernels/gemm.py (default: the only one "
    "that tests import)",
    "tests": "pytest arguments that select the cases: 'tests/test_gemm.py -k bf16' "
    "(default: all that pytest collects)",
    "test_command": "must pass before every round: 'pytest -q tests/unit'",
    "benchmark_command": "the project's own benchmark: 'python bench.py'",
    "e2e_command": "prints the time of a run of a whole model: 'python step.py'",
    "representative_shapes": "label of a case for quick rounds, 3 to 5: "
    "'gemm B=1 M=512 N=512 K=512' (default: the baseline's proposal)",
    "git_commit": "commit accepted rounds (default: if there is a repository)",
    "max_iterations": "end the campaign after this many rounds: 20",
    "git_branch": "auto (optimize/NAME), none, or a branch name: tune/gemm",
    "core_shapes": "label of a case that the gate guards: gemm B=1 M=512 N=512 K=512 (default: "
    "all)",
    "policy": "decision policy: primus (default), kernel-opt, or a file mine.yaml",
    "engine": "timing engine: graph",
    "classes": "dims that tell classes of cases apart: M, or M,N",
    "env": "set in every worker: PRIMUS_TURBO_GEMM_BACKEND=TRITON",
    "rebuild_command": "run before every round: 'make -j8'",
    "format_command": "run before every round: 'ruff format kernels'",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, each under its key's name too; their values are checked by the manifest."""
    groups = {title: parser.add_argument_group(title) for title in (*_GROUPS, _RARE)}
    titles = {key: title for title, keys in _GROUPS.items() for key in keys}
    for key in _keys():
        names = _names(key)
        kinds = _kinds(key)
        text = _HELP.get(key) or Manifest.model_fields[key].description or f"{key} of the manifest"
        settings: dict[str, Any] = {"metavar": _metavar(key, kinds)}
        if bool in kinds:
            settings = {"action": argparse.BooleanOptionalAction}
        elif kinds & {list, dict}:
            text, settings["action"] = f"{text}; may be repeated", "append"
        groups[titles.get(key, _RARE)].add_argument(*names, dest=key, help=text, **settings)


def by_option(sentence: str) -> str:
    """Return a sentence about a key of the manifest as one about the option that sets it."""

    def option(found: re.Match[str]) -> str:
        return next(iter(_names(found[1]))) if found[1] in _keys() else found[0]

    return re.sub(r"(?:key )?'(\w+)'", option, sentence, count=1)


def _names(key: str) -> dict[str, None]:
    """Return a key's options, the short one first."""
    short = _SHORT.get(key, key.removeprefix("target_").removesuffix("_command"))
    return dict.fromkeys(f"--{name.replace('_', '-')}" for name in (short, key))


def given(arguments: argparse.Namespace, missing: list[str]) -> dict[str, Any]:
    """Return the keys that the command line sets, legal or not; `missing` takes what sets none."""
    missing += (
        f"--env: {word!r} sets nothing (allowed: NAME=VALUE)"
        for word in arguments.env or ()
        if "=" not in word
    )
    values = {key: getattr(arguments, key) for key in _keys()}
    return {key: _value(key, value) for key, value in values.items() if value is not None}


def _keys() -> Iterator[str]:
    return (key for key in Manifest.model_fields if key not in _OURS)


def _value(key: str, words: Any) -> Any:
    kinds = _kinds(key)
    if dict in kinds:
        return dict(word.split("=", 1) for word in words if "=" in word)
    if list in kinds:
        if key == "classes":
            words = [name.strip() for word in words for name in word.split(",") if name.strip()]
        return words[0] if words in ([choice] for choice in kinds) else words
    return int(words) if int in kinds and words.lstrip("-").isdecimal() else words


def _kinds(key: str) -> set[Any]:
    """Return the types that a key takes, with the values of a Literal."""
    return _members(Manifest.model_fields[key].annotation)


def _members(annotation: Any) -> set[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (list, dict):
        return {origin}
    if origin is Literal:
        return set(arguments)
    if origin is Annotated:
        return _members(arguments[0])
    return set().union(*map(_members, arguments)) if arguments else {annotation}


def _metavar(key: str, kinds: set[Any]) -> str:
    choices = sorted(kind for kind in kinds if isinstance(kind, str))
    if choices and list not in kinds:
        return "|".join(choices)
    if dict in kinds:
        return "NAME=VALUE"
    special = {"kernel_source": "PATH", "tests": "'ARGS'", "classes": "COLUMNS"}
    plain = "COMMAND" if key.endswith("_command") else "N" if int in kinds else "TEXT"
    return special.get(key, plain)
