"""manifest.yaml: what a campaign is about, aims at and how it is run, validated key by key."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pytest_kopt.campaign.kernel import files_of
from pytest_kopt.documents import dump_yaml, load_yaml, validate
from pytest_kopt.errors import BadInput
from pytest_kopt.models import Document
from pytest_kopt.schema.table import write_atomically

ARCHITECTURES = {
    **dict.fromkeys(("A100", "A100_PCIE", "A100_40GB", "A30"), "sm_80"),
    **dict.fromkeys(("A10", "A40", "RTX_3090", "RTX_A6000"), "sm_86"),
    **dict.fromkeys(("L4", "L40", "L40S", "RTX_4090", "RTX_6000_ADA"), "sm_89"),
    **dict.fromkeys(("H20", "H100", "H100_PCIE", "H100_NVL", "GH200", "H200", "H200_NVL"), "sm_90"),
    **dict.fromkeys(("B200", "GB200"), "sm_100"),
    **dict.fromkeys(("B300", "GB300"), "sm_103"),
    **dict.fromkeys(("RTX_5090", "RTX_PRO_6000"), "sm_120"),
    **dict.fromkeys(("MI300X", "MI308X", "MI325X"), "gfx942"),
    **dict.fromkeys(("MI350X", "MI355X"), "gfx950"),
}
#: The models of ARCHITECTURES by their names without separators.
_MODELS = {name.replace("_", ""): name for name in ARCHITECTURES}
#: The language that follows from a backend; any other has to be given.
LANGUAGES = {
    "TRITON": "TRITON",
    **dict.fromkeys(("CK", "HIPBLASLT", "TURBO"), "HIP"),
    **{name: name for name in ("CUDA", "HIP", "CUTEDSL", "FLYDSL", "TORCH")},
}
_ARCHITECTURE = re.compile(r"cpu|sm_\d{2,3}a?|gfx[0-9a-f]{3,5}")
EFFICIENCY = "% peak efficiency"
#: What a unit measures, and how many of the smallest one it is.
_SCALES = {
    "TFLOPS": ("work", 1.0),
    "GB/s": ("traffic", 1.0),
    "TB/s": ("traffic", 1e3),
    "us": ("time", 1.0),
    "µs": ("time", 1.0),
    "ms": ("time", 1e3),
}
_TARGET = re.compile(r"\s*([<>])\s*(\d+(?:\.\d+)?)\s*(TFLOPS|TB/s|GB/s|ms|us|% peak efficiency)\s*")
_PLACEHOLDER = re.compile(r"<[a-z][a-z0-9_]*>")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_STAMP = "%Y-%m-%d %H:%M"
_BRANCH = re.compile(r"(?!-)(?!.*(\.\.|//|@\{|\\))[\w./+-]+(?<![./])")
#: Keys that only earlier releases wrote.
RETIRED = ("upstream", "kernel_time")
#: Bytes of a file's name and of a kernel's path that every file system takes.
_LONGEST_NAME, _LONGEST_PATH = 255, 2000
#: Rounds after the baseline.
MOST_ITERATIONS = 119
Text = Annotated[str, Field(min_length=1, max_length=4000)]
Word = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w+-][\w.+-]*$")]


@dataclass(frozen=True, slots=True)
class PerformanceTarget:
    """A parsed `performance_target`: rates and efficiencies are floors, times are ceilings."""

    above: bool
    number: float
    unit: str

    def __str__(self) -> str:
        gap = "" if self.unit.startswith("%") else " "
        return f"{'>' if self.above else '<'}{self.number:g}{gap}{self.unit}"

    @property
    def is_efficiency(self) -> bool:
        return self.unit == EFFICIENCY

    def is_reached_by(self, figure: float) -> bool:
        return figure > self.number if self.above else figure < self.number

    def in_its_unit(self, metric: str, figure: float) -> float | None:
        """Return a metric's figure in the target's unit, None where the metric has another.

        A metric's name tells its unit: `Forward GB/s`, `Combined Step TFLOPS`, `Time (ms)`.
        """
        words = {word.strip("()") for part in metric.split("_") for word in part.split()}
        for unit, (kind, scale) in _SCALES.items():
            target_kind, target_scale = _SCALES.get(self.unit, ("", 1.0))
            if unit in words and kind == target_kind:
                return figure * scale / target_scale
        return None


def architecture(gpu: str) -> str:
    """Return the architecture of a platform or architecture name; ValueError for another."""
    model = _model(gpu)
    name = ARCHITECTURES[model] if model else gpu.lower()
    if not _ARCHITECTURE.fullmatch(name):
        raise ValueError(
            f"cpu, an architecture (sm_90, gfx942) or one of {', '.join(ARCHITECTURES)}"
        )
    return name


def _model(gpu: str) -> str | None:
    """Return the name here of a model, written with or without spaces and dashes, or None."""
    return _MODELS.get(re.sub(r"[ _-]", "", gpu.upper()))


def parse_target(text: str) -> PerformanceTarget:
    """Parse `>500 TFLOPS`, `>60% peak efficiency`, `<12 us`; ValueError for anything else."""
    legal = "'>500 TFLOPS', '>60% peak efficiency', '>3 TB/s', '<12 us' or null"
    match = _TARGET.fullmatch(text.replace("%peak", "% peak"))
    if not match:
        raise ValueError(legal)
    sign, number, unit = match.groups()
    if (sign == "<") != (unit in ("ms", "us")):
        raise ValueError(f"{legal}; more is better for rates, less for times")
    return PerformanceTarget(sign == ">", float(number), unit)


def _checked(check: Callable[[Any], object], legal: str = "") -> AfterValidator:
    """Return a validator: `check` raises ValueError, or is false for what is not `legal`."""

    def checked(value: Any) -> Any:
        if not check(value) and legal:
            raise ValueError(legal)
        return value

    return AfterValidator(checked)


def _check_filled_in(text: str) -> None:
    if placeholder := _PLACEHOLDER.search(text):
        raise ValueError(f"the placeholder {placeholder.group()} filled in")


def _check_inside(paths: list[str]) -> None:
    for path in paths:
        if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
            raise ValueError("paths relative to the project root, without '..'")
        names = (len(os.fsencode(part)) for part in Path(path).parts)
        if max(names, default=0) > _LONGEST_NAME or len(os.fsencode(path)) > _LONGEST_PATH:
            raise ValueError(f"at most {_LONGEST_NAME} bytes a name, {_LONGEST_PATH} in all")


def _check_variables(env: dict[str, str]) -> None:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"names of environment variables, not {name!r}")
        if "\0" in value:
            raise ValueError("values without NUL")
        _check_filled_in(value)


def _is_stamp(text: str) -> bool:
    try:
        return datetime.strptime(text, _STAMP).strftime(_STAMP) == text
    except ValueError:
        return False


def _are_different(shapes: str | list[str] | None) -> bool:
    return not isinstance(shapes, list) or len(set(shapes)) == len(shapes)


Command = Annotated[Text, _checked(_check_filled_in)]
_EACH_ONCE = _checked(_are_different, "different labels")
Shapes = Annotated[
    Literal["all"] | Annotated[list[Text], Field(min_length=1)],
    _EACH_ONCE,
]


class FrozenSchema(Document):
    """The CSV schema as the baseline froze it."""

    header: Annotated[str, Field(min_length=1)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(Document):
    """The keys of manifest.yaml.

    With `execution_mode` workspace the rounds run in a git work tree of the campaign's own.
    Paths are relative to the project root, where pytest's configuration lies. `tests` are the
    pytest arguments that select the campaign's tests, `target_shapes` the cases among them. These,
    `representative_shapes` and `core_shapes` name a case by its label, by its node id where others
    share that. `benchmark_command` is run before baseline and final comparison. `e2e_command`
    prints what a run of a whole program takes; the final comparison runs it for both versions.
    """

    model_config = ConfigDict(populate_by_name=True)

    target_op: Annotated[Word, _checked(_check_filled_in)]
    target_backend: Word = Field(
        description=f"the imports of the kernel do not show it; {', '.join(LANGUAGES)} or another"
    )
    target_lang: Word = Field(
        description=f"it follows from the backends {', '.join(LANGUAGES)}; any other needs --lang"
    )
    target_gpu: Annotated[str, AfterValidator(architecture)]
    target_model: Word | None = Field(default=None, validate_default=True)
    execution_mode: Literal["repo", "workspace"] = "repo"
    project_skill: Text | None = None
    performance_target: Annotated[Text, _checked(parse_target)] | None = None
    primary_metric: Text | None = None
    target_shapes: Shapes = "all"
    kernel_source: Annotated[
        list[Text],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        Field(min_length=1),
        _checked(_check_inside),
    ]
    tests: Annotated[str, _checked(_check_filled_in)] = ""
    test_command: Command | None = None
    benchmark_command: Command | None = None
    e2e_command: Command | None = None
    quick_command: Text | None = None
    representative_shapes: Annotated[
        Annotated[list[Text], Field(min_length=3, max_length=5)] | None, _EACH_ONCE
    ] = None
    git_commit: bool = True
    git_branch: Annotated[Text, _checked(_BRANCH.fullmatch, "none, auto or a branch name")] = "none"
    max_iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS, strict=True)] | None = None
    created: Annotated[Text, _checked(_is_stamp, "a date and time as YYYY-MM-DD HH:MM")]
    csv_schema: FrozenSchema | None = Field(default=None, alias="schema")
    core_shapes: Shapes = "all"
    policy: Text = "primus"
    engine: Literal["auto", "graph", "events", "wall", "do_bench"] = "auto"
    operating_point: Literal["boost", "sustained"] = Field(
        default="boost",
        description="the clock of a GPU that decides: its highest (boost), or each version's own "
        "under load (sustained)",
    )
    classes: Annotated[list[Text], _checked(_are_different, "columns of the CSV, each once")] = []
    env: Annotated[dict[str, str], _checked(_check_variables)] = {}
    rebuild_command: Command | None = None
    format_command: Command | None = None

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, document: Any) -> Any:
        """Add the model that `target_gpu` names and the backend's language; drop retired keys."""
        if not isinstance(document, dict):
            return document
        document = {key: value for key, value in document.items() if key not in RETIRED}
        implied = {
            "target_model": _model(str(document.get("target_gpu", ""))),
            "target_lang": LANGUAGES.get(str(document.get("target_backend", "")).upper()),
        }
        return document | {k: v for k, v in implied.items() if v and not document.get(k)}

    @field_validator("target_model")
    @classmethod
    def _of_its_architecture(cls, value: str | None, info: ValidationInfo) -> str | None:
        gpu = info.data.get("target_gpu")
        models = [model for model, arch in ARCHITECTURES.items() if arch == gpu]
        if value is not None and gpu is not None and value not in models:
            raise ValueError(" or ".join([*models, "null"]))
        return value

    def to_yaml(self) -> str:
        return dump_yaml(self.model_dump(mode="json", by_alias=True))


