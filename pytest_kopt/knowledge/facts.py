"""Hardware facts, answered from the spec files of `knowledge/hardware` and from nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from pytest_kopt.bundled import bundled
from pytest_kopt.documents import load_yaml, validate
from pytest_kopt.models import Document

UNKNOWN: Literal["UNKNOWN"] = "UNKNOWN"
_TOP = "knowledge"


class Source(Document):
    """The source of a value: a public document at `url`, or results of our own in `file`."""

    document: Annotated[str, Field(min_length=1)]
    section: Annotated[str, Field(min_length=1)]
    url: Annotated[str, Field(pattern=r"^https://[^/\s]+/\S*$")] | None = None
    file: Annotated[str, Field(pattern=r"^docs/results/\w+\.json$")] | None = None

    @model_validator(mode="after")
    def _in_one_place(self) -> Source:
        if bool(self.url) == bool(self.file):
            raise ValueError("the url of a document or a file of results, one of both")
        return self


class Entry(Document):
    """One metric of a spec file: a value with its source, or UNKNOWN with where it was sought."""

    value: Annotated[float, Field(gt=0)] | Literal["UNKNOWN"]
    unit: Annotated[str, Field(min_length=1)]
    source: Source | None = None
    checked: Literal["document", "quotation", "device", "measured"] | None = None
    derivation: str | None = None
    tried: list[str] = []
    read: str

    @model_validator(mode="after")
    def _sourced_or_unknown(self) -> Entry:
        if self.value == UNKNOWN and (self.source or not self.tried):
            raise ValueError("UNKNOWN with the places tried, or a value with its source")
        if self.value != UNKNOWN and not (self.source and self.checked):
            raise ValueError("a value with its source, or UNKNOWN")
        if self.source and bool(self.source.file) != (self.checked in ("device", "measured")):
            raise ValueError("a file of results for device or measured, a url for all others")
        return self


class _Platform(Document):
    specs: dict[str, Entry]


class _SpecFile(Document):
    schema_version: Literal[1]
    arch: str
    family: str
    specs: dict[str, Entry]
    platforms: dict[str, _Platform]


@dataclass(frozen=True, slots=True)
class Fact:
    """A spec file's value of a metric, at `path` and `key`; None where it has none."""

    metric: str
    value: float | None
    unit: str
    path: str
    key: str

    def citation(self) -> str:
        """Return `<metric>: <value> <unit> <- <path>:<key>`, UNKNOWN in the place of a value."""
        value = UNKNOWN if self.value is None else f"{self.value:g} {self.unit}"
        return f"{self.metric}: {value} <- {self.path}:{self.key}"


class Product(NamedTuple):
    """A product as the spec files know it: its architecture and its name there."""

    architecture: str
    name: str


@cache
def _index(path: Path, changed: int) -> dict[str, Any]:
    """Read an index once a process, as it is since it changed (ns): it takes 25 ms."""
    return load_yaml(path)


@cache
def _spec_file(path: Path, changed: int) -> _SpecFile:
    """Read a spec file once a process, as it is since it changed (ns): it takes 80 ms."""
    return validate(_SpecFile, load_yaml(path), where=str(path))


class Facts:
    """The spec files below a knowledge folder."""

    def __init__(self, root: Path | None = None) -> None:
        """Answer from `root`, the installation's own folder when it is not given."""
        self._root = root or bundled(_TOP)

    def products(self, architecture: str) -> list[str]:
        document = self._file(architecture)
        return list(document.platforms) if document else []

    def product(self, device: str) -> Product | None:
        """Return the product behind its name or a device's own, `H200` or `NVIDIA H200`, or None.

        Only whole names count: a sister product's facts are no facts of this one.
        """
        path = self._root / "index.yaml"
        changed = path.stat().st_mtime_ns if path.exists() else 0
        for architecture, block in _index(path, changed)["hardware"].items():
            for name, devices in block["platforms"].items():
                if device == name or device in devices:
                    return Product(architecture, name)
        return None

    def fact(self, metric: str, architecture: str, product: str | None = None) -> Fact:
        """Return what is known of a metric; BadInput for a spec file that cannot be used."""
        key = f"{product}.{metric}" if product else metric
        path = f"{_TOP}/hardware/{architecture}/spec.yaml"
        entry = self._specs(architecture, product).get(metric)
        if entry is None:
            return Fact(metric, None, "", path, key)
        value = None if entry.value == UNKNOWN else float(entry.value)
        return Fact(metric, value, entry.unit, path, key)

    def sheet(self, architecture: str, product: str | None = None) -> list[Fact]:
        """Return all facts of a product, known or UNKNOWN, or those that an architecture shares."""
        metrics = self._specs(architecture, product)
        return [self.fact(metric, architecture, product) for metric in metrics]

    def _specs(self, architecture: str, product: str | None) -> dict[str, Entry]:
        document = self._file(architecture)
        section = document if product is None or not document else document.platforms.get(product)
        return section.specs if section else {}

    def _file(self, architecture: str) -> _SpecFile | None:
        path = self._root / "hardware" / architecture / "spec.yaml"
        return _spec_file(path, path.stat().st_mtime_ns) if path.is_file() else None


def product_facts(gpu: str, model: str | None, device: str) -> tuple[str, list[Fact]]:
    """Return the facts of the very model that a campaign is about, with what they are the facts of.

    The model is the manifest's, else that of the device that measured the baseline. If only
    the architecture is known, its own facts are all: no sister product's peaks stand in.
    """
    facts = Facts()
    product = facts.product(model or device)
    if product is not None:
        return f"{product.name} ({product.architecture})", facts.sheet(*product)
    models = facts.products(gpu)
    if not models or device:
        return f"{device or gpu} is in no spec file: its peaks are UNKNOWN", []
    return (
        f"only the architecture is known, and the peaks of {', '.join(models)} differ; name the "
        f"model (target_model: {models[0]}). All of {gpu} have",
        facts.sheet(gpu),
    )