def load(path: Path) -> Manifest:
    return validate(Manifest, load_yaml(path), where=str(path))


def save(path: Path, manifest: Manifest) -> None:
    write_atomically(path, manifest.to_yaml())


def check_kernel_paths(sources: Iterable[str], root: Path, repository: Path) -> None:
    """Raise BadInput for a kernel path that is missing or leads outside the repository."""
    for source in sources:
        path = root / source
        if not path.exists():
            raise BadInput(f"kernel {source!r} does not exist", where="kernel_source")
        home = repository.resolve()
        for file in (path, *files_of(path)):
            target = file.resolve()
            if not target.is_relative_to(home) or ".git" in target.relative_to(home).parts:
                what = f"kernel {file.relative_to(root).as_posix()!r} lies outside the repository"
                raise BadInput(what, where="kernel_source", legal=f"paths below {repository}")


def split_command(command: str) -> tuple[dict[str, str], list[str]]:
    """Return the leading NAME=value words and the command's, as shlex splits; or BadInput."""
    if "\0" in command:
        raise BadInput(f"{command!r} contains a NUL character", where="command")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInput(f"{command!r} cannot be split: {error}", where="command") from None
    environment = {}
    while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
        environment[assignment[1]] = assignment[2]
        words.pop(0)
    if not words:
        what = f"{command!r} names no program"
        raise BadInput(what, where="command", legal="[NAME=value] PROGRAM …")
    return environment, words
